"""What a release's own code may do where it would run, asked where someone decides whether it may run at all.

Nodes live in a room above this one: it calls `register_code_source` when Django is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from registry.models import Release


@dataclass(frozen=True)
class CodeRun:
    """One node that offers the release's runtime. `containment` is the node's word for it, `says` a sentence for people."""

    node: str
    containment: str
    says: str
    may_run: bool


Source = Callable[[Release], Iterable[CodeRun]]
_sources: list[Source] = []


def register_code_source(source: Source) -> None:
    """From now on this source is asked."""
    if source not in _sources:
        _sources.append(source)


def code_runs_of(release: Release) -> list[CodeRun]:
    """By node; none for a release without code, and where no node is known that it could run on."""
    if not release.is_code_bearing:
        return []
    found = [run for source in _sources for run in source(release)]
    return sorted(found, key=lambda run: run.node)
