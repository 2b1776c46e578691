"""The resources gate on a real tritonserver: what leaks fails every time, what does not passes, and what holds too much fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from serving.adapters.triton import TritonServer
from serving.agent.launcher import LocalLauncher
from serving.agent.process_use import use_of
from serving.core.use import Reading
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.triton_rig import local_launcher
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates import GateContext, run_gate

pytestmark = pytest.mark.real("triton")

#: Keeps `leak` bytes of each request for ever.
KEEPING = """
import json
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads((Path(__file__).parent / "sluicegate.json").read_text())
        self.leak, self.kept = int(config["parameters"]["leak"]), []

    def execute(self, requests):
        self.kept += [bytearray(b"x") * self.leak for _ in requests]
        tensors = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * x)]) for x in tensors]
"""
MIB_IN_100 = 2**20 // 100


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


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def launcher(tmp_path: Path, blobs: MemoryBlobs) -> Iterator[LocalLauncher]:
    with local_launcher(tmp_path, blobs) as made_launcher:
        yield made_launcher


def judged(
    launcher: LocalLauncher, blobs: MemoryBlobs, *, leak: int, memory_mib: int = 2048, requests: int = 2000
) -> Judgement:
    soak = {"min_requests": requests, "max_soak_s": 2 * requests / 200}
    policy = parse_policy({"gates": ["resources"], "load": {"rate_per_s": 200}, "resources": soak})
    own = made.serving(parameters={"leak": str(leak)})
    manifest = made.manifest(blobs, "keeping", {"artifact/model.py": KEEPING.encode()}, own, backend="python")
    running = launcher.start(launch_spec(manifest, launcher.folder_for(1, manifest["model"], "r1")))
    launcher.await_loaded(running, manifest["model"], timeout_s=60)
    server, meter = TritonServer(running.host, running.http_port, running.grpc_port), Meter(running.pid)
    context = GateContext(
        model=manifest["model"], release="r1", serving=manifest["serving"], contract={}, policy=policy, server=server,
        envelope={"host": {"memory_mib_min": memory_mib}}, timings={}, progress=lambda done, total: None,
        readings=meter.between,
    )  # fmt: skip
    try:
        return run_gate("resources", context)
    finally:
        meter.end()
        server.close()


def test_a_mebibyte_in_a_hundred_requests_fails_three_times_of_three(
    launcher: LocalLauncher, blobs: MemoryBlobs
) -> None:
    for _ in range(3):
        found = judged(launcher, blobs, leak=MIB_IN_100)
        assert found.verdict is Verdict.FAILED, found.reason
        assert found.reason.startswith("It leaks: its memory grew by "), found.reason
        assert 0.7 * MIB_IN_100 < found.evidence["growth"]["per_request"] < 1.5 * MIB_IN_100


def test_what_keeps_nothing_passes_and_fails_where_it_declares_less_than_it_holds(
    launcher: LocalLauncher, blobs: MemoryBlobs
) -> None:
    found = judged(launcher, blobs, leak=0)
    assert found.verdict is Verdict.PASSED, found.reason
    assert found.evidence["growth"]["high"] <= 4096 and found.evidence["requests"] >= 1900
    assert 0 < found.evidence["cpu_ms_per_request"] < 100
    assert 20 * 2**20 < found.evidence["peaks"]["memory_bytes"] < 1024 * 2**20
    small = judged(launcher, blobs, leak=0, memory_mib=16, requests=100)
    assert small.verdict is Verdict.FAILED
    assert "its envelope declares 16 MiB" in small.reason
