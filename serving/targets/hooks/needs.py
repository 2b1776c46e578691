"""Who needs a release's servers in one environment, asked before a model is put to sleep there.

Rollouts live in a room above this one: it calls `register_need_source` when Django is ready. Unlike a use of a release
(`registry.hooks.usage`), a need is of one environment: what goes on in another keeps no server here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

#: Given the ids of releases: (id, key of the environment, what needs it there) for each that is needed.
NeedSource = Callable[[Collection[UUID]], Iterable[tuple[UUID, int, str]]]
#: Release ids and environment keys: a first replica is awaited there. Sorted by waiting time, longest first.
AwaitedSource = Callable[[], Iterable[tuple[UUID, int]]]
_sources: list[NeedSource] = []
_awaited: list[AwaitedSource] = []


def register_need_source(source: NeedSource, awaited: AwaitedSource) -> None:
    """Adds both sources."""
    if source not in _sources:
        _sources.append(source)
        _awaited.append(awaited)


def awaited_releases() -> list[tuple[UUID, int]]:
    """Release ids and environment keys of all sources."""
    return [one for source in _awaited for one in source()]


def needs_of(releases: Collection[UUID]) -> dict[tuple[UUID, int], list[str]]:
    """What needs each of these releases, by release and environment. One that nothing needs is not in it."""
    found: dict[tuple[UUID, int], list[str]] = defaultdict(list)
    for source in _sources:
        for release, environment, what in source(releases):
            found[release, environment].append(what)
    return dict(found)
