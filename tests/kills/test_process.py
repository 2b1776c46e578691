"""Processes that are forked for the kill runs."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from tests.kills.process import fork

pytestmark = pytest.mark.django_db(transaction=True)


class _Ends:
    """Garbage that takes its process with it; asyncio's gRPC would wait for ever for a thread that only the parent has."""

    def __del__(self) -> None:
        os._exit(7)


def test_the_garbage_of_the_parent_is_not_collected_in_the_child(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        one = _Ends()
        one.itself = one  # type: ignore[attr-defined]
        del one
        child = fork("collects", gc.collect, tmp_path / "log")
        while not child.is_over:
            os.sched_yield()
    finally:
        _Ends.__del__ = lambda self: None  # type: ignore[method-assign]
        gc.enable()
    assert child.exit_code == 0, "the parent's garbage ended it"
