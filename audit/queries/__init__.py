"""Named reads of events, by who asks."""

from audit.queries.event_visibility import events_of_team, visible_events

__all__ = ["events_of_team", "visible_events"]
