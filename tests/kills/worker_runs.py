"""A worker that runs gates, killed at its writes: the next one goes on, and there is one verdict for each gate and one report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.conf import settings
from django.db.models import F
from django.utils import timezone

import validators.execution.exclusive
import validators.execution.gpu_watch
import validators.execution.run
import validators.tasks
from ledger.core.canonical import canonical_bytes, sha256_of
from ledger.core.lifecycle import JobState
from ledger.models import Job
from ledger.tasks import run_job
from serving.models import Replica, Server
from serving.targets.agent.gpu_reader import GpuReader
from serving.targets.core.gpu import GpuReading, with_servers
from serving.targets.core.use import Reading, Use
from serving.targets.local_trial import LocalServer
from tests.kills import checks, databases
from tests.kills.campaign import Played
from tests.kills.points import Point, Points, sites_in
from tests.kills.process import Child, fork
from tests.kills.stage import Stage
from tests.kills.stories import ADMIN, serve
from tests.support.fakes.nvml import replayed
from tests.support.fakes.ports import FakeInferenceServer, FakeModel
from tests.support.worlds.factories import (
    make_admin,
    make_blob,
    make_environment,
    make_manifest,
    make_model,
    make_node,
    make_release,
)
from tests.support.worlds.gate_setup import LoadClock
from validators import actions

LEASE_S = 0.6
LONGEST_S = 120.0
POLICY = {
    "gates": ["contract", "cold_start", "golden"],
    "golden": {"min_accuracy": 0.7, "alone_items": 4, "batch_size": 8},
    "cold_start": {"inferences": 5},
}
#: So short a load proves nothing; what counts is that it is asked once and for all, and that its machine is given back. However
#: late a busy machine sends it.
LOAD = {
    "gates": ["contract", "load"],
    "golden": {},
    "load": {"rate_per_s": 100, "duration_s": 0.5, "burst_s": 0.5, "max_lag_ms": 60_000, "undecided": "allow"},
}


#: A soak of its own, since the load is too short to tell of leaks.
RESOURCES = {
    "gates": ["contract", "load", "resources"],
    "golden": {},
    "load": {"rate_per_s": 100, "duration_s": 0.5, "burst_s": 0, "max_lag_ms": 60_000, "undecided": "allow"},
    "resources": {"min_requests": 160, "max_soak_s": 2},
}
#: The least that a search may have; its time is the load generator's own (`without_waiting`).
CAPACITY = {
    "gates": ["contract", "capacity"],
    "golden": {},
    "load": {"rate_per_s": 20, "slo_ms": 60_000, "slo_quantile": 0.9},
    "capacity": {"most_per_s": 20, "budget_s": 20},
}
#: The same load beside the gpu gate, on a GPU that was well; and one that no server's objective holds, on a GPU that was broken.
GPU = {**LOAD, "gates": ["contract", "load", "gpu"]}
GPU_AT_FAULT = {**GPU, "load": {**LOAD["load"], "slo_ms": 1e-3, "slo_quantile": 0.9}}  # type: ignore[dict-item]
NVIDIA = {"accelerator": {"vendor": "nvidia", "memory_mib_min": 9000}}
#: The agent's readings come so much later than what they tell of, so that the gate has to wait for the last.
GPU_LAG_S = 1.2


def judge_text(tensors: dict[str, Any]) -> dict[str, Any]:
    right = [b"good" in text for text in tensors["TEXT"].ravel()]
    return {"probabilities": np.array([[0.1, 0.9] if good else [0.8, 0.2] for good in right], np.float32)}


def golden_lines(count: int = 24) -> bytes:
    items = [
        {"id": f"i{i}", "inputs": {"TEXT": f"{'good' if i % 2 else 'bad'} {i}"}, "label": i % 2, "slice": "ab"[i < 12]}
        for i in range(count)
    ]
    return b"\n".join(json.dumps(item).encode() for item in items)


def client(server: LocalServer) -> FakeInferenceServer:
    """The server that every replica gets here."""
    release = server.row.replica.release
    return FakeInferenceServer({release.model.slug: FakeModel(json.loads(release.manifest)["serving"], judge_text)})


def steady(_: LocalServer, *, since_s: float, until_s: float) -> list[Reading]:
    """What the agent reads of it: it always holds the same."""
    use = Use(memory_bytes=2**26, own_bytes=2**25, shared_bytes=0, cpu_s=1.0, open_files=20)
    return [Reading(float(at_s), use) for at_s in np.arange(since_s, until_s, 0.01)]


def reads_gpus(recording: str) -> None:
    """For this process: the agent reads every half second what this recording says, of the server's own process."""
    with replayed(recording) as library:
        reader = GpuReader()
        reader.read()
        library.at = 1
        told = reader.read()
    since_s = time.time() - 3600

    def readings(server: LocalServer) -> list[GpuReading]:
        since_s, seen = server.started_at.timestamp(), with_servers(heard, {4242: Server.objects.latest("pk").pk})
        return [replace(seen, at_s=float(at_s)) for at_s in np.arange(since_s, time.time() - GPU_LAG_S, 0.5)]

    heard = replace(told, gpus=tuple(replace(gpu, xids_since_s=since_s) for gpu in told.gpus))
    LocalServer.gpu_readings = readings  # type: ignore[method-assign]


def without_waiting() -> None:
    """For this process, requests are due one after the other as fast as they can be sent."""
    LoadClock(pytest.MonkeyPatch())


def comes_up(replica: Replica) -> None:
    Replica.objects.filter(pk=replica.pk).update(timings={"fetch_s": 0.5, "load_s": 1.5, "warmup_s": 0.2})
    serve(replica)


def came_up(replica: Replica) -> None:
    """A minute ago, so that its GPUs were read before the first gate."""
    comes_up(replica)
    Server.objects.update(started_at=timezone.now() - timedelta(minutes=1))


def fails(replica: Replica) -> None:
    Replica.objects.filter(pk=replica.pk).update(state="failed", reason="onnxruntime cannot read the model.")


def has_died_too_often() -> None:
    """As if its workers had died as often as is allowed, the last one long ago."""
    Job.objects.update(
        state=JobState.RUNNING,
        owner="somebody",
        attempts=F("max_attempts"),
        lease_until=timezone.now(),
        sent_at=timezone.now(),
    )


def worker(trace: Path, at: Point | None, job_id: str, prepare: Callable[[], object]) -> None:
    """What a Celery worker does when it is handed the job's id."""
    Points(str(trace), at).watch()
    settings.JOB_LEASE_S = LEASE_S
    validators.execution.exclusive._TERM_S, validators.execution.exclusive._RENEW_EVERY_S = LEASE_S, LEASE_S / 4
    if at is not None and at.is_freeze:  # who goes on after it may wait for its processor for longer
        databases.let_go_after(0.8)
    LocalServer.client, LocalServer.readings = client, steady  # type: ignore[assignment,method-assign]
    prepare()
    run_job(job_id)


@dataclass(frozen=True)
class WorkerVictim:
    """The worker in one story of a gate run. `agent` is what becomes of the replica that it asks for.

    `prepare` is done in each worker's process.
    """

    story: str
    verdict: str
    agent: Callable[[Replica], None] = comes_up
    beforehand: Callable[[], object] = lambda: None
    policy: Mapping[str, Any] = field(default_factory=lambda: POLICY)
    prepare: Callable[[], object] = lambda: None
    envelope: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "worker"
    can_freeze: bool = True

    @property
    def name(self) -> str:
        return f"worker, {self.story}"

    @property
    def template(self) -> str:
        return f"kills_worker_{self.story.replace(' ', '_')}"

    def make_template(self) -> None:
        databases.copy(databases.BASE, self.template)
        databases.use(self.template)
        admin = make_admin(ADMIN)
        make_node()
        make_environment("staging", is_routed=False)
        model = make_model("sentiment", gate_policy=self.policy)
        golden, _ = actions.add_golden_set(actor=admin, model=model, data=golden_lines())
        model.gate_policy = {**self.policy, "golden": {**self.policy["golden"], "set": golden.digest}}
        model.save()
        manifest = canonical_bytes({**make_manifest(model.slug, make_blob()), "envelope": self.envelope})
        release = make_release(model, manifest=manifest.decode(), digest=sha256_of(manifest))
        actions.request_gate_run(actor=admin, release=release)
        self.beforehand()
        databases.use("postgres")

    def play(self, folder: Path, at: Point | None) -> Played:
        return Validating(self, folder, at).play()


@dataclass
class Validating(Stage):
    victim: WorkerVictim
    folder: Path
    at: Point | None
    workers: list[Child] = field(default_factory=list)
    attempts: int = 0  # before this run

    @property
    def template(self) -> str:
        return self.victim.template

    def tell(self) -> None:
        job = Job.objects.get()
        self.attempts = job.attempts
        self._start(str(job.pk))
        until = time.monotonic() + LONGEST_S
        while job.state in (JobState.QUEUED, JobState.RUNNING) or not self.workers[-1].is_over:
            if self.workers[-1].is_over or (self.workers[-1].is_frozen and len(self.workers) == 1):
                self._start(str(job.pk))  # the message comes again; as long as the lease holds, nothing comes of it
            for replica in Replica.objects.filter(state="fetching", is_wanted=True):
                self.victim.agent(replica)
            assert time.monotonic() < until, f"still {job.state} after {LONGEST_S:g} s: {job.progress_note}"
            time.sleep(0.03)
            job.refresh_from_db()
        first = self.workers[0]
        self.played.was_reached = self.at is None or len(self.workers) > 1
        if first.is_frozen:
            first.thaw()
            while not first.is_over:
                assert time.monotonic() < until, "the thawed worker does not end"
                time.sleep(0.01)
        self._check(job)

    def _start(self, job_id: str) -> None:
        at = self.at if not self.workers else None
        trace = self.place / ("second" if self.workers else "first")
        self.workers.append(
            self.begin(fork("worker", lambda: worker(trace, at, job_id, self.victim.prepare), self.log))
        )

    def _check(self, job: Job) -> None:
        self.played.trace = sites_in(self.place / "first")
        self.played.history = {
            **checks.history(without=["deployment.retried"]),
            "jobs": [[job.kind, job.state, bool(job.error)]],
        }
        self.played.problems += checks.broken_rules()
        gate_run = self.played.history["gate_runs"][0]
        if gate_run[1:3] != ["finished", self.victim.verdict]:
            self.played.problems.append(f"the gate run is {gate_run[1]} with verdict {gate_run[2]!r}")
        if job.attempts > self.attempts + 2:  # the one that was killed, and the one that went on
            self.played.problems.append(f"{job.attempts} attempts were counted")


GATE_RUNS = [
    WorkerVictim("gates pass", "passed"),
    WorkerVictim("load passes", "passed", policy=LOAD),
    WorkerVictim("resources hold", "passed", policy=RESOURCES),
    WorkerVictim("capacity proven", "passed", policy=CAPACITY, prepare=without_waiting),
    WorkerVictim("gpu well", "passed", came_up, policy=GPU, prepare=partial(reads_gpus, "well"), envelope=NVIDIA),
    WorkerVictim(
        "gpu at fault",
        "errored",
        came_up,
        policy=GPU_AT_FAULT,
        prepare=partial(reads_gpus, "remap_failed"),
        envelope=NVIDIA,
    ),
    WorkerVictim("never ready", "errored", agent=fails),
    WorkerVictim("died too often", "errored", beforehand=has_died_too_often),
]
