"""Who uses a release, asked before it is retired and when bytes are collected.

Routes, replicas, rollouts and gate runs live in rooms above this one: they call `register_usage_source` when Django is ready.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

#: Given the ids of releases, or None for all: (id, what uses it, such as `stable in production`) for each that is in use.
Source = Callable[[Collection[UUID] | None], Iterable[tuple[UUID, str]]]
_sources: dict[str, Source] = {}


def register_usage_source(name: str, source: Source) -> None:
    """From now on this source is asked as well. A name that is there already is replaced."""
    _sources[name] = source


def usages_of(releases: Collection[UUID] | None = None, *, but: Collection[str] = frozenset()) -> dict[UUID, list[str]]:
    """What uses each of these releases, or any release at all. One that nothing uses is not in it. `but`: sources that are not asked."""
    found: dict[UUID, list[str]] = defaultdict(list)
    for name, source in _sources.items():
        for release, what in source(releases) if name not in but else ():
            found[release].append(what)
    return {release: sorted(set(whats)) for release, whats in found.items()}
