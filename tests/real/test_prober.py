"""The prober's own process behind a real Envoy, with real Tritons: what it finds, what it costs, and when it dies."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone
from tritonclient import grpc as triton_grpc

from ledger.adapters.deadline_http import DeadlineConnection
from ledger.core.canonical import canonical_bytes, sha256_of
from ledger.models import Lease
from ledger.queries.clock import DatabaseClock
from registry.core.lifecycle import ReleaseState
from registry.models import Release
from rollouts.core.watch.sequential_test import PAGE
from rollouts.models import Alarm, Mismatch, ProbeTally, Rollout
from rollouts.prober.prober import LEASE
from rollouts.queries.prober_tallies import STALE_S, wrong_readings
from rollouts.watch.stable_watch import StableWatch
from serving.models import Route, Server
from serving.ports import RunningServer
from serving.targets.agent.launcher import LocalLauncher
from serving.traffic.adapters.mirror_secret import mirror_secret
from serving.traffic.control_plane.clusters import MIRROR_TIMEOUT_S
from serving.traffic.control_plane.virtual_hosts import MIRROR_SECRET_HEADER
from serving.traffic.core.routes import Arm, Prober, ServerAddress
from tests.contracts import serving_models as made
from tests.support.rigs.engine_rig import leading
from tests.support.rigs.gateway_rig import Rig, rig, wait_until
from tests.support.rigs.triton_rig import local_launcher
from tests.support.worlds.factories import make_actor, make_environment, make_model, make_replica, make_server
from tests.support.worlds.rollout_setup import report_for
from validators.actions import add_golden_set
from validators.core.policy import parse_policy
from validators.models import GateResult, GateRun

pytestmark = [
    pytest.mark.real("triton", "onnx", "envoy"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(300),
]
MODEL = "double"
PATH = f"/v2/models/{MODEL}/infer"
#: Every tenth of the users' inputs (those that begin with 3, 13, …) gets one value that is off by a hundredth.
SUBTLY_WRONG = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            y = (2 * x).astype(np.float32)
            y[x[:, 0] % 10 == 3, 1] *= 1.01
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return answers
"""


class Tritons:
    """Real servers: `stable`, `same` (the same graph once more), and `wrong`."""

    def __init__(self, launcher: LocalLauncher, manifests: dict[str, dict[str, Any]]) -> None:
        self._launcher, self._manifests = launcher, manifests
        self._started: dict[str, RunningServer] = {}

    def __getitem__(self, name: str) -> RunningServer:
        return self._started[name]

    def ended(self) -> list[str]:
        """A Triton dies of a stall: docs/operations.md, *A server that was stalled*."""
        return [
            f"{name} ended with {self._launcher.exit_code(server)}"
            for name, server in self._started.items()
            if not self._launcher.is_alive(server)
        ]

    def start(self) -> None:
        """All that do not run."""
        due = [one for one in self._manifests if one not in self._started or not self._launcher.is_alive(self[one])]
        for name in due:
            folder = self._launcher.folder_for(len(due), MODEL, name)
            self._started[name] = self._launcher.start(made.launch_spec(self._manifests[name], folder))
        for name in due:
            self._launcher.await_loaded(self[name], MODEL, timeout_s=60)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tritons]:
    blobs = made.MemoryBlobs()
    wrong = made.manifest(blobs, MODEL, {"artifact/model.py": SUBTLY_WRONG.encode()}, made.serving(), backend="python")
    manifests = {"stable": made.doubling(blobs, MODEL), "same": made.doubling(blobs, MODEL), "wrong": wrong}
    with local_launcher(tmp_path_factory.mktemp("node"), blobs) as launcher:
        yield Tritons(launcher, manifests)


@pytest.fixture
def tritons(started: Tritons) -> Iterator[Tritons]:
    """They live when the test begins; a test in which one ended says so, whatever else it found."""
    started.start()
    yield started
    assert started.ended() == []


class ProberProcess:
    """`manage.py run_prober` on the test's database."""

    def __init__(self, folder: Path) -> None:
        self.address, self.log = f"unix:{folder / 'prober.sock'}", folder / "prober.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        values = connection.settings_dict
        secret = f":{values['PASSWORD']}" if values["PASSWORD"] else ""
        url = f"postgresql://{values['USER']}{secret}@/{values['NAME']}?host={values['HOST']}&port={values['PORT']}"
        dropped = {"DATABASE_URL", "DATABASE_URL_FILE"}
        env = {key: value for key, value in os.environ.items() if key not in dropped}
        ours = {
            "SLUICEGATE_BLOB_STORE": settings.BLOB_STORE, "SLUICEGATE_ENGINE_LEASE_S": "2", "SLUICEGATE_PROBER_PER_S": "100",
        }  # fmt: skip
        argv = [sys.executable, "manage.py", "run_prober", "--address", self.address]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, cwd=settings.BASE_DIR, env={**env, **ours, "DATABASE_URL": url}, stdout=log, stderr=log
            )
        wait_until(lambda: self.status().get("leads"), "the prober leads")

    def status(self) -> dict[str, Any]:
        try:
            with DeadlineConnection(self.address, time.monotonic() + 20) as line:
                status, body = line.ask("GET", "/status", headers={MIRROR_SECRET_HEADER: mirror_secret()})
        except (OSError, http.client.HTTPException):
            return {}
        assert status == 200
        found: dict[str, Any] = json.loads(body)
        return found

    def seen(self, what: str) -> int:
        return int(self.status().get("seen", {}).get(what, 0))

    def end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process = None
        return code


class World:
    """A live rollout of `candidate` over the stable release, routed by a real Envoy that mirrors to a real prober."""

    def __init__(
        self, parts: Rig, prober: ProberProcess, tritons: Tritons, candidate: str, golden: bytes = b""
    ) -> None:
        self.parts, self.prober, self.tritons = parts, prober, tritons
        self.environment = make_environment("production")
        self.model = make_model(MODEL, contract=made.serving())
        if golden:
            actor = make_actor(team=self.model.team)
            self.model.gate_policy = {
                "golden": {"set": add_golden_set(actor=actor, model=self.model, data=golden)[0].digest}
            }
            self.model.save()
        self.stable, self.candidate = self._release(1, "stable"), self._release(2, candidate)
        self.arms = [self._arm(self.stable, "stable"), self._arm(self.candidate, candidate)]
        self.rollout = Rollout.objects.create(
            model=self.model, environment=self.environment, candidate=self.candidate, stable=self.stable, policy={},
            policy_digest="", state="shadowing",
        )  # fmt: skip
        self.route = Route.objects.create(
            environment=self.environment, model=self.model, stable=self.stable, candidate=self.candidate,
            changed_at=timezone.now(),
        )  # fmt: skip
        self.mirror(0)
        self.prober.start()

    def _release(self, number: int, name: str) -> Release:
        manifest = canonical_bytes({"serving": made.serving(), "name": name})
        return Release.objects.create(
            id=uuid.uuid4(), model=self.model, number=number, state=ReleaseState.SEALED, manifest=manifest.decode(),
            digest=sha256_of(manifest), sealed_at=timezone.now(),
        )  # fmt: skip

    def _arm(self, release: Release, name: str) -> Arm:
        at = self.tritons[name]
        replica = make_replica(release, self.environment, state="ready")
        make_server(replica, http_port=at.http_port, grpc_port=at.grpc_port)
        return Arm(release.name, str(release.digest), (ServerAddress("127.0.0.1", at.http_port, at.grpc_port),))

    def mirror(self, mirror_bp: int, *, candidate_bp: int = 0) -> None:
        stable, candidate = self.arms
        self.parts.apply(
            candidate_bp, model=MODEL, route_id=self.route.pk, stable=stable, candidate=candidate, mirror_bp=mirror_bp,
            prober=Prober.at(self.prober.address, mirror_secret()),
        )  # fmt: skip

    def tally(self) -> ProbeTally:
        return ProbeTally.objects.get(rollout=self.rollout, guard="wrong")

    def settled(self) -> ProbeTally:
        """The tally once everything that was taken is compared and written."""
        wait_until(lambda: self.prober.seen("taken") == self.prober.seen("shadow_compared"), "all compared")
        written = self.tally().at
        wait_until(lambda: self.tally().at > written, "written")
        return self.tally()


@pytest.fixture
def make_world(tmp_path: Path, tritons: Tritons, transactional_db: None) -> Iterator[Callable[..., World]]:
    with rig(tmp_path) as parts:
        prober = ProberProcess(tmp_path)

        def make(candidate: str, **how: Any) -> World:
            return World(parts, prober, tritons, candidate, **how)

        try:
            yield make
        finally:
            prober.end(signal.SIGKILL)


class Users:
    """Requests at a steady rate by every way of the protocol; each answer is checked."""

    def __init__(self, parts: Rig, *, rate_per_s: float) -> None:
        self.seconds: list[float] = []
        self.failures: list[str] = []
        self._period_s, self._stop = 1 / rate_per_s, threading.Event()
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{parts.envoy.port}", timeout=10, trust_env=False)
        self._grpc = triton_grpc.InferenceServerClient(f"127.0.0.1:{parts.envoy.port}")
        self._thread = threading.Thread(target=self._ask_on, daemon=True)

    def __enter__(self) -> Users:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        self._http.close()
        self._grpc.close()

    def _ask_on(self) -> None:
        due = time.monotonic()
        number = 0
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(
                due + self._period_s, time.monotonic()
            )  # what a busy machine missed is not made up for in a burst
            x = np.array([[number % 20, 10, 20, 30]], np.float32)
            began = time.monotonic()
            try:
                found = (self._as_json, self._as_binary, self._as_grpc)[number % 3](x)
                if not np.array_equal(found.ravel(), 2 * x.ravel()):
                    self.failures.append(f"wrong: {found}")
            except Exception as error:
                self.failures.append(repr(error))
            self.seconds.append(time.monotonic() - began)
            number += 1

    def _as_json(self, x: Any) -> Any:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": x.ravel().tolist()}
        answer = self._http.post(PATH, json={"inputs": [tensor]}).raise_for_status().json()
        return np.array(answer["outputs"][0]["data"])

    def _as_binary(self, x: Any) -> Any:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
        outputs = [{"name": "y", "parameters": {"binary_data": True}}]
        head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
        headers = {"inference-header-content-length": str(len(head))}
        answer = self._http.post(PATH, content=head + x.tobytes(), headers=headers).raise_for_status()
        return np.frombuffer(answer.content[int(answer.headers["inference-header-content-length"]) :], np.float32)

    def _as_grpc(self, x: Any) -> Any:
        tensor = triton_grpc.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(x)
        return self._grpc.infer(MODEL, [tensor]).as_numpy("y")


def test_an_identical_release_shows_no_mismatch_and_users_notice_nothing(make_world: Callable[..., World]) -> None:
    world = make_world("same")
    world.mirror(10_000, candidate_bp=2000)
    with Users(world.parts, rate_per_s=60) as users:
        wait_until(lambda: world.prober.seen("shadow_compared") >= 120, "120 comparisons")
    found = world.settled()
    assert users.failures == []
    assert found.candidate_attempts == found.stable_attempts >= 120
    assert (found.candidate_bad, found.stable_bad) == (0, 0)
    assert not Mismatch.objects.exists()
    assert {"malformed", "unsupported", "stable_failed", "broke"} & set(world.prober.status()["seen"]) == set()


def test_a_subtly_wrong_candidate_is_counted_so(make_world: Callable[..., World]) -> None:
    world = make_world("wrong")
    world.mirror(10_000)
    with Users(world.parts, rate_per_s=60) as users:
        wait_until(lambda: world.prober.seen("shadow_compared") >= 200, "200 comparisons")
    found = world.settled()
    assert users.failures == []  # no user was ever served by it
    assert found.stable_bad == 0
    # 2 of 20 inputs are wrong; dropped copies make it a little uneven
    assert found.candidate_bad / found.candidate_attempts == pytest.approx(0.1, abs=0.03)
    shown = Mismatch.objects.filter(rollout=world.rollout)
    assert {one.summary for one in shown} == {"r2: y[0, 1] is 20.2, expected 20 (1 of 4 values differ)"}
    assert len({one.facts["input_digest"] for one in shown}) == 2


def test_golden_items_are_probed_directly(make_world: Callable[..., World]) -> None:
    # the largest number is where it was put; where the first is 3, the second comes out too large
    lines = [{"id": f"i{n}", "inputs": {"x": [n, 20, 20.1, 0]}, "label": 2} for n in (1, 2, 3, 4)]
    world = make_world("wrong", golden="\n".join(map(json.dumps, lines)).encode())
    wait_until(lambda: world.prober.seen("golden_compared") >= 4, "one round")
    found = world.settled()
    rounds = found.candidate_attempts // 4
    assert rounds <= found.candidate_bad <= rounds + 1
    assert (found.stable_attempts, found.stable_bad) == (found.candidate_attempts, 0)
    shown = Mismatch.objects.filter(rollout=world.rollout)
    assert {one.summary for one in shown} == {"r2: golden item i3: answers 1, expected 2"}


class NoTraffic:
    """Gateways that count nothing."""

    def read(self, **_: Any) -> dict[str, Any]:
        return {}


def test_stable_without_traffic_that_turns_wrong_pages_within_90_s(make_world: Callable[..., World]) -> None:
    # the server `wrong` answers these inputs wrongly
    lines = [{"id": f"i{n}", "inputs": {"x": [n, 20, 20.1, 0]}, "label": 2} for n in (3, 13)]
    world = make_world("same", golden="\n".join(map(json.dumps, lines)).encode())
    report = report_for(world.candidate)
    policy = parse_policy(world.model.gate_policy).document
    GateRun.objects.filter(pk=report.gate_run_id).update(policy=policy)
    proven = {"accuracy": {"value": 1.0}, "predictions": [2, 2]}
    GateResult.objects.create(gate_run=report.gate_run, gate="golden", position=0, verdict="passed", evidence=proven)
    Rollout.objects.filter(pk=world.rollout.pk).update(state="promoted", report=report)
    Route.objects.update(stable=world.candidate, candidate=None)
    clock = DatabaseClock()
    watch, due, broken_at = StableWatch(NoTraffic(), leading(), clock.now), time.monotonic(), 0.0  # type: ignore[arg-type]

    def tally() -> ProbeTally | None:
        return ProbeTally.objects.filter(rollout=world.rollout, guard="probe").first()

    while not (alarm := Alarm.objects.first()):
        time.sleep(max(0.0, due - time.monotonic()))
        due += PAGE.bin_s
        clock.sync()
        watch.turn()
        told = tally()
        if not broken_at and told is not None and told.candidate_attempts >= 2:
            assert (told.candidate_bad, told.stable_bad) == (0, 0) and told.stable_attempts == told.candidate_attempts
            at = world.tritons["wrong"]
            Server.objects.filter(replica__release=world.candidate).update(
                http_port=at.http_port, grpc_port=at.grpc_port
            )
            broken_at = time.monotonic()
        assert not broken_at or time.monotonic() - broken_at < 100
    assert (alarm.objective, alarm.tier) == ("probe", "page")
    assert time.monotonic() - broken_at <= 90
    found = tally()
    assert found is not None and found.candidate_bad >= 7 and found.stable_bad == 0


def test_a_frozen_prober_costs_no_user_anything_and_its_tally_grows_old(make_world: Callable[..., World]) -> None:
    world = make_world("same")
    world.mirror(10_000, candidate_bp=2000)
    with Users(world.parts, rate_per_s=30) as users:
        wait_until(lambda: world.prober.seen("shadow_compared") >= 30, "some comparisons")
        well = list(users.seconds)
        assert world.prober.process is not None
        world.prober.process.send_signal(signal.SIGSTOP)
        users.seconds.clear()
        time.sleep(STALE_S + 1.5)
        frozen = list(users.seconds)
        reading = wrong_readings([world.rollout.pk])[world.rollout.pk]
        assert timezone.now().timestamp() - reading.at > STALE_S
        world.prober.process.send_signal(signal.SIGCONT)
        wait_until(lambda: world.tally().at.timestamp() > reading.at + STALE_S, "it writes again")
        assert world.tally().epoch == reading.epoch  # nobody led meanwhile, so its term and its count go on
    assert users.failures == []
    for share in (0.5, 0.9):  # of a copy that is awaited, all would wait for the whole time
        assert np.quantile(frozen, share) < np.quantile(well, share) + MIRROR_TIMEOUT_S / 2


def test_a_killed_prober_is_replaced_and_a_polite_end_is_clean(make_world: Callable[..., World]) -> None:
    world = make_world("same")
    world.mirror(10_000)
    with Users(world.parts, rate_per_s=30) as users:
        wait_until(lambda: world.prober.seen("shadow_compared") >= 30, "some comparisons")
        wait_until(lambda: ProbeTally.objects.filter(candidate_attempts__gt=0).exists(), "written")
        first = world.tally()
        world.prober.end(signal.SIGKILL)
        world.prober.start()  # on the same port, once the lease ran out
        wait_until(lambda: world.tally().epoch != first.epoch and world.tally().candidate_attempts > 10, "counting")
    assert users.failures == []
    assert world.prober.end(signal.SIGTERM) == 0
    assert Lease.objects.get(name=LEASE).expires_at is None
    assert "Traceback" not in world.prober.log.read_text()
