"""Overload, hangs and crashes of a real tritonserver, as its reconciler sees them: slow is not dead."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from accounts.core.access import Actor
from accounts.models import Team
from ledger.core.canonical import canonical_bytes, sha256_of
from ledger.models import Event
from registry.models import Release, ServedModel
from serving import queries
from serving.adapters.triton import TritonServer
from serving.agent.blob_cache import BlobCache
from serving.agent.launcher import LocalLauncher
from serving.agent.reconciler import AgentTimings, DeploymentReconciler
from serving.models import Deployment, Environment, Node, Route
from serving.ports import InferenceError, RunningServer
from tests.contracts import serving_models as made

pytestmark = [pytest.mark.real("triton"), pytest.mark.django_db]
SYSTEM = Actor.system("agent:here")
#: Every window shorter than in use, but longer than what the overloaded model takes for one request.
PACE = AgentTimings(patient_timeout=2.0, hung_after=5.0, hung_after_last_stable=8.0, stop_grace=5.0)
SLEEPS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            time.sleep(float(x.max()))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * x).astype(np.float32))]))
        return answers
"""
_numbers = itertools.count(1)


class World:
    """A model that sleeps as many seconds as a request says, on a real server, and the reconciler of its deployment."""

    def __init__(self, folder: Path, pace: AgentTimings, **serving: Any) -> None:
        blobs, model = made.MemoryBlobs(), f"sleeper-{uuid.uuid4().hex[:6]}"
        one_at_a_time = {"max_batch_size": 1, **serving}
        manifest = made.manifest(
            blobs, model, {"artifact/model.py": SLEEPS.encode()}, made.serving(**one_at_a_time), backend="python"
        )
        data = canonical_bytes(manifest)
        team = Team.objects.get_or_create(slug="vision", defaults={"title": "Vision"})[0]
        self.release = Release.objects.create(
            model=ServedModel.objects.create(slug=model, team=team),
            number=1,
            state="sealed",
            manifest=data.decode(),
            digest=sha256_of(data),
            sealed_at=timezone.now(),
        )
        self.environment = Environment.objects.get_or_create(slug="production", defaults={"title": "Production"})[0]
        node = Node.objects.create(name=f"n{next(_numbers)}")
        self.row = Deployment.objects.create(release=self.release, environment=self.environment, node=node)
        self.launcher = LocalLauncher(
            servers=folder / "servers", venv=made.VENV, blobs=BlobCache(folder / "cache", blobs)
        )
        self.reconciler = DeploymentReconciler(
            self.row.pk,
            actor=SYSTEM,
            launcher=self.launcher,
            connect=lambda server: TritonServer(server.host, server.http_port, server.grpc_port),
            pace=pace,
        )
        self._load = ThreadPoolExecutor(16)
        assert self.tend(lambda: self.state == "ready", 30), self.row.reason

    @property
    def state(self) -> str:
        self.row.refresh_from_db()
        return self.row.state

    @property
    def server(self) -> RunningServer:
        found = queries.server_of(self.row)
        assert found
        return RunningServer(
            found.host, found.http_port, found.grpc_port, found.metrics_port, found.pid, Path(found.folder)
        )

    def make_stable(self) -> None:
        Route.objects.create(
            environment=self.environment, model=self.release.model, stable=self.release, changed_at=timezone.now()
        )

    def tend(self, until: Callable[[], bool], most_s: float) -> float:
        """Seconds until `until` held; 0.0 if it did not within `most_s`."""
        began = time.monotonic()
        while time.monotonic() - began < most_s:
            delay = self.reconciler.step()
            if until():
                return time.monotonic() - began
            time.sleep(min(delay or 0.0, 1.0))
        return 0.0

    def ask(self, sleep_s: float, timeout_s: float) -> str:
        """ "ok", or why not."""
        client = TritonServer(self.server.host, self.server.http_port, self.server.grpc_port)
        try:
            client.infer(self.release.model.slug, {"x": np.full((1, 4), sleep_s, np.float32)}, timeout_s=timeout_s)
        except InferenceError as error:
            return error.message
        finally:
            client.close()
        return "ok"

    def load(self, requests: int, sleep_s: float, timeout_s: float) -> None:
        """Sends that many requests at once, and does not wait."""
        server, model = self.server, self.release.model.slug

        def send() -> None:
            client = TritonServer(server.host, server.http_port, server.grpc_port)
            try:
                client.infer(model, {"x": np.full((1, 4), sleep_s, np.float32)}, timeout_s=timeout_s)
            except InferenceError:
                pass
            finally:
                client.close()

        for _ in range(requests):
            self._load.submit(send)

    def stubs(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes()
            except OSError:
                continue
            if b"triton_python_backend_stub" in command and str(self.server.folder).encode() in command:
                found.append(int(path.parent.name))
        return found

    def close(self) -> None:
        self._load.shutdown(wait=False, cancel_futures=True)
        self.launcher.sweep(set())


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made_worlds: list[World] = []

    def start(pace: AgentTimings = PACE, **serving: Any) -> World:
        made_worlds.append(World(tmp_path, pace, **serving))
        return made_worlds[-1]

    yield start
    for world in made_worlds:
        world.close()


@pytest.mark.parametrize(
    "queue",
    [None, {"max_queue_size": 3, "timeout_action": "reject", "default_timeout_us": 0, "allow_timeout_override": False}],
    ids=["long", "full"],
)
def test_an_overloaded_server_is_never_taken_out(make: Callable[..., World], queue: dict[str, Any] | None) -> None:
    """3 s for each request, one at a time, and more of them than it can do: no probe is answered for longer than the window."""
    world = make(queue_policy=queue)
    before = world.server
    world.load(4, sleep_s=3.0, timeout_s=30.0)
    time.sleep(0.2)
    if queue:
        assert "Exceeds maximum queue size" in world.ask(0.0, 1.0)
    else:
        assert world.ask(0.0, 0.5) == "Deadline Exceeded"
    assert not world.tend(lambda: world.state != "ready", 2 * PACE.hung_after)
    assert (
        world.row.recoveries == 0 and world.server == before and queries.ready_server(world.release, world.environment)
    )
    assert not Event.objects.filter(verb="server.lost").exists()
    seen = queries.current_servers()[0].probed_at
    assert world.tend(lambda: queries.current_servers()[0].probed_at != seen, 15)  # and well when the load is over


def test_a_model_that_sleeps_for_ever_is_taken_out_after_the_window_and_comes_back(make: Callable[..., World]) -> None:
    world = make()
    world.load(1, sleep_s=600.0, timeout_s=0.5)
    took_s = world.tend(lambda: world.state == "loading", 15)
    assert PACE.hung_after <= took_s < PACE.hung_after + 2.5
    assert world.row.reason.startswith("it hung: for 5 s") and not queries.current_servers()[0].is_serving
    assert world.tend(lambda: world.state == "ready", 30) and world.ask(0.0, 2.0) == "ok"


def test_a_hang_is_noticed_within_12_s_by_the_paces_in_use(make: Callable[..., World]) -> None:
    world = make(AgentTimings())
    world.load(1, sleep_s=600.0, timeout_s=0.5)
    assert 10 <= world.tend(lambda: world.state == "loading", 20) < 12


def test_a_frozen_server_is_taken_out_after_the_window_and_replaced(make: Callable[..., World]) -> None:
    """The whole server, as a driver's hang does: not even its statistics answer."""
    world = make()
    before = world.server
    os.kill(before.pid, signal.SIGSTOP)
    assert world.tend(lambda: world.state == "loading", 25) >= PACE.hung_after
    assert world.tend(lambda: world.state == "ready", 30) and world.server.pid != before.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["crashed", "frozen"])
def test_a_lost_model_process_is_taken_out_at_once(make: Callable[..., World], number: signal.Signals) -> None:
    """Triton's own word after 1 s, for a frozen process too; and right so: when that one goes on, it takes the server down."""
    world = make()
    os.kill(world.stubs()[0], number)
    assert 0 < world.tend(lambda: world.state == "loading", 5) < 3
    assert "is not healthy" in world.row.reason
    assert world.tend(lambda: world.state == "ready", 20) and world.ask(0.0, 2.0) == "ok"


def test_a_crashed_server_is_taken_out_at_once(make: Callable[..., World]) -> None:
    world = make()
    os.kill(world.server.pid, signal.SIGKILL)
    time.sleep(0.2)
    assert 0 < world.tend(lambda: world.state == "loading", 5) < 2
    assert world.tend(lambda: world.state == "ready", 20)


def test_the_last_server_of_stable_hangs_longer_and_is_brought_back_as_often_as_it_takes(
    make: Callable[..., World],
) -> None:
    world = make(
        dataclasses.replace(PACE, backoff=(0.0,), backoff_most=0.2, hung_after=2.0, hung_after_last_stable=4.0)
    )
    world.make_stable()
    for n in range(1, 4):
        world.load(1, sleep_s=600.0, timeout_s=0.5)
        assert world.tend(lambda: world.state == "loading", 15) >= 4
        assert world.row.reason.startswith("STABLE r1 HAS NO SERVER in production") and world.row.recoveries == n
        assert world.tend(lambda: world.state == "ready", 30) and world.ask(0.0, 2.0) == "ok"
    assert not Event.objects.filter(verb="deployment.failed").exists()
