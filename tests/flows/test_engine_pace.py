"""When the engine ticks: on time, early when it is called, sooner while a candidate only fails, and never after `stop`."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import pairwise

import pytest

from rollouts.core.rules.mostly_failing import LEAST_READINGS
from rollouts.core.rules.verdicts import FAILING_OVER_S
from rollouts.engine import loop
from rollouts.engine.loop import Engine
from rollouts.engine.timings import EngineTimings
from tests.support.fakes.gateway import FakeGateway
from tests.support.rigs.gateway_rig import wait_until

TIMINGS = EngineTimings()


class Clock:
    """Time as the loop sees it: it passes only while the loop sleeps or waits, which calls end at their instants."""

    def __init__(self, calls: Iterable[float]) -> None:
        self.now_s, self.calls = 0.0, sorted(calls)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    # -- as a Wakeup

    def call(self) -> None:
        self.calls.insert(0, self.now_s)

    def wait(self, timeout_s: float) -> bool:
        until = self.now_s + timeout_s
        is_called = bool(self.calls) and self.calls[0] <= until
        self.now_s = max(self.now_s, self.calls[0]) if is_called else until
        return is_called

    def forget(self) -> None:
        self.calls = [at for at in self.calls if at > self.now_s]


class Paced(Engine):
    """An engine whose looks take `takes_s`, which notes when it would have looked."""

    takes_s, most = 0.0, 10**9
    is_always_failing = False

    def __init__(self, tick_s: float) -> None:
        super().__init__(FakeGateway(), tick_s=tick_s, lease_s=60)
        self.ticks: list[float] = []

    def step(self) -> bool:
        self.ticks.append(loop.time.monotonic())
        loop.time.sleep(self.takes_s)
        self._is_failing = self.is_always_failing
        if len(self.ticks) >= self.most:
            self.stop()
        return True

    def poll_pending(self) -> bool:
        return self.step()


def ticks(
    monkeypatch: pytest.MonkeyPatch, tick_s: float, *, most: int, calls: Iterable[float] = (), takes_s: float = 0.0,
    is_failing: bool = False,
) -> list[float]:  # fmt: skip
    """The instants of an engine's first `most` looks; the first is at 0."""
    clock = Clock(calls)
    monkeypatch.setattr(loop, "time", clock)
    engine = Paced(tick_s)
    engine._wakeup = clock  # type: ignore[assignment]
    engine.most, engine.takes_s, engine.is_always_failing = most, takes_s, is_failing
    engine.run()
    return engine.ticks


def about(*instants: float) -> object:
    return pytest.approx(list(instants), abs=0.01)


def test_a_call_brings_one_tick_early_however_often_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ticks(monkeypatch, 60, most=4, calls=[7.0] * 20) == about(0, 7, 60, 120)


def test_calls_that_come_within_the_pause_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0.3 * TIMINGS.early_s, 0.9 * TIMINGS.early_s]
    assert ticks(monkeypatch, 60, most=3, calls=calls) == about(0, TIMINGS.early_s, 60)


def test_a_storm_of_calls_leaves_a_pause_between_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ticks(monkeypatch, 60, most=6, calls=[one / 500 for one in range(3000)])
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert min(gaps) >= TIMINGS.early_s - 1e-6 and max(gaps) < TIMINGS.early_s + 0.02


def test_without_a_call_it_ticks_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ticks(monkeypatch, 0.3, most=4) == about(0, 0.3, 0.6, 0.9)


def test_turns_that_take_long_do_not_shift_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ticks(monkeypatch, 0.3, most=5, takes_s=0.2) == about(0, 0.3, 0.6, 0.9, 1.2)


def test_ticks_that_were_missed_are_not_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ticks(monkeypatch, 0.3, most=4, takes_s=2.0) == about(0, 2, 4, 6)


def test_while_a_candidate_only_fails_it_looks_again_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    again_s = TIMINGS.look_again_s
    assert ticks(monkeypatch, 60, most=4, is_failing=True) == about(0, again_s, 2 * again_s, 3 * again_s)


@pytest.mark.parametrize(("takes_s", "every_s"), [(0.1, 0.25), (0.2, 0.4), (0.5, 0.75), (2.0, 2.25)])
def test_after_a_long_turn_a_failing_candidate_is_not_looked_at_at_once(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, every_s: float
) -> None:
    assert TIMINGS.look_again_s == 0.25
    seen = ticks(monkeypatch, 60, most=4, takes_s=takes_s, is_failing=True)
    assert seen == about(0, every_s, 2 * every_s, 3 * every_s)


def test_a_call_and_a_stop_from_another_thread_end_its_rest_at_once() -> None:
    """By the real clock: of its hour of rest nobody sees anything."""
    engine = Paced(3600)
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    for count in (1, 2):
        wait_until(lambda count=count: len(engine.ticks) == count, f"look {count}", timeout_s=60)
        engine.stop() if count == 2 else engine.wake()
    thread.join(60)
    assert not thread.is_alive() and len(engine.ticks) == 2


def test_three_looks_at_a_failing_candidate_are_a_second_event_s_proof() -> None:
    assert FAILING_OVER_S + 0.05 < (LEAST_READINGS - 1) * TIMINGS.look_again_s < 1.0
