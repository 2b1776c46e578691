"""The gates on a real tritonserver: a good release passes, and answers that the server itself lets pass are caught."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from accounts.core.quantities import quantity_text
from serving.servers.adapters.triton import TritonServer
from serving.targets.agent.launcher import LocalLauncher
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.triton_rig import local_launcher
from validators.core.golden_set import GoldenItem
from validators.core.policy import parse_policy
from validators.core.verdict import Verdict
from validators.execution.gates import Baseline, GateContext, run_gate

pytestmark = pytest.mark.real("triton", "onnx")

POLICY = parse_policy(
    {
        "golden": {"set": f"sha256:{'0' * 64}", "batch_size": 4},
        "load": {
            "rate_per_s": 40,
            "slo_quantile": 0.95,
            "slo_ms": 1000,
            "max_lag_ms": 500,
            "max_error_frac": 0,
            "burst_s": 1,
        },
        "cold_start": {"inferences": 10},
    }
)
ITEMS = [
    GoldenItem(str(i), {"x": [float(i % 4 == at) for at in range(4)]}, i % 4, "even" if i % 2 == 0 else "odd")
    for i in range(80)
]


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def launcher(tmp_path: Path, blobs: MemoryBlobs) -> Iterator[LocalLauncher]:
    with local_launcher(tmp_path, blobs) as made_launcher:
        yield made_launcher


@pytest.fixture
def clients() -> Iterator[list[TritonServer]]:
    opened: list[TritonServer] = []
    yield opened
    for client in opened:
        client.close()


def context(launcher: LocalLauncher, clients: list[TritonServer], manifest: dict[str, Any], **over: Any) -> GateContext:
    running = launcher.start(launch_spec(manifest, launcher.folder_for(1, manifest["model"], "r1")))
    launcher.await_loaded(running, manifest["model"], timeout_s=60)
    server = TritonServer(running.host, running.http_port, running.grpc_port)
    clients.append(server)
    values: dict[str, Any] = {
        "model": manifest["model"], "release": "r1", "serving": manifest["serving"], "envelope": {}, "contract": {},
        "policy": POLICY, "server": server, "timings": {"fetch_s": 0.1, "load_s": 1.0, "warmup_s": 0.1},
        "progress": lambda done, total: None, "items": ITEMS, **over,
    }  # fmt: skip
    return GateContext(**values)


def test_a_good_release_meets_every_gate(
    launcher: LocalLauncher, clients: list[TritonServer], blobs: MemoryBlobs
) -> None:
    found = context(launcher, clients, made.doubling(blobs))
    contract = run_gate("contract", found)
    assert (contract.verdict, contract.evidence["batch_sizes"]) == (Verdict.PASSED, [1, 2, 8]), contract.reason
    assert {(one["expected"], one["outcome"]) for one in contract.evidence["edges"]} == {("refused", "rejected")}
    cold = run_gate("cold_start", found)
    assert cold.verdict is Verdict.PASSED, cold.reason
    golden = run_gate("golden", found)
    assert golden.verdict is Verdict.PASSED, golden.reason
    assert golden.evidence["predictions"] == [item.label for item in ITEMS]
    assert golden.evidence["batch_invariance"]["flipped"] == 0
    load = run_gate("load", found)
    assert load.verdict is Verdict.PASSED, load.reason
    assert load.evidence["errors"] == 0
    assert 320 <= load.evidence["requests"] <= 480, "it ends soon after the eight seconds that a look takes"
    assert load.evidence["recovery"]["recovered_after_s"] <= 10

    paired = GateContext(**{**found.__dict__, "baseline": Baseline("r0", server=found.server, serving=found.serving)})
    assert run_gate("golden", paired).evidence["agreement"]["value"] == 1.0


@pytest.mark.parametrize("number", [1.0, 500.0], ids=["answers", "breaks"])
def test_a_load_is_judged_alike_over_either_protocol_and_from_several_processes(
    launcher: LocalLauncher, clients: list[TritonServer], blobs: MemoryBlobs, number: float
) -> None:
    items = [GoldenItem("a", {"x": [number] * 4}, 0)]
    found = context(launcher, clients, made.misbehaving(blobs), items=items)
    judged = []
    for how in ({"protocol": "grpc"}, {"protocol": "http"}, {"protocol": "http", "generators": 2}):
        load = {"rate_per_s": 40, "duration_s": 1.5, "slo_quantile": 0.9, "max_lag_ms": 60_000, "burst_s": 0, **how}
        policy = parse_policy({"load": load})
        judged.append(run_gate("load", GateContext(**{**found.__dict__, "policy": policy})))
    assert {one.verdict for one in judged} == {Verdict.PASSED if number == 1 else Verdict.FAILED}, judged
    assert len({one.evidence["error_examples"] for one in judged}) == 1
    assert [(one.evidence["protocol"], one.evidence["generators"]) for one in judged] == [
        ("grpc", 1), ("http", 1), ("http", 2),
    ]  # fmt: skip
    if number == 500:
        assert "the answer went wrong" in judged[1].evidence["error_examples"][0]
    else:
        assert [one.evidence["requests"] for one in judged] == [60] * 3 and judged[2].evidence["stages"]["infer_ms"] > 0


def test_a_capacity_is_found_and_more_than_was_refuted_may_not_be_declared(
    launcher: LocalLauncher, clients: list[TritonServer], blobs: MemoryBlobs
) -> None:
    policy = parse_policy(
        {
            "gates": ["capacity"],
            "load": {"rate_per_s": 20, "slo_quantile": 0.9, "slo_ms": 1000},
            "capacity": {"most_per_s": 20, "budget_s": 20},
        }
    )
    found = context(launcher, clients, made.doubling(blobs), policy=policy, hardware="Xeon")
    capacity = run_gate("capacity", found)
    assert capacity.verdict is Verdict.PASSED, capacity.reason
    assert capacity.evidence["capacity_per_s"] == 20  # no more was asked
    assert [one["purpose"] for one in capacity.evidence["points"]] == ["probe", "confirm"]
    assert capacity.evidence["points"][1]["latency_ms"]["p50"] > 0

    hasty = parse_policy({**policy.document, "load": {**policy.of("load"), "slo_ms": 1e-3, "max_lag_ms": 60_000}})
    entry = {"hardware": "Xeon", "throughput": {"value": 20, "unit": "requests_per_s"}}
    values = {**found.__dict__, "policy": hasty, "envelope": {"performance": [entry]}}
    missed = run_gate("capacity", GateContext(**values))
    assert missed.verdict is Verdict.FAILED, missed.reason
    assert "Its envelope declares 20 requests/s (throughput); no rate is proven" in missed.reason


def test_a_release_that_is_slower_than_it_declares_fails_its_load_gate_with_both_numbers(
    launcher: LocalLauncher, clients: list[TritonServer], blobs: MemoryBlobs
) -> None:
    """It takes 55 ms and declares 40 at p99, within an objective of a second. The machine may add to the 55, and not take from them."""
    own = made.serving(dynamic_batching=None, instance_group=[{"kind": "cpu", "count": 4}])
    slow = RUNS.replace("0.02", "0.055").encode()
    manifest = made.manifest(blobs, "slow", {"artifact/model.py": slow}, own, backend="python")
    entry = {"hardware": "Xeon", "load_shape": {"mode": "open", "rate_per_s": 20}, "latency_ms": {"p99": 40}}
    load = {"rate_per_s": 20, "duration_s": 6, "slo_quantile": 0.9, "slo_ms": 1000, "max_lag_ms": 60_000, "burst_s": 0}
    envelope = {"performance": [entry]}
    found = context(
        launcher, clients, manifest, hardware="Xeon", envelope=envelope, policy=parse_policy({"load": load})
    )
    judged = run_gate("load", found)
    assert judged.verdict is Verdict.FAILED, judged.reason
    (row,) = (one for one in judged.evidence["envelope"] if one["declared"] is not None)
    assert (row["declared"], row["verdict"]) == (40, "failed") and row["measured"] >= 55
    assert judged.reason.startswith(
        f"Its envelope declares 40 ms (p99 latency); {quantity_text(row['measured'], 'ms')} were measured"
    )
    nothing = run_gate("load", replace(found, envelope={}))
    assert nothing.verdict is Verdict.PASSED, nothing.reason
    assert {one["verdict"] for one in nothing.evidence["envelope"]} == {"unknown"}
    warned = parse_policy({"load": load, "envelope": {"on_breach": "warn"}})
    assert run_gate("load", replace(found, policy=warned)).verdict is Verdict.PASSED


#: A run takes 20 ms whatever it holds, so that only runs of several items keep up.
RUNS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        found = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", one)]) for one in found]
"""


def test_a_model_that_dies_is_failed_by_the_gate_that_met_it(
    launcher: LocalLauncher, clients: list[TritonServer], blobs: MemoryBlobs
) -> None:
    deadly = [GoldenItem("a", {"x": [666.0] * 4}, 0)]
    brief = parse_policy({"load": {"rate_per_s": 10, "duration_s": 0.3}})
    found = context(launcher, clients, made.misbehaving(blobs), items=deadly, policy=brief)
    contract = run_gate("contract", found)
    assert contract.verdict is Verdict.FAILED
    assert "was not answered" in contract.reason
    assert run_gate("load", found).verdict is Verdict.FAILED


#: Counts words; more than LONGEST of them, or none, are its end.
FRAIL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(r, "text").as_numpy() for r in requests]
        if any(len(one.split()) > LONGEST or not one for text in texts for one in text.ravel()):
            os._exit(1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ones((len(text), 1), np.float32))]) for text in texts]
"""


@pytest.mark.parametrize(
    ("longest", "after"),
    [("40", "an input of max_input_tokens"), ("100000", "an empty text")],
)
def test_a_server_that_one_request_kills_is_failed_by_the_contract_gate(
    launcher: LocalLauncher, clients: list[TritonServer], blobs: MemoryBlobs, longest: str, after: str
) -> None:
    own = made.serving(
        max_batch_size=4,
        inputs=[{"name": "text", "data_type": "BYTES", "dims": [1]}],
        outputs=[{"name": "y", "data_type": "FP32", "dims": [1]}],
    )
    code = FRAIL.replace("LONGEST", longest).encode()
    manifest = made.manifest(blobs, "frail", {"artifact/model.py": code}, own, backend="python")
    items = [GoldenItem("a", {"text": "a good film"}, 0)]
    brief = parse_policy({"contract": {"timeout_s": 20}})
    envelope = {"limits": {"max_input_tokens": 64}}
    found = run_gate("contract", context(launcher, clients, manifest, items=items, policy=brief, envelope=envelope))
    assert found.verdict is Verdict.FAILED
    assert [one["kind"] for one in found.evidence["mismatches"]] == ["unwell"]
    assert found.reason.startswith(f"After {after} the server did not answer an ordinary request as before: ")
    assert found.evidence["edges"][-1]["request"] == after, "nothing more is asked of a server that is dead"


def constant_graph() -> bytes:
    """y = ones, whatever x is: as of an export that traced its input away."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node(
            "ConstantOfShape", ["shape"], ["y"], value=helper.make_tensor("one", TensorProto.FLOAT, [1], [1])
        ),
    ]
    return made.graph_bytes(helper.make_graph(nodes, "constant", [x], [y]))


#: As a caller of ONNX Runtime that hands it bytes, of which it takes `str()`.
SPELLING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(one, "text").as_numpy() for one in requests]
        spelt = [np.array([[str(cell).encode() for cell in row] for row in rows], object) for rows in texts]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("out", one)]) for one in spelt]
"""


def test_a_graph_that_ignores_its_input_is_undecided(
    launcher: LocalLauncher, clients: list[TritonServer], blobs: MemoryBlobs
) -> None:
    manifest = made.manifest(blobs, "constant", {"artifact/model.onnx": constant_graph()}, made.serving())
    judged = run_gate("contract", context(launcher, clients, manifest, items=[]))
    assert judged.verdict is Verdict.UNDECIDED, judged.reason
    assert "The model seems to ignore its input." in judged.reason


def test_a_text_that_reaches_the_model_as_pythons_spelling_fails(
    launcher: LocalLauncher, clients: list[TritonServer], blobs: MemoryBlobs
) -> None:
    text = {"name": "text", "data_type": "BYTES", "dims": [1]}
    serving = made.serving(inputs=[text], outputs=[{**text, "name": "out"}])
    manifest = made.manifest(blobs, "spelling", {"artifact/model.py": SPELLING.encode()}, serving, backend="python")
    judged = run_gate("contract", context(launcher, clients, manifest, items=[]))
    assert judged.verdict is Verdict.FAILED
    assert "is Python's spelling of the text that was sent" in judged.reason


SLOW = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            time.sleep(0.115)
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * x).astype(np.float32))]))
        return answers
"""


def test_a_slow_model_meets_the_load_gate_unless_the_policy_states_a_rate_that_it_cannot_hold(
    launcher: LocalLauncher, clients: list[TritonServer], blobs: MemoryBlobs
) -> None:
    """115 ms for an item, one at a time: 8.7/s at most, and the default rate is 20/s."""
    manifest = made.manifest(
        blobs, "pitch", {"artifact/model.py": SLOW.encode()}, made.serving(max_batch_size=1), backend="python"
    )
    usual = context(launcher, clients, manifest, policy=parse_policy({"gates": ["load"]}), items=())
    found = run_gate("load", usual)
    assert found.verdict is Verdict.PASSED, found.reason
    assert found.evidence["rate_from"] == "measured" and found.evidence["rate_per_s"] <= 8.7 / 2
    assert found.evidence["can_per_s"] == pytest.approx(2 * found.evidence["rate_per_s"])
    stated = parse_policy({"gates": ["load"], "load": {"rate_per_s": 20, "timeout_s": 3}})
    found = run_gate("load", GateContext(**{**usual.__dict__, "policy": stated}))
    assert found.verdict is Verdict.FAILED
    assert "The rate is 20/s, the policy's load.rate_per_s; the server answered " in found.reason
