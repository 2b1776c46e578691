"""A real Triton computes nothing in the runner for callers who have cancelled."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.targets.agent.runtime_image import RUNNER
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.gateway_rig import MODEL, wait_until
from tests.support.rigs.overload_rig import MESSAGE, message
from tests.support.rigs.triton_rig import local_launcher

pytestmark = pytest.mark.real("triton")
HELD, GONE = 666.0, 8

#: The runner itself: a request with 666 says that it is under way, until its caller has cancelled it, and answers tell how often the graph
#: was run since.
HOLDING = """

import time

class TritonPythonModel(TritonPythonModel):
    runs = 0

    def execute(self, requests):
        for request in requests:
            if (pb_utils.get_input_tensor_by_name(request, "x").as_numpy() == 666).any():
                print("one is held", flush=True)
                while not request.is_cancelled():
                    time.sleep(0.01)
                time.sleep(0.5)  # those who cancelled before it are known by then
                self.runs = 0  # who came first is of no interest
        return super().execute(requests)

    def _run(self, *args):
        self.runs += 1
        return {name: np.full_like(value, self.runs) for name, value in super()._run(*args).items()}
"""


def test_the_runner_computes_nothing_for_who_waits_no_longer(tmp_path: Path) -> None:
    """Without a dynamic batcher, which would drop most of what is cancelled before the runner sees it."""
    blobs = MemoryBlobs()
    (tmp_path / "servers").mkdir()
    code = (RUNNER / "onnx_runner.py").read_text(encoding="utf-8") + HOLDING
    files = {"artifact/model.py": code.encode(), "artifact/model.onnx": made.doubling_graph()}
    own = made.serving(max_batch_size=1, dynamic_batching=None)
    document = made.manifest(blobs, MODEL, files, own, backend="python")
    with local_launcher(tmp_path, blobs) as launcher:
        running = launcher.start(launch_spec(document, launcher.folder_for(1, MODEL, "r1")))
        launcher.await_loaded(running, MODEL, timeout_s=60)

        def pending() -> int:
            with urllib.request.urlopen(f"http://{running.host}:{running.metrics_port}/metrics", timeout=60) as page:
                found = re.search(r"^nv_inference_pending_request_count{.*} (\d+)", page.read().decode(), re.MULTILINE)
            return int(found[1]) if found else 0

        with grpc.insecure_channel(f"{running.host}:{running.grpc_port}") as channel:
            ask = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                response_deserializer=service_pb2.ModelInferResponse.FromString,
            )
            held = ask.future(message(HELD), timeout=60)
            wait_until(lambda: "one is held" in launcher.log_tail(running.folder, lines=1), "one is held")
            gone = [ask.future(MESSAGE, timeout=60) for _ in range(GONE)]
            wait_until(lambda: pending() == GONE, "all wait behind it")
            for one in [*gone, held]:
                one.cancel()
            (raw,) = ask(MESSAGE, timeout=60).raw_output_contents
    assert np.frombuffer(raw, np.float32).tolist() == [1.0] * 4
