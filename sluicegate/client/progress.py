"""Progress of a long call: silent by default; the caller can pass a meter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Meter(Protocol):
    """Takes how far the work is."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


class Progress(Protocol):
    """Takes lines for people, and gives a meter for each part of the work, in bytes or pieces."""

    def say(self, line: str) -> None: ...

    def progress(self, title: str, *, is_bytes: bool = False) -> AbstractContextManager[Meter]: ...


class Silent:
    def say(self, line: str) -> None:
        pass

    @contextmanager
    def progress(self, title: str, *, is_bytes: bool = False) -> Iterator[Meter]:
        yield lambda done, total, note="": None
