"""When the engine ticks: on time, early when it is called, sooner while a candidate only fails, and never after `stop`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rollouts.core.rollback_rules import FAILING_OVER_S
from rollouts.engine.loop import Engine
from rollouts.engine.timings import EngineTimings
from tests.fakes.gateway import FakeGateway

TIMINGS = EngineTimings()


class Paced(Engine):
    """An engine without work, which notes when it would have looked."""

    def __init__(self, tick_s: float) -> None:
        super().__init__(FakeGateway(), tick_s=tick_s, lease_s=60)
        self.ticks: list[float] = []

    def step(self) -> bool:
        self.ticks.append(time.monotonic())
        return True

    def poll_pending(self) -> bool:
        return self.step()


@pytest.fixture
def paced() -> Iterator[Callable[[float], Paced]]:
    started: list[tuple[Paced, threading.Thread]] = []

    def start(tick_s: float) -> Paced:
        engine = Paced(tick_s)
        thread = threading.Thread(target=engine.run)
        thread.start()
        started.append((engine, thread))
        wait_for(lambda: len(engine.ticks) == 1)
        return engine

    yield start
    for engine, thread in started:
        engine.stop()
        thread.join(5)
        assert not thread.is_alive()


def wait_for(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_call_brings_one_tick_early_however_often_it_comes(paced: Callable[[float], Paced]) -> None:
    engine = paced(60)
    time.sleep(TIMINGS.early_s)
    called = time.monotonic()
    for _ in range(20):
        engine.wake()
    wait_for(lambda: len(engine.ticks) == 2)
    assert engine.ticks[1] - called < 0.15
    time.sleep(2 * TIMINGS.early_s)
    assert len(engine.ticks) <= 3  # calls that came within the pause are one


def test_a_storm_of_calls_leaves_a_pause_between_ticks(paced: Callable[[float], Paced]) -> None:
    engine = paced(60)
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        engine.wake()
        time.sleep(0.002)
    gaps = [later - earlier for earlier, later in zip(engine.ticks, engine.ticks[1:], strict=False)]
    assert len(gaps) >= 2 and min(gaps) >= TIMINGS.early_s - 0.02


def test_without_a_call_it_ticks_on_time(paced: Callable[[float], Paced]) -> None:
    engine = paced(0.3)
    wait_for(lambda: len(engine.ticks) == 4)
    assert 0.8 < engine.ticks[3] - engine.ticks[0] < 1.5


def test_turns_that_take_long_do_not_shift_the_schedule(paced: Callable[[float], Paced]) -> None:
    engine = paced(0.3)
    step = engine.step
    engine.step = lambda: (time.sleep(0.2), step())[1]  # type: ignore[method-assign]
    began = engine.ticks[0]
    wait_for(lambda: len(engine.ticks) == 5)
    assert (
        1.1 < engine.ticks[4] - began < 1.7
    )  # four periods and the turn itself; by turn and rest it would be two seconds


def test_stop_ends_it_at_once(paced: Callable[[float], Paced]) -> None:
    engine = paced(60)
    engine.stop()  # the fixture sees that the thread ended
    time.sleep(0.1)
    assert len(engine.ticks) == 1


def test_the_next_look_at_a_failing_candidate_is_a_second_event_s_proof() -> None:
    assert FAILING_OVER_S + 0.05 < TIMINGS.look_again_s < 1.0
