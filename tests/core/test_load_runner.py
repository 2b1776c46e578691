"""The load's runner: it ends when enough was sent, and lets no more in flight than it was told."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serving.ports import PreparedRequests
from validators.core.load import Attempt
from validators.execution.runners import load


class Gate(PreparedRequests):
    """Answered once the gate is open."""

    def __init__(self) -> None:
        self.is_open = threading.Event()

    def connect(self) -> None:
        """There is nothing between."""

    def send(self, at: int, *, timeout_s: float) -> None:
        assert self.is_open.wait(30)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_PROGRESS_EVERY_S", 0.01)


def test_nothing_more_is_sent_once_it_is_enough() -> None:
    server = Gate()
    server.is_open.set()
    schedule = np.concatenate([np.zeros(5), np.full(5, 3600.0)])
    told: list[int] = []

    def five(attempts: Any, now_s: float) -> bool:
        return len(attempts) >= 5

    found = load.drive(server, schedule, timeout_s=9, progress=told.append, is_enough=five)
    assert [one.at for one in found] == [0, 1, 2, 3, 4] and not any(one.error for one in found)
    assert told[0] == 0 and told[-1] == 5


def test_beyond_the_most_at_once_nothing_is_sent() -> None:
    server = Gate()

    def looked(attempts: list[Attempt], now_s: float) -> bool:
        if len(attempts) == 3:
            server.is_open.set()
        return False

    found = load.drive(server, np.zeros(5), timeout_s=9, progress=lambda done: None, is_enough=looked, most_at_once=2)
    assert [one.is_sent for one in found] == [True, True, False, False, False]
    assert [bool(one.error) for one in found] == [False, False, True, True, True]


class Purpose(PreparedRequests):
    """Does something whenever it is sent."""

    def __init__(self, does: Callable[[], object]) -> None:
        self.does = does

    def connect(self) -> None:
        """There is nothing between."""

    def send(self, at: int, *, timeout_s: float) -> None:
        self.does()


@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_is_there_already_is_not_looked_through_while_requests_fall_due(is_frozen: bool) -> None:
    counts: list[int] = []
    server = Purpose(lambda: counts.append(gc.get_freeze_count()))
    gc.unfreeze()
    if is_frozen:
        gc.freeze()
    try:
        load.drive(server, np.zeros(2), timeout_s=1, progress=lambda sent: None)
        assert min(counts) > 1000 and (gc.get_freeze_count() > 0) is is_frozen
    finally:
        gc.freeze()  # as it was: tests run in a process that has done so


def test_what_the_client_itself_raises_ends_the_run() -> None:
    far = np.array([0.0, 3600.0])
    with pytest.raises(ZeroDivisionError):
        load.drive(Purpose(lambda: 1 // 0), far, timeout_s=1, progress=lambda sent: None)
