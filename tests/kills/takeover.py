"""How long nobody leads: two engines at their real pace, and the leader killed again and again, or frozen."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command, load_command_class

from ledger.models import Lease
from rollouts.models import Rollout
from serving.models import Gateway
from tests.kills import databases, gateway
from tests.kills.points import Points, late_in
from tests.kills.process import Child, fork
from tests.kills.stories import QUIET, Story

TEMPLATE = "kills_takeover"
#: A rollout that goes on for ever, so that a leader has something to write at every tick.
STORY = Story("going on", "shifting", rate=QUIET)
#: In the trace of an engine that would lead, each time.
ASKS = "leases.acquire"


@dataclass
class Measured:
    """Seconds from the kill of a leader until the other leads, and until it has written a tick of the rollout."""

    leads_s: list[float] = field(default_factory=list)
    acts_s: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "kills": len(self.leads_s),
            "lease_s": settings.ENGINE_LEASE_S,
            "tick_s": settings.ENGINE_TICK_S,
            **{f"{name}_p50_s": round(statistics.median(found), 2) for name, found in self._both()},
            **{f"{name}_max_s": round(max(found), 2) for name, found in self._both()},
        }

    def _both(self) -> list[tuple[str, list[float]]]:
        return [("leads", self.leads_s), ("acts", self.acts_s)]


class Pair:
    """Two engines, one gateway, one rollout that is shifting. Leave it by `end()`."""

    def __init__(self, folder: Path) -> None:
        load_command_class("rollouts", "engine")
        databases.copy(databases.BASE, TEMPLATE)
        databases.use(TEMPLATE)
        STORY.seed()
        self.folder, self.log = folder, folder / "takeover.log"
        self.gateway = gateway.start(self.log, rate=STORY.rate)
        Gateway.objects.update(admin_url=self.gateway.admin_url)
        self.engines = [self._start(), self._start()]
        self.children = [self.gateway.process, *self.engines]
        until(lambda: Rollout.objects.get().step_started_at is not None, "a step that has begun")
        self.until_both_ask()

    def end(self) -> None:
        for child in self.children:
            child.kill()
        databases.use("postgres")

    def leader(self) -> Child | None:
        owner = Lease.objects.get(name="engine").owner
        return next((one for one in self.engines if f":{one.pid}:" in owner), None)

    def other(self, leader: Child) -> Child:
        return next(one for one in self.engines if one is not leader)

    def replace(self, dead: Child) -> None:
        """Another engine in the place of the dead one, beside the leader, as a supervisor would start it."""
        self.engines = [one for one in self.engines if one is not dead] + [self._start()]
        self.children.append(self.engines[-1])
        self.until_both_ask()

    def until_both_ask(self) -> None:
        """Until each has asked for the lease."""
        for engine in self.engines:
            until(lambda engine=engine: any(ASKS in line for line in self.trace_of(engine)), "it asks for the lease")

    def trace_of(self, engine: Child) -> list[str]:
        file = self.folder / engine.name
        return file.read_text().splitlines() if file.exists() else []

    def _start(self) -> Child:
        name = f"engine {time.monotonic_ns()}"
        return fork(name, lambda: _engine(self.folder / name), self.log)


def _engine(trace: Path) -> None:
    Points(str(trace), None).watch()
    call_command("engine")


def kill_leaders(pair: Pair, times: int, *, seed: int = 1) -> Measured:
    """SIGKILL at an instant drawn anew each time."""
    measured, draw = Measured(), random.Random(seed)
    for _ in range(times):
        time.sleep(draw.uniform(0, 2 * settings.ENGINE_TICK_S))
        leader = until(pair.leader, "a leader")
        other, began = pair.other(leader), time.monotonic()
        leader.kill()
        until(lambda other=other: pair.leader() is other, "the other leads")
        measured.leads_s.append(time.monotonic() - began)
        token = Lease.objects.get(name="engine").token
        was = Rollout.objects.get().tick
        until(lambda token=token, was=was: _has_ticked(token, was), "a tick of the new leader")
        measured.acts_s.append(time.monotonic() - began)
        pair.replace(leader)
    return measured


def _has_ticked(token: int, was: int) -> bool:
    rollout = Rollout.objects.get()
    return rollout.fence == token and rollout.tick > was


def freeze_leader(pair: Pair, *, ticks_after: int = 2) -> list[str]:
    """What a leader wrote for good after it had been frozen until another had led: nothing, one hopes."""
    leader = until(pair.leader, "a leader")
    os.kill(leader.pid, signal.SIGSTOP)
    before = len(pair.trace_of(leader))
    other = pair.other(leader)
    until(lambda: pair.leader() is other, "the other leads")
    token, was = Lease.objects.get(name="engine").token, Rollout.objects.get().tick
    until(lambda: _has_ticked(token, was), "a tick of the other")
    os.kill(leader.pid, signal.SIGCONT)
    until(lambda: any(ASKS in line for line in pair.trace_of(leader)[before:]), "the thawed one asks for the lease")
    was = Rollout.objects.get().tick
    until(lambda: Rollout.objects.get().tick >= was + ticks_after, "more ticks")
    assert pair.leader() is other, "the frozen engine took the lead again"
    return late_in(pair.trace_of(leader), before)


def until(is_true: Callable[[], Any], what: str, *, within_s: float = 60.0) -> Any:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if found := is_true():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {within_s:g} s: {what}")
