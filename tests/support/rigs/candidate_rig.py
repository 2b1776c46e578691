"""Candidates on real Tritons of this machine, each on a server of its own that is judged by the gates of its trial."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.core.errors import Invalid
from serving.servers.adapters.triton import TritonServer
from serving.targets.agent.launcher import LocalLauncher
from serving.targets.agent.process_use import use_of
from serving.targets.core.use import Reading
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.triton_rig import local_launcher
from tests.support.worlds.candidate_models import Make
from tests.support.worlds.candidates import UPLOAD, Candidate
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates import Baseline, GateContext, run_gate


class Meter:
    """Reads one process and what it started, again and again, as the node's agent does."""

    def __init__(self, pid: int) -> None:
        self.pid, self.readings, self._stop = pid, list[Reading](), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            if found := use_of([self.pid]).get(self.pid):
                self.readings.append(Reading(time.time(), found))

    def between(self, since_s: float, until_s: float) -> Sequence[Reading]:
        return [one for one in self.readings if since_s <= one.at_s <= until_s]

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


@dataclass(frozen=True)
class Served:
    """A server that is ready, and how long that took."""

    manifest: dict[str, Any]
    client: TritonServer
    meter: Meter
    load_s: float
    stop: Callable[[], None]


@dataclass(frozen=True)
class Judged:
    """The gate that judged last, which stopped the candidate unless it passed, what it found, and how long all took."""

    gate: str
    found: Judgement
    seconds: float


class Stage:
    """Starts servers, and keeps those of stable releases for the next candidate."""

    def __init__(self, launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
        self._launcher, self._blobs, self._started = launcher, blobs, 0
        self._stables: dict[Make, Served] = {}

    def judged(self, candidate: Candidate) -> Judged:
        began = time.monotonic()
        try:
            manifest = candidate.release(self._blobs)
        except Invalid as refused:
            return Judged(UPLOAD, Judgement(Verdict.FAILED, refused.message), time.monotonic() - began)
        served = self._serve(manifest)
        try:
            gate, found = self._by_gates(candidate, served)
        finally:
            served.stop()
        return Judged(gate, found, time.monotonic() - began)

    def assert_fate(self, candidate: Candidate) -> None:
        """Its gate says of it what is stated."""
        judged = self.judged(candidate)
        assert judged.found.verdict is candidate.verdict, judged
        assert judged.gate == candidate.judge, judged
        assert re.search(candidate.says, judged.found.reason), judged.found.reason

    def end(self) -> None:
        while self._stables:
            self._stables.popitem()[1].stop()

    def _by_gates(self, candidate: Candidate, served: Served) -> tuple[str, Judgement]:
        """What a gate run does: one gate after the other, until one is not passed."""
        trial, evidence = candidate.trial, {}
        policy, items = parse_policy(trial.policy), trial.items()
        for gate in policy.gates:
            context = GateContext(
                model=served.manifest["model"], release="candidate", serving=served.manifest["serving"],
                envelope=trial.envelope, contract={}, policy=policy, server=served.client,
                timings={"fetch_s": 0.0, "load_s": served.load_s, "warmup_s": 0.0},
                progress=lambda done, total: None, items=items, earlier=lambda name: evidence.get(name, {}), readings=served.meter.between,
                baseline=self._stable(trial.stable) if gate == "golden" else None,
                stable=lambda: self._stable(trial.stable),
            )  # fmt: skip
            found = run_gate(gate, context)
            evidence[gate] = found.evidence
            if found.verdict is not Verdict.PASSED:
                break
        return gate, found

    def _stable(self, make: Make | None) -> Baseline | None:
        if make is None:
            return None
        if make not in self._stables:
            self._stables[make] = self._serve(make(self._blobs))
        served = self._stables[make]
        return Baseline("stable", server=served.client, serving=served.manifest["serving"])

    def _serve(self, manifest: dict[str, Any]) -> Served:
        self._started += 1
        began, folder = time.monotonic(), self._launcher.folder_for(self._started, manifest["model"], "r1")
        running = self._launcher.start(launch_spec(manifest, folder, replica_id=self._started))
        self._launcher.await_loaded(running, manifest["model"], timeout_s=60)
        load_s = time.monotonic() - began
        client = TritonServer(running.host, running.http_port, running.grpc_port)
        meter = Meter(running.pid)

        def stop() -> None:
            meter.end()
            client.close()
            self._launcher.stop(running, grace_s=0)

        return Served(manifest, client, meter, load_s, stop)


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """With its servers in the folder; none outlives it."""
    blobs = MemoryBlobs()
    with local_launcher(folder, blobs) as launcher:
        opened = Stage(launcher, blobs)
        try:
            yield opened
        finally:
            opened.end()
