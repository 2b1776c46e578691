"""How releases fared with traffic, asked where releases are listed and shown.

Rollouts live in a room above this one: it calls `register_outcome_source` when Django is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True)
class RolledBack:
    """A rollout that took the release back. `environment` is the slug; `why` a sentence."""

    rollout: int
    environment: str
    at: datetime | None
    why: str


Source = Callable[[Collection[UUID]], Mapping[UUID, Sequence[RolledBack]]]
_sources: list[Source] = []


def register_outcome_source(source: Source) -> None:
    """From now on this source is asked."""
    if source not in _sources:
        _sources.append(source)


def rolled_back_of(releases: Collection[UUID]) -> dict[UUID, list[RolledBack]]:
    """By release, the newest first, those of the releases that were taken back and have not made up for it since."""
    found: dict[UUID, list[RolledBack]] = {}
    for source in _sources:
        for release, taken in source(releases).items():
            found.setdefault(release, []).extend(taken)
    return found
