"""Who hears of an event: the same rule as that of the log's own pages (`audit.queries.visible_events`), for one event at a time."""

from __future__ import annotations

from dataclasses import dataclass

from audit.core.topics import OPEN, Happening, topics_of


@dataclass(frozen=True)
class Audience:
    """Events that a person may read: all, or those of these models and teams (slugs) and their own."""

    name: str
    sees_all: bool = False
    models: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()

    def sees_model(self, model: str) -> bool:
        return self.sees_all or model in self.models

    def sees(self, event: Happening) -> bool:
        """Whether the log shows the event to this person."""
        if self.sees_all or event.actor == self.name:
            return True
        if event.subject_type == "model" and event.subject_id in self.models:
            return True
        if event.subject_type == "webhook" and event.team in self.teams:
            return True
        return event.model in self.models

    def topics(self, event: Happening) -> tuple[str, ...]:
        """The topics of the event that this person hears of: all of them, or those that are open to everybody."""
        found = topics_of(event)
        return found if self.sees(event) else tuple(topic for topic in found if topic in OPEN)
