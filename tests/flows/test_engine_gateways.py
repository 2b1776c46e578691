"""Gateways that hang, are slow, or repeat themselves, and a clock that jumps: none of them delays or moves another's rollout."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from rollouts.core.engine_state import EngineState
from rollouts.models import DecisionRecord
from serving.traffic.adapters.counter_readers import CounterReaders
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.rigs.gateway_rig import wait_until
from tests.support.worlds.rollout_crowd import HANGS_S, World
from tests.support.worlds.telemetry_world import SECONDS

pytestmark = pytest.mark.django_db(transaction=True)
#: A turn that waited for a gateway would last at least `HANGS_S`; one that does not, no longer than this on any machine.
PROMPTLY_S = HANGS_S / 4


@pytest.fixture(autouse=True)
def _nobody_hangs() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("counters-"):
            thread.join(0.1)


def readers_of(world: World) -> CounterReaders:
    """As an engine has them, but for a patience without end."""
    world.engine._readers = CounterReaders(world.gateways, wait_s=2 * HANGS_S)
    return world.engine._readers


def time_is_over_for(readers: CounterReaders, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway is waited for until all the others have answered."""
    wait = readers.wait

    def waiting() -> None:
        if not any(one.is_busy for other, one in readers._readers.items() if other != name):
            readers._until = 0.0
        wait()

    monkeypatch.setattr(readers, "wait", waiting)


def test_a_hung_gateway_blinds_its_own_rollouts_and_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(environments=2)
    world.until_shifting()
    near, far = world.rollouts
    world.gateways.hung.add("gateway-1")
    with monkeypatch.context() as first_turn:
        time_is_over_for(readers_of(world), "gateway-1", first_turn)
        for turn in range(4):
            before, began = near.tick, time.monotonic()
            world.turn()
            assert turn == 0 or time.monotonic() - began < PROMPTLY_S  # it was waited for once; later turns know better
            assert near.tick == before + 1
            assert "minimum" in near.reason and "gateway-1" in far.reason
            first_turn.undo()
    assert world.gateways.asked.count("gateway-1") < world.gateways.asked.count("gateway-0")  # never twice at a time
    assert DecisionRecord.objects.filter(rollout=far, code="provider_down").count() == 1
    assert not DecisionRecord.objects.filter(rollout=near, code="provider_down").exists()
    assert far.weight_bp == 2500 and far.state == "shifting"
    world.gateways.hung.clear()
    world.gateways.go_on.set()

    def is_heard_again() -> bool:
        world.turn()
        return "gateway-1" not in far.reason

    wait_until(is_heard_again, "gateway-1 is heard again", timeout_s=60)


def test_who_holds_for_a_gateway_that_does_not_tell_says_how_to_be_rid_of_it() -> None:
    world = World()
    world.until_shifting()
    (rollout,) = world.rollouts
    world.gateways.go_on.set()
    world.gateways.hung.add("gateway-0")

    def is_said() -> bool:
        world.turn()
        return "it hung); if it was stopped for good: sluicegate api POST /gateways/gateway-0/remove" in rollout.reason

    wait_until(is_said, "how to be rid of the gateway", timeout_s=60)
    assert rollout.state == "shifting"


def test_a_slow_gateway_is_heard_a_turn_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.until_shifting()
    (rollout,) = world.rollouts
    read, answers = world.gateways.read, threading.Semaphore(0)

    def slowly(**asked: Any) -> Any:
        answers.acquire(timeout=HANGS_S)
        return read(**asked)

    monkeypatch.setattr(world.gateways, "read", slowly)
    readers = readers_of(world)
    with monkeypatch.context() as first_turn:
        time_is_over_for(readers, "gateway-0", first_turn)
        world.turn()
    assert "has not told its counters yet" in rollout.reason
    answers.release()
    wait_until(lambda: not readers._readers["gateway-0"].is_busy, "the answer", timeout_s=60)
    total = EngineState.from_json(rollout.engine_state).total.candidate.attempts
    began = time.monotonic()
    world.turn()
    assert time.monotonic() - began < PROMPTLY_S  # the next answer is not waited for
    answers.release()
    assert "counters" not in rollout.reason
    assert EngineState.from_json(rollout.engine_state).total.candidate.attempts > total


def test_a_gateway_that_repeats_itself_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    with SECONDS.installed(monkeypatch, is_frozen=True):
        world = World(stale_s=60)
        world.until_shifting()
        world.turn()
        world.fake_of(world.rollouts[0]).freeze()
        SECONDS.ahead_s += 61
        world.turn()
        held = DecisionRecord.objects.filter(rollout=world.rollouts[0]).order_by("-pk")[0]
        assert (held.code, held.facts["because"]) == ("provider_down", "stale")
        world.fake_of(world.rollouts[0]).freeze(False)
        world.turn()
        assert "minimum" in world.rollouts[0].reason


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0])
def test_a_jump_of_this_hosts_clock_moves_nothing(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.until_shifting()
    world.turn()
    (rollout,) = world.rollouts
    said, began, now, real = rollout.reason, time.time(), timezone.now, time.time
    monkeypatch.setattr(timezone, "now", lambda: now() + timedelta(seconds=jump_s))
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    monkeypatch.setattr(world, "obey", lambda: None)
    for _ in range(3):
        world.turn()
    if not world.engine.cache.known[rollout.pk].history.rows:
        world.turn()  # a block was full just now; another begins
    assert rollout.state == "shifting" and "minimum" in rollout.reason and "minimum" in said
    block = world.engine.cache.known[rollout.pk].history
    assert block.rows and abs(block.at - began) < 600
    monkeypatch.undo()
    assert DecisionRecord.objects.filter(rollout=rollout, at__gt=timezone.now() + timedelta(minutes=1)).count() == 0
