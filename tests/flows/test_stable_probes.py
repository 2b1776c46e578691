"""Golden probes of stable on their threads: silent servers delay no other model."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rollouts.prober import golden
from rollouts.prober.golden import STABLE_WORKERS, StableProbes
from rollouts.prober.targets import Arm, Profile, Target
from tests.support.worlds.prober_setup import until

SILENT, HEALTHY = range(1, STABLE_WORKERS + 1), 1000  # as many as there are threads


class Probe:
    """A silent model takes a while for its first item, and gives no answer to the others before `end`."""

    def __init__(self, model: int, end: threading.Event) -> None:
        self.model, self.end, self.asked = model, end, 0

    def next_item(self) -> Any:
        return SimpleNamespace(id="item-0", slice="all")

    def ask(self, server: Any, arm: Arm, item: Any) -> None:
        self.asked += 1
        if self.model in SILENT:
            self.end.wait(60) if self.asked > 1 else time.sleep(0.2)


def target(model: int) -> Target:
    nothing: Any = None
    profile = Profile(model, "m", model, Arm("r1", {}), None, nothing, 1.0, nothing, 0)
    server: Any = "server"
    return Target(profile, None, (server,), ())


def test_silent_servers_delay_no_other_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "EVERY_S", 0.01)
    monkeypatch.setattr(golden, "SLOW_S", 0.1)
    end = threading.Event()
    book: Any = SimpleNamespace(epoch="1", record=lambda *_: None)
    servers: Any = SimpleNamespace(at=lambda server: server)
    probes = StableProbes(book, servers)
    made = {model: Probe(model, end) for model in (*SILENT, HEALTHY)}
    monkeypatch.setattr(StableProbes, "_probe_of", lambda _, profile: made[profile.rollout_id])
    everyone = [target(model) for model in made]

    def turned(is_so: Any) -> Any:
        probes.turn(everyone)
        return is_so()

    try:
        until(lambda: turned(lambda: all(made[model].asked > 1 for model in SILENT)))
        before = made[HEALTHY].asked
        until(lambda: turned(lambda: made[HEALTHY].asked >= before + 3), within_s=20)
    finally:
        end.set()
        probes.stop()
