"""Ends a process at a line of the functions that write a file: each line is a point, so that no state of the file is passed over."""

from __future__ import annotations

import linecache
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tests.kills.points import BEFORE, Point


class Lines:
    """Watches these functions in threads that begin later. Each line's text goes to `trace`, a file, before it is run."""

    def __init__(self, trace: str, at: Point | None, functions: tuple[Callable[..., Any], ...]) -> None:
        self._trace = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._at, self._codes = at, {one.__code__ for one in functions}
        self._seen: Counter[str] = Counter()
        self._is_next = False

    def watch(self) -> None:
        threading.settrace(self._called)
        sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        return self._within if frame.f_code in self._codes else None

    def _within(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if self._is_next:
            self._end()
        if event == "line":
            site = _text_of(frame.f_code, frame.f_lineno)
            self._seen[site] += 1
            os.write(self._trace, f"{site}\n".encode())
            if self._at is not None and (self._at.site, self._at.nth) == (site, self._seen[site]):
                self._is_next = self._at.side != BEFORE
                if not self._is_next:
                    self._end()
        return self._within

    def _end(self) -> None:
        """Once: who is thawed goes on."""
        assert self._at is not None
        self._is_next = False
        signal.pthread_kill(threading.get_ident(), self._at.how)


def _text_of(code: CodeType, line: int) -> str:
    return f"{linecache.getline(code.co_filename, line).strip()} @ {code.co_qualname}"
