"""A rollout on fake servers, and a prober that is turned by hand."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from ledger.core.canonical import canonical_bytes, sha256_of
from registry.core.lifecycle import ReleaseState
from registry.models import Release
from rollouts.models import ProbeTally, Rollout
from rollouts.prober.prober import Prober
from serving.models import Route
from serving.traffic.core.routes import ServerAddress
from tests.contracts.serving_models import serving
from tests.support.fakes.ports import FakeInferenceServer, FakeModel
from tests.support.worlds.factories import make_environment, make_model, make_replica, make_server

#: Golden sets are read by a thread of the prober's, which sees what is committed.
committed = pytest.mark.django_db(transaction=True)
MODEL = "double"
PATH = f"/v2/models/{MODEL}/infer"


def double(arrays: dict[str, Any]) -> dict[str, Any]:
    return {"y": (2 * arrays["x"]).astype(np.float32)}


def body_of(*values: float) -> bytes:
    x = [*values, 0.0, 0.0, 0.0, 0.0][:4]
    return json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": x}]}).encode()


class World:
    """r1 (stable, two servers or one) and r2 (candidate) of one model, a live rollout, and a prober that is turned by hand."""

    def __init__(self, *, with_stable: bool = True, gate_policy: dict[str, Any] | None = None, **prober: Any) -> None:
        self.environment = make_environment("production")
        self.model = make_model(
            MODEL,
            gate_policy=gate_policy or {},
            contract=serving(),
            objectives={"timeout_s": 120, "attempt_timeout_s": 60},
        )
        self.fakes: dict[ServerAddress, FakeInferenceServer] = {}
        self.asked: list[str] = []
        self.stable = self.release(1) if with_stable else None
        self.candidate = self.release(2)
        if self.stable:
            self.stable_model = self.serve(self.stable)
        self.candidate_model = self.serve(self.candidate)
        self.rollout = Rollout.objects.create(
            model=self.model, environment=self.environment, candidate=self.candidate, stable=self.stable, policy={},
            policy_digest="", state="shadowing",
        )  # fmt: skip
        self.route = Route.objects.create(
            environment=self.environment, model=self.model, stable=self.stable or self.candidate,
            candidate=self.candidate if self.stable else None, changed_at=timezone.now(),
        )  # fmt: skip
        self.prober = Prober(lambda endpoint: self.fakes[endpoint], **{"per_s": 1000, "lease_s": 300, **prober})
        self.prober.shadowing.start()

    def release(self, number: int) -> Release:
        manifest = canonical_bytes({"serving": serving(), "number": number})
        return Release.objects.create(
            id=uuid.uuid4(), model=self.model, number=number, state=ReleaseState.SEALED, manifest=manifest.decode(),
            digest=sha256_of(manifest), sealed_at=timezone.now(),
        )  # fmt: skip

    def serve(self, release: Release, port: int = 0) -> FakeModel:
        port = port or 9000 + 10 * int(release.number or 0)
        ordinal = release.replicas.count()
        replica = make_replica(release, self.environment, state="ready", ordinal=ordinal)
        make_server(replica, http_port=port, grpc_port=port + 1)
        model = FakeModel(serving(), double)
        fake = FakeInferenceServer({MODEL: model})
        self.fakes[ServerAddress("127.0.0.1", port, port + 1)] = _noting(fake, release.name, self.asked)
        return model

    def ask(self, *bodies: bytes, route: int | None = None) -> list[bool]:
        """Each body as a mirrored request, one after the other; whether it was taken. Returns when all are compared."""
        taken = []
        for body in bodies:
            taken.append(self.prober.shadowing.take(route or self.route.pk, PATH, {}, body))
            until(lambda: not self.open())
        return taken

    def open(self) -> int:
        return sum(one.open for one in self.prober.shadowing._by_route.values())

    def tally(self) -> tuple[int, int, int, int]:
        """(candidate's attempts, bad, stable's attempts, bad) as they are written after one more turn."""
        self.prober.turn()
        return self.written()

    def written(self) -> tuple[int, int, int, int]:
        one = ProbeTally.objects.get(rollout=self.rollout, guard="wrong")
        return one.candidate_attempts, one.candidate_bad, one.stable_attempts, one.stable_bad

    @property
    def seen(self) -> dict[str, int]:
        return dict(self.prober.book.seen)


def _noting(fake: FakeInferenceServer, name: str, asked: list[str]) -> FakeInferenceServer:
    infer = fake.infer

    def noting(*args: Any, **named: Any) -> Any:
        asked.append(name)
        return infer(*args, **named)

    fake.infer = noting  # type: ignore[method-assign]
    return fake


def until(is_so: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**how: Any) -> World:
        made.append(World(**how))
        return made[-1]

    yield make
    for one in made:
        one.prober.stop()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    made = make_world()
    assert made.prober.turn()
    return made
