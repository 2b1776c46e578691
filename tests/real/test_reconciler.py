"""Overload, hangs and crashes of a real tritonserver, as its reconciler sees them: slow is not dead."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import sys
import threading
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
from serving.models import Environment, Node, Replica, Route
from serving.ports import InferenceError, RunningServer
from serving.servers.adapters.triton import TritonServer
from serving.targets import queries
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.launcher import LocalLauncher
from serving.targets.agent.node_launcher import Connect
from serving.targets.agent.reconciler import ReplicaReconciler
from serving.targets.agent.timings import AgentTimings
from tests.contracts import serving_models as made
from tests.support.rigs.gateway_rig import wait_until
from tests.support.rigs.triton_rig import end_at_once

pytestmark = [pytest.mark.real("triton"), pytest.mark.django_db]
SYSTEM = Actor.system("agent:here")
#: Every window shorter than in use, but several times what the overloaded model takes for one request.
PACE = AgentTimings(patient_timeout=2.0, hung_after=3.0, hung_after_last_stable=6.0, stop_grace=0.5)
#: What a request may take by the model's objectives, well above what the overloaded model takes for one.
REQUEST_S = 5.0
#: For what is noticed at once: who waited for a window would wait for minutes.
AT_ONCE = dataclasses.replace(PACE, hung_after=300.0, hung_after_last_stable=300.0)
SOON_S = 60.0
SLEEPS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            seconds = float(x.max())
            ends_at = time.monotonic() - seconds
            while time.monotonic() < ends_at:
                sorted(range(3_000_000), key=lambda value: -value)
            time.sleep(max(seconds, 0.0))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * x).astype(np.float32))]))
        return answers
"""
_numbers = itertools.count(1)


def triton(server: RunningServer) -> TritonServer:
    return TritonServer(server.host, server.http_port, server.grpc_port)


class World:
    """A model that sleeps for the seconds in its request, on a real server, and the reconciler of its replica.

    Below 0 it computes for so long, and keeps its interpreter busy.
    """

    def __init__(
        self, folder: Path, pace: AgentTimings, connect: Connect, timeout_s: float = REQUEST_S, **serving: Any
    ) -> None:
        blobs, model = made.MemoryBlobs(), f"sleeper-{uuid.uuid4().hex[:6]}"
        one_at_a_time = {"max_batch_size": 1, **serving}
        manifest = made.manifest(
            blobs, model, {"artifact/model.py": SLEEPS.encode()}, made.serving(**one_at_a_time), backend="python"
        )
        data = canonical_bytes(manifest)
        team = Team.objects.get_or_create(slug="vision", defaults={"title": "Vision"})[0]
        self.release = Release.objects.create(
            model=ServedModel.objects.create(slug=model, team=team, objectives={"timeout_s": timeout_s}),
            number=1,
            state="sealed",
            manifest=data.decode(),
            digest=sha256_of(data),
            sealed_at=timezone.now(),
        )
        self.environment = Environment.objects.get_or_create(slug="production", defaults={"title": "Production"})[0]
        node = Node.objects.create(name=f"n{next(_numbers)}")
        self.row = Replica.objects.create(release=self.release, environment=self.environment, node=node)
        self.launcher = LocalLauncher(
            servers=folder / "servers", venv=made.VENV, blobs=BlobCache(folder / "cache", blobs)
        )
        self.reconciler = ReplicaReconciler(
            self.row.pk, actor=SYSTEM, launcher=self.launcher, connect=connect, pace=pace
        )
        self._load = ThreadPoolExecutor(16)
        self._enough = threading.Event()

    def begin(self) -> World:
        assert self.tend(lambda: self.state == "ready"), self.row.reason
        return self

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

    def tend(self, until: Callable[[], bool], most_s: float = SOON_S) -> float:
        """Seconds until `until` held; 0.0 if it did not within `most_s`."""
        began = time.monotonic()
        while time.monotonic() - began < most_s:
            delay = self.reconciler.step()
            if until():
                return time.monotonic() - began
            time.sleep(min(delay or 0.0, 1.0))
        return 0.0

    def ask(self, sleep_s: float, timeout_s: float, server: RunningServer | None = None) -> str:
        """ "ok", or why not. With `server`, from a thread that has no connection to the database."""
        client = triton(server or self.server)
        try:
            client.infer(self.release.model.slug, {"x": np.full((1, 4), sleep_s, np.float32)}, timeout_s=timeout_s)
        except InferenceError as error:
            return error.message
        finally:
            client.close()
        return "ok"

    def hang(self) -> None:
        """From now on the model sleeps, though whoever asked has given up."""
        assert self.ask(3600.0, 0.3) == "Deadline Exceeded"

    def load(self, users: int, sleep_s: float) -> None:
        """So many users ask without end, and this does not wait for them."""
        server, model = self.server, self.release.model.slug

        def ask_on() -> None:
            client = triton(server)
            while not self._enough.wait(0.05):
                with contextlib.suppress(InferenceError):
                    client.infer(model, {"x": np.full((1, 4), sleep_s, np.float32)}, timeout_s=30.0)
            client.close()

        for _ in range(users):
            self._load.submit(ask_on)

    def unload(self) -> None:
        self._enough.set()

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
        self._enough.set()
        end_at_once(self.launcher)
        self._load.shutdown()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made_worlds: list[World] = []

    def start(pace: AgentTimings = PACE, connect: Connect = triton, **serving: Any) -> World:
        made_worlds.append(World(tmp_path, pace, connect, **serving))
        return made_worlds[-1].begin()

    yield start
    for world in made_worlds:
        world.close()


@pytest.mark.parametrize(
    "queue",
    [None, {"max_queue_size": 3, "timeout_action": "reject", "default_timeout_us": 0, "allow_timeout_override": False}],
    ids=["long", "full"],
)
def test_an_overloaded_server_is_never_taken_out(make: Callable[..., World], queue: dict[str, Any] | None) -> None:
    """0.5 s for each request, one at a time, and more of them than it can do: no probe is answered for longer than the window."""
    world = make(queue_policy=queue)
    before = world.server
    world.load(16, sleep_s=0.5)
    word = "Exceeds maximum queue size" if queue else "Deadline Exceeded"
    wait_until(lambda: word in world.ask(0.0, 0.5), "it has more to do than it can")
    well = queries.current_servers()[0].probed_at
    assert not world.tend(lambda: world.state != "ready", 2 * PACE.hung_after)
    assert (
        world.row.recoveries == 0 and world.server == before and queries.ready_server(world.release, world.environment)
    )
    assert not Event.objects.filter(verb="server.lost").exists()
    assert queries.current_servers()[0].probed_at == well
    world.unload()
    assert world.tend(lambda: queries.current_servers()[0].probed_at != well)  # and well when the load is over


def test_a_model_that_sleeps_for_ever_is_taken_out_when_every_deadline_has_passed_and_comes_back(
    make: Callable[..., World],
) -> None:
    """Its process answers that it is live all the while."""
    world = make()
    world.hang()
    assert world.tend(lambda: world.state == "loading") >= REQUEST_S
    assert world.row.reason.startswith("it hung: for ") and not queries.current_servers()[0].is_serving
    assert f"a request to it may take {REQUEST_S:g} s" in world.row.reason
    assert world.tend(lambda: world.state == "ready") and world.ask(0.0, 20.0) == "ok"


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_a_frozen_server_is_taken_out_after_the_window_and_replaced(make: Callable[..., World], is_busy: bool) -> None:
    """The whole server, as a driver's hang does. Neither `timeout_s` nor a running request makes a difference."""
    world = make(timeout_s=600)
    before = world.server
    if is_busy:
        world.hang()
        world.tend(lambda: True)
    os.kill(before.pid, signal.SIGSTOP)
    assert world.tend(lambda: world.state == "loading")
    assert "its process did not answer whether it is live" in world.row.reason
    assert world.tend(lambda: world.state == "ready") and world.server.pid != before.pid


@pytest.mark.parametrize("computes", ["sleeps", "keeps its interpreter busy"])
def test_a_request_that_takes_several_windows_is_answered_and_its_server_stays(
    make: Callable[..., World], computes: str
) -> None:
    """By the paces in use: 45 s of the 120 s that the model allows, with health probes that wait behind it."""
    world = make(AgentTimings(stop_grace=0.5), timeout_s=120)
    before, sleep_s = world.server, 45.0 if computes == "sleeps" else -45.0
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(world.ask, sleep_s, 120.0, before)
        assert world.tend(answer.done, 120.0) >= 40
        assert answer.result() == "ok"
    assert (world.state, world.row.recoveries, world.server) == ("ready", 0, before)
    assert not Event.objects.filter(verb="server.lost").exists()
    well = queries.current_servers()[0].probed_at
    assert world.tend(lambda: queries.current_servers()[0].probed_at != well)  # and probes are answered again


def test_probes_of_a_model_that_always_takes_6_s_leave_it_to_its_users(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the paces in use: each probe is late, and its server computes it although the agent left."""
    monkeypatch.setattr(sys.modules[__name__], "SLEEPS", SLEEPS.replace("float(x.max())", "6.0"))
    world = make(AgentTimings(stop_grace=0.5), timeout_s=30)
    assert not world.tend(lambda: world.state != "ready", 45.0)
    rows = triton(world.server).statistics(world.release.model.slug)["model_stats"]
    assert int(rows[0]["inference_stats"]["success"]["count"]) == 2  # the warm-up and one probe
    assert world.row.recoveries == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["crashed", "frozen"])
def test_a_lost_model_process_is_taken_out_at_once(make: Callable[..., World], number: signal.Signals) -> None:
    """Triton's own word after 1 s, for a frozen process too; and right so: when that one goes on, it takes the server down."""
    world = make(AT_ONCE)
    os.kill(world.stubs()[0], number)
    assert world.tend(lambda: world.state == "loading", SOON_S)
    assert "is not healthy" in world.row.reason
    assert world.tend(lambda: world.state == "ready") and world.ask(0.0, 20.0) == "ok"


def test_a_crashed_server_is_taken_out_at_once(make: Callable[..., World]) -> None:
    world = make(AT_ONCE)
    os.kill(world.server.pid, signal.SIGKILL)
    assert world.tend(lambda: world.state == "loading", SOON_S)
    assert "it hung" not in world.row.reason
    assert world.tend(lambda: world.state == "ready")


def test_the_last_server_of_stable_hangs_longer_and_is_brought_back_as_often_as_it_takes(
    make: Callable[..., World],
) -> None:
    windows = {"probe_timeout": 0.5, "patient_timeout": 0.5, "hung_after": 1.0, "hung_after_last_stable": 2.0}
    world = make(dataclasses.replace(PACE, backoff=(0.0,), backoff_most=0.2, **windows), timeout_s=1)
    world.make_stable()
    for n in range(1, 4):
        world.hang()
        assert world.tend(lambda: world.state == "loading") >= 2.0
        assert world.row.reason.startswith("STABLE r1 HAS NO SERVER in production") and world.row.recoveries == n
        assert world.tend(lambda: world.state == "ready") and world.ask(0.0, 20.0) == "ok"
    assert not Event.objects.filter(verb="deployment.failed").exists()


def test_a_server_that_leaves_stays_until_its_running_request_is_answered(make: Callable[..., World]) -> None:
    """20 s of the 120 s that the model allows, and 2 s are its drain. A rollback, a scale down and a drained node end one so."""
    world = make(dataclasses.replace(PACE, drain=0.5), timeout_s=120)
    before = world.server
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(world.ask, 20.0, 120.0, before)
        wait_until(lambda: world.launcher.open_requests(before) == 2, "the request has come; the agent watches too")
        Replica.objects.filter(pk=world.row.pk).update(is_wanted=False)
        assert world.tend(lambda: world.state == "gone") >= 15
        assert answer.result() == "ok"
    assert "open connections" not in world.row.reason


def test_a_server_that_leaves_waits_no_longer_than_any_request_may_take(make: Callable[..., World]) -> None:
    world = make(dataclasses.replace(PACE, drain=0.0), timeout_s=1)
    before = world.server
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(world.ask, 600.0, 600.0, before)
        wait_until(lambda: world.launcher.open_requests(before) == 2, "the request has come; the agent watches too")
        Replica.objects.filter(pk=world.row.pk).update(is_wanted=False)
        assert world.tend(lambda: world.state == "gone")
        assert answer.result() != "ok"
    assert "after 1 s it still had 1 open connections" in world.row.reason
