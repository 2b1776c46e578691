"""Golden sets of tensors and texts on a real tritonserver: what is subtly wrong is caught, and rounding is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from serving.servers.adapters.triton import TritonServer
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.triton_rig import local_launcher
from tests.support.worlds import golden_models
from validators.core.golden_set import GoldenItem
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates import Baseline, GateContext, run_gate

pytestmark = pytest.mark.real("triton", "onnx")

SET = f"sha256:{'0' * 64}"
Started = tuple[str, dict[str, Any], TritonServer]
Start = Callable[[str, bytes, dict[str, Any]], Started]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """A server of each model for the module."""
    blobs, running, clients = MemoryBlobs(), {}, []

    with local_launcher(tmp_path_factory.mktemp("node"), blobs) as launcher:

        def started(model: str, artifact: bytes, own: dict[str, Any]) -> Started:
            if model not in running:
                is_code = not artifact.startswith(b"\x08")
                files = {f"artifact/model.{'py' if is_code else 'onnx'}": artifact}
                if not is_code and own["inputs"][0]["data_type"] == "BYTES":
                    files["tokenizer/tokenizer.json"] = made.word_level_tokenizer()
                manifest = made.manifest(blobs, model, files, own, backend="python" if is_code else "sluicegate-onnx")
                server = launcher.start(launch_spec(manifest, launcher.folder_for(1, model, "r1")))
                launcher.await_loaded(server, model, timeout_s=60)
                clients.append(TritonServer(server.host, server.http_port, server.grpc_port))
                running[model] = (model, own, clients[-1])
            return running[model]

        yield started
        for client in clients:
            client.close()


def numbers(outputs: int) -> dict[str, Any]:
    return made.serving(
        max_batch_size=16,
        inputs=[{"name": "x", "data_type": "FP32", "dims": [golden_models.INPUTS]}],
        outputs=[{"name": "y", "data_type": "FP32", "dims": [outputs]}],
    )


def judged(
    started: Started, items: list[GoldenItem], compare: str, baseline: Started | None = None, **golden: Any
) -> Judgement:
    model, serving, server = started
    context = GateContext(
        model=model, release="r2", serving=serving, envelope={}, contract={}, server=server, timings={},
        policy=parse_policy({"golden": {"set": SET, "compare": compare, **golden}}),
        progress=lambda done, total: None, items=items,
    )  # fmt: skip
    if baseline is not None:
        stable = Baseline("r1", server=Renamed(baseline[2], baseline[0]), serving=baseline[1])  # type: ignore[arg-type]
        context = GateContext(**{**context.__dict__, "baseline": stable})
    return run_gate("golden", context)


class Renamed:
    """The server of another release of the model; here each has a name of its own."""

    def __init__(self, server: TritonServer, name: str) -> None:
        self.server, self.name = server, name

    def infer(self, _: str, inputs: Any, **how: Any) -> Any:
        return self.server.infer(self.name, inputs, **how)


EMBEDDINGS: dict[str, dict[str, Any]] = {
    "embedding": {},
    "embedding_half": {"is_half": True},
    "embedding_turned": {"turned_by": 5.0},
    "embedding_centred": {"is_batch_centred": True},
}


def embedding(start: Start, name: str) -> Started:
    return start(name, golden_models.embedding_graph(**EMBEDDINGS[name]), numbers(golden_models.OUTPUTS))


@pytest.mark.parametrize("has_stable", [False, True])
def test_an_embedding_in_half_precision_passes_and_one_off_by_a_rotation_does_not(
    start: Start, has_stable: bool
) -> None:
    items = golden_models.vectors(120)
    stable = embedding(start, "embedding") if has_stable else None
    rounded = judged(embedding(start, "embedding_half"), items, "cosine", stable)
    assert rounded.verdict is Verdict.PASSED, rounded.reason
    assert 0 < rounded.evidence["off_by"]["largest"] < 1e-4
    turned = judged(embedding(start, "embedding_turned"), items, "cosine", stable)
    assert turned.verdict is Verdict.FAILED
    assert "The accuracy is 0.00%" in turned.reason and "0.0001 is right" in turned.reason
    assert turned.evidence["off_by"]["p50"] == pytest.approx(0.0038, abs=2e-4)
    if has_stable:
        assert "agreement with r1 is 0.00%" in turned.reason
        assert rounded.evidence["agreement"]["value"] == 1.0


@pytest.mark.parametrize(
    ("name", "how", "verdict"),
    [
        ("price_half", {"is_half": True}, Verdict.PASSED),
        ("price_rounded", {"factor": 1.001}, Verdict.PASSED),
        ("price_off", {"factor": 1.02}, Verdict.FAILED),
    ],
)
def test_a_regression_may_be_off_by_a_thousandth_and_not_by_two_hundredths(
    start: Start, name: str, how: dict[str, Any], verdict: Verdict
) -> None:
    items = golden_models.vectors(120, is_price=True)
    candidate = start(name, golden_models.price_graph(**how), numbers(1))
    for stable in (None, start("price", golden_models.price_graph(), numbers(1))):
        found = judged(candidate, items, "largest_relative_error", stable)
        assert found.verdict is verdict, found.reason


@pytest.mark.parametrize(
    ("name", "how", "verdict", "off"),
    [
        ("boxes", {}, Verdict.PASSED, 0.0),
        ("boxes_rounded", {"larger": 1.001}, Verdict.PASSED, 0.006),
        ("boxes_larger", {"larger": 1.02}, Verdict.FAILED, 0.19),
        ("boxes_forgotten", {"forgets": True}, Verdict.FAILED, 1 / 3),
    ],
)
def test_detections_are_matched_box_by_box(
    start: Start, name: str, how: dict[str, Any], verdict: Verdict, off: float
) -> None:
    dims: dict[str, list[int]] = {"boxes": [2, 4], "scores": [2], "classes": [2]}
    own = numbers(0) | {"outputs": [{"name": one, "data_type": "FP32", "dims": size} for one, size in dims.items()]}
    found = judged(start(name, golden_models.boxes_graph(**how), own), golden_models.images(60), "boxes")
    assert found.verdict is verdict, found.reason
    assert found.evidence["off_by"]["p50"] == pytest.approx(off, abs=0.01)


def test_true_values_may_be_missed_widely_and_a_shift_against_stable_is_still_caught(start: Start) -> None:
    """What is expected are measured prices, a tenth off what any model says: right within .25, and the same within .005."""
    items = [
        GoldenItem(one.id, one.inputs, slice=one.slice, expected={"y": [(one.expected or {})["y"][0] * (1.1 if at % 3 else 0.9)]})
        for at, one in enumerate(golden_models.vectors(120, is_price=True))
    ]  # fmt: skip
    stable = start("price", golden_models.price_graph(), numbers(1))
    candidate = start("price_off", golden_models.price_graph(factor=1.02), numbers(1))
    found = judged(candidate, items, "largest_relative_error", stable, right_within=0.25)
    assert found.verdict is Verdict.FAILED
    assert [one["name"] for one in found.evidence["checks"] if one["verdict"] == "failed"] == [
        "agreement with r1", "agreement with r1 on slice a", "agreement with r1 on slice b",
    ]  # fmt: skip
    assert judged(stable, items, "largest_relative_error", stable, right_within=0.25).verdict is Verdict.PASSED


def test_answers_that_depend_on_their_neighbours_are_caught(start: Start) -> None:
    """Alone, what is centred by its batch is nothing at all; so the batches tell, whatever is expected."""
    items = golden_models.vectors(120)
    lax = {"min_accuracy": None, "min_slice_accuracy": None}
    honest = judged(embedding(start, "embedding"), items, "cosine")
    assert (
        honest.evidence["batch_invariance"]["flipped"] == 0 == honest.evidence["batch_invariance"]["random"]["flipped"]
    )
    found = judged(embedding(start, "embedding_centred"), items, "cosine", **lax)
    assert found.verdict is Verdict.FAILED
    assert "64 of 64 answers change when the item is asked alone" in found.reason
    assert "answers change in batches of random size and company" in found.reason


def test_a_model_that_collapses_under_padded_batches_is_caught(start: Start) -> None:
    """Asked alone it is right; among longer texts its mean is over the padding, too."""
    items = golden_models.sentences(120)
    own = made.text_serving() | {
        "max_batch_size": 16, "warmup": [],
        "outputs": [{"name": "y", "data_type": "FP32", "dims": [golden_models.OUTPUTS]}],
    }  # fmt: skip
    honest = start("texts", golden_models.text_embedding_graph(counts_padding=False), own)
    padded = start("texts_padded", golden_models.text_embedding_graph(counts_padding=True), own)
    assert judged(honest, items, "cosine").verdict is Verdict.PASSED
    one_by_one = judged(padded, items, "cosine", batch_size=1, max_batch_flips=1)
    assert one_by_one.verdict is Verdict.PASSED, one_by_one.reason
    found = judged(padded, items, "cosine", batch_size=1)
    assert found.verdict is Verdict.FAILED
    assert found.evidence["batch_invariance"]["flipped"] == 0, "the first pass was one by one"
    assert found.evidence["batch_invariance"]["full"]["flipped"] > 32
    assert {one["name"] for one in found.evidence["checks"] if one["verdict"] == "failed"} == {
        "batch flips, full", "batch flips, random",
    }  # fmt: skip


#: Says a price as JSON; `MODE` spoils it.
PRICES = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(r)]) for r in requests]

    def answer(self, request):
        texts = [one.decode() for one in pb_utils.get_input_tensor_by_name(request, "text").as_numpy().ravel()]
        said = [MODE(text) for text in texts]
        return pb_utils.Tensor("y", np.array([[one.encode()] for one in said], dtype=object))
"""
SAYS = {
    "honest": 'lambda text: json.dumps({"item": text, "price": len(text)})',
    "spaced": 'lambda text: json.dumps({"item": text.upper(), "price": len(text)}, indent=2)',
    "keyless": 'lambda text: json.dumps({"item": text})',
    "wordy": 'lambda text: json.dumps({"item": text, "price": len(text)})[:-1] + ", \\"note\\": \\"" + "so " * 20 + "\\"}"',
    "cut": 'lambda text: json.dumps({"item": text, "price": len(text)})[:-1]',
}


@pytest.mark.parametrize(
    ("mode", "compare", "verdict"),
    [
        ("honest", "exact_text", Verdict.PASSED),
        ("spaced", "exact_text", Verdict.FAILED),
        ("spaced", "text_tokens", Verdict.PASSED),
        ("wordy", "text_tokens", Verdict.FAILED),
        ("wordy", "json_text", Verdict.FAILED),  # by its length alone
        ("keyless", "json_text", Verdict.FAILED),
        ("cut", "json_text", Verdict.FAILED),
    ],
)
def test_a_text_is_judged_as_it_is_by_its_tokens_or_as_json(
    start: Start, mode: str, compare: str, verdict: Verdict
) -> None:
    own = made.serving(
        inputs=[{"name": "text", "data_type": "BYTES", "dims": [1]}],
        outputs=[{"name": "y", "data_type": "BYTES", "dims": [1]}],
    )
    texts = ["film " * (1 + at % 5) for at in range(40)]
    items = [
        GoldenItem(f"t{at}", {"text": text}, expected={"y": json.dumps({"item": text, "price": len(text)})})
        for at, text in enumerate(texts)
    ]
    server = start(f"says_{mode}", PRICES.replace("MODE", f"({SAYS[mode]})").encode(), own)
    shift = {"max_length_shift": 0.5} if compare == "json_text" else {}
    found = judged(server, items, compare, **shift)
    assert found.verdict is verdict, found.reason
    if mode == "wordy" and compare == "json_text":
        assert [one["name"] for one in found.evidence["checks"] if one["verdict"] == "failed"] == ["length shift"]
