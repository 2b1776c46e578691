"""Replicas, an agent that is turned by hand, and fake servers under a clock that a test turns."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from accounts.models import Team
from ledger.core.canonical import canonical_bytes, sha256_of
from ledger.models import Event
from registry.models import Release, ServedModel
from serving.environments.core.lifecycle import ReplicaState
from serving.models import Environment, Node, Replica
from serving.ports import LaunchSpec
from serving.targets import actions
from serving.targets.agent import health_check, reconciler
from serving.targets.agent.reconciler import ReplicaReconciler
from serving.targets.agent.timings import AgentTimings
from tests.support.fakes import ports
from tests.support.fakes.ports import FakeLauncher, FakeModel

IMAGE = f"local/triton-onnx@sha256:{'a' * 64}"
RUNTIME = {"image": IMAGE, "server": "triton", "backends": ["sluicegate-onnx", "python"], "versions": {}}
SYSTEM = Actor.system("test")
S = ReplicaState
QUICK = AgentTimings(
    probe_every=0.01,
    probe_timeout=0.05,
    patient_timeout=0.05,
    live_timeout=0.05,
    hung_after=0.2,
    hung_after_last_stable=0.5,
    warmup_timeout=0.1,
    drain=0.0,
    backoff=(0.0, 0.0, 0.0),
    backoff_most=7.0,
    healthy_after=1e9,
    retry_failed_after=0.0,
)
_numbers = itertools.count(1)


class Clock:
    """Stands in for the module `time` in the agent and in the fake servers: time passes where somebody sleeps, and nowhere else.

    Each look takes a little of it, as every look does.
    """

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now

    perf_counter = monotonic

    def perf_counter_ns(self) -> int:
        return int(self.monotonic() * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (reconciler, health_check, ports):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def staging() -> Environment:
    return Environment.objects.get_or_create(slug="staging", defaults={"title": "Staging", "is_routed": False})[0]


@pytest.fixture
def production() -> Environment:
    return Environment.objects.get_or_create(slug="production", defaults={"title": "Production"})[0]


@pytest.fixture
def node() -> Node:
    return Node.objects.create(name="local", runtimes=[RUNTIME], seen_at=timezone.now())


@pytest.fixture
def model() -> ServedModel:
    team = Team.objects.create(slug="vision", title="Vision")
    return ServedModel.objects.create(slug="doubling", team=team)


def sealed(
    model: ServedModel, *, image: str = IMAGE, code: bool = False, limits: dict[str, Any] | None = None, **serving: Any
) -> Release:
    number = next(_numbers)
    manifest = {
        "schema": "sluicegate/manifest/v2",
        "model": model.slug,
        "files": [],
        "envelope": {"limits": limits} if limits else {},
        "provenance": {"n": number},
        "runtime": {"image": image, "server": "triton", "backend": "sluicegate-onnx"},
        "serving": {
            "max_batch_size": 8,
            "inputs": [{"name": "x", "data_type": "FP32", "dims": [4]}],
            "outputs": [{"name": "y", "data_type": "FP32", "dims": [4]}],
            "warmup": [],
            **serving,
        },
    }
    data = canonical_bytes(manifest)
    return Release.objects.create(
        id=uuid.uuid4(),
        model=model,
        number=number,
        state="sealed",
        manifest=data.decode(),
        digest=sha256_of(data),
        is_code_bearing=code,
        sealed_at=timezone.now(),
    )


@pytest.fixture
def release(model: ServedModel) -> Release:
    return sealed(model)


def ensure(release: Release, environment: Environment, actor: Actor = SYSTEM) -> Replica:
    return actions.ensure_replica(actor=actor, release=release, environment=environment, reason="a test wants it")


def verbs_of(replica: Replica) -> list[str]:
    return list(
        Event.objects.filter(subject_type="deployment", subject_id=str(replica.pk))
        .order_by("seq")
        .values_list("verb", flat=True)
    )


class World:
    """One replica, its reconciler, and fake servers that can be broken."""

    def __init__(self, release: Release, environment: Environment, clock: Clock, pace: AgentTimings = QUICK) -> None:
        self.clock = clock
        self.behaviour = FakeModel({}, lambda arrays: {"y": 2 * arrays["x"]})
        self.launcher = FakeLauncher([RUNTIME], self._make)
        self.row = ensure(release, environment)
        self.pace = pace
        self.reconciler = self.new_reconciler()

    def _make(self, spec: LaunchSpec) -> FakeModel:
        self.behaviour.serving = spec.manifest["serving"]
        return self.behaviour

    def new_reconciler(self) -> ReplicaReconciler:
        return ReplicaReconciler(
            self.row.pk,
            actor=Actor.system("agent:local"),
            launcher=self.launcher,
            connect=self.launcher.connect,
            pace=self.pace,
        )

    @property
    def state(self) -> str:
        self.row.refresh_from_db()
        return self.row.state

    @property
    def server(self) -> Any:
        ((_, server),) = self.launcher.running.values()
        return server

    def step(self) -> float | None:
        """One step of the reconciler. Waits for the delay that it asks for while the server is up."""
        delay = self.reconciler.step()
        if self.state == S.READY:
            self.clock.sleep(delay or 0.0)
        return delay

    def until(self, state: ReplicaState, most: int = 30) -> Replica:
        for _ in range(most):
            if self.state == state:
                return self.row
            self.step()
        raise AssertionError(f"it is {self.state} ({self.row.reason}), not {state}, after {most} steps")


@pytest.fixture
def world(release: Release, staging: Environment, node: Node, clock: Clock) -> World:
    return World(release, staging, clock)
