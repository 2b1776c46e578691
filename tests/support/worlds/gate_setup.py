"""Gate runs on fake servers, under a load generator for which nothing is late."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

import validators.execution.run
import validators.execution.staging
from accounts.core.access import Actor, Role
from registry.models import Release, ServedModel
from serving.models import Environment, Replica, Route, Server
from serving.targets.local_trial import LocalServer
from tests.support.fakes.ports import FakeInferenceServer, FakeModel
from tests.support.worlds.factories import (
    make_actor,
    make_environment,
    make_model,
    make_node,
    make_release,
    make_server,
)
from validators import actions
from validators.execution.run import execute_gate_run
from validators.execution.runners import load
from validators.models import GateRun

Arrays = dict[str, Any]
POLICY = {
    "golden": {"min_accuracy": 0.7, "alone_items": 8, "batch_size": 8},
    # All of it within the objective's time, since a request that is due later is no slower under this clock.
    "load": {
        "rate_per_s": 1000, "slo_quantile": 0.95, "max_duration_s": 0.2, "slo_ms": 500, "max_lag_ms": 400,
        "burst_s": 0.05, "recovery_s": 0.05,
    },
    "cold_start": {"inferences": 5, "max_first_excess_ms": 60_000},
}  # fmt: skip


class LoadClock:
    """The load generator's time: it passes while the next request is not due yet, and nowhere else. So nothing is late, or slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        threads = SimpleNamespace(Thread=threading.Thread, Semaphore=threading.Semaphore, Event=self._event)
        monkeypatch.setattr(load, "threading", threads)
        monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: self.now, process_time=lambda: 0.0))

    def _event(self) -> threading.Event:
        clock = self

        class Passing(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                clock.now += timeout or 0.0
                return self.is_set()

        return Passing()


def judge_text(tensors: Arrays) -> Arrays:
    """The honest model of these tests: good is 1."""
    right = [b"good" in text for text in tensors["TEXT"].ravel()]
    return {"probabilities": np.array([[0.1, 0.9] if good else [0.8, 0.2] for good in right], np.float32)}


def golden_lines(count: int = 60) -> bytes:
    return b"\n".join(
        json.dumps(
            {
                "id": f"i{i}",
                "inputs": {"TEXT": f"{'good' if i % 2 else 'bad'} {i}"},
                "label": i % 2,
                "slice": "ab"[i < 30],
            }
        ).encode()
        for i in range(count)
    )


class Stage:
    """Stands in for the node's agent: replicas come up when they are waited for, and answer as `behaviour` says."""

    load_clock: LoadClock

    def __init__(self) -> None:
        self.behaviour: dict[str, FakeModel] = {}
        self.fate: Callable[[Replica], None] = self.come_up
        self.asked: list[str] = []

    def tick(self, _seconds: float = 0.0) -> None:
        for replica in Replica.objects.filter(state="fetching", is_wanted=True):
            self.fate(replica)

    def come_up(self, replica: Replica) -> None:
        timings = {"fetch_s": 0.5, "load_s": 1.5, "warmup_s": 0.2}
        Replica.objects.filter(pk=replica.pk).update(state="ready", timings=timings, ready_at=timezone.now())
        make_server(replica)

    def fail(self, reason: str) -> Callable[[Replica], None]:
        return lambda replica: Replica.objects.filter(pk=replica.pk).update(state="failed", reason=reason) and None

    def client(self, server: Server) -> FakeInferenceServer:
        release = server.replica.release
        self.asked.append(release.name)
        slug = release.model.slug
        serving = json.loads(release.manifest)["serving"]
        return FakeInferenceServer({slug: self.behaviour.get(release.name) or FakeModel(serving, judge_text)})

    def behave(self, release: Release, compute: Callable[[Arrays], Arrays] = judge_text, **how: Any) -> FakeModel:
        model = FakeModel(json.loads(release.manifest)["serving"], compute, **how)
        self.behaviour[release.name] = model
        return model


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    make_node()
    make_environment("staging", is_routed=False)
    monkeypatch.setattr(validators.execution.staging, "sleep", made.tick)
    monkeypatch.setattr(LocalServer, "client", lambda self: made.client(self.row))
    made.load_clock = LoadClock(monkeypatch)
    return made


@pytest.fixture
def developer() -> Actor:
    return make_actor(Role.MODEL_TEAM)


@pytest.fixture
def model(developer: Actor) -> ServedModel:
    found = make_model("sentiment", gate_policy=POLICY)
    golden, _ = actions.add_golden_set(actor=developer, model=found, data=golden_lines())
    found.gate_policy = {**POLICY, "golden": {**POLICY["golden"], "set": golden.digest}}
    found.save()
    return found


@pytest.fixture
def release(model: ServedModel) -> Release:
    return make_release(model)


def beat(*_: Any, **__: Any) -> bool:
    return True


def validated(actor: Actor, release: Release) -> GateRun:
    gate_run, _ = actions.request_gate_run(actor=actor, release=release)
    execute_gate_run(gate_run.pk, beat)
    gate_run.refresh_from_db()
    return gate_run


def verdicts(gate_run: GateRun) -> dict[str, str]:
    return {run.gate: run.verdict for run in gate_run.results.all()}


def promote(release: Release) -> Environment:
    production = make_environment("production")
    Route.objects.create(environment=production, model=release.model, stable=release, changed_at=timezone.now())
    return production
