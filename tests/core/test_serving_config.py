"""The serving configuration of a release: limits at their edges, and what contradicts what."""

from __future__ import annotations

from typing import Any

import pytest

from registry.core.schema import Problem
from registry.core.serving import DATA_TYPES, SERVING, against_contract, instances_of, lint, normal

TENSOR = {"name": "x", "data_type": "FP32", "dims": [2]}
LEAST: dict[str, Any] = {"max_batch_size": 4, "inputs": [TENSOR], "outputs": [TENSOR]}


def wrong(**changes: Any) -> list[str]:
    """The fields that cannot be read."""
    problems: list[Problem] = []
    SERVING.read({**LEAST, **changes}, "", problems)
    return [one.field for one in problems]


def linted(**members: Any) -> dict[str, str]:
    problems = lint(members)
    return {one.field.removeprefix("serving."): f"{one.message} {one.fix}" for one in problems}


def test_what_is_not_said_has_a_default() -> None:
    read = SERVING.read({**LEAST, "dynamic_batching": {}, "queue_policy": {}, "warmup": [{"inputs": {}}]}, "", [])
    assert read == {
        **LEAST,
        "dynamic_batching": {"preferred_batch_size": [], "max_queue_delay_us": 0},
        "instance_group": [{"kind": "cpu", "count": 1}],
        "queue_policy": {
            "timeout_action": "reject", "default_timeout_us": 0, "allow_timeout_override": False, "max_queue_size": 0,
        },
        "warmup": [{"batch_size": 1, "inputs": {}}],
        "parameters": {},
    }  # fmt: skip


def test_only_text_is_streamed_and_only_by_code() -> None:
    text = [{"name": "text", "data_type": "BYTES", "dims": [1]}]
    assert linted(outputs=text, decoupled=True) == linted(outputs=[TENSOR], decoupled=False) == {}
    assert "FP32 does not come in pieces" in linted(outputs=[*text, TENSOR], decoupled=True)["outputs[1].data_type"]
    graph = lint({"outputs": text, "decoupled": True}, backend="sluicegate-onnx")
    assert [one.field for one in graph] == ["serving.decoupled"]
    assert not lint({"outputs": text, "decoupled": True}, backend="python")


@pytest.mark.parametrize(
    ("backend", "refused"),
    [("sluicegate-onnx", ["inputs[0].data_type", "outputs[0].data_type"]), ("python", ["inputs[0].data_type"])],
)
def test_bf16_is_refused_where_no_server_can_take_or_give_it(backend: str, refused: list[str]) -> None:
    tensors = [{**TENSOR, "data_type": "BF16"}]
    problems = lint({**LEAST, "inputs": tensors, "outputs": tensors}, "", backend=backend)
    assert [one.field.removeprefix(".") for one in problems] == refused
    assert all(one.fix.startswith("Write FP32, ") for one in problems)


def test_who_does_not_stream_has_the_digest_of_one_that_does_not_say_so() -> None:
    assert normal({**LEAST, "decoupled": False}) == normal(LEAST) != normal({**LEAST, "decoupled": True})


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [
        (lambda n: {"max_batch_size": n}, 0, 65_536),
        (lambda n: {"inputs": [{**TENSOR, "dims": [n]}]}, 1, 2**31 - 1),
        (lambda n: {"inputs": [{**TENSOR, "dims": [1] * n}]}, 0, 31),
        (lambda n: {"inputs": [{**TENSOR, "name": "n" * n}]}, 1, 256),
        (lambda n: {"inputs": [TENSOR] * n}, 1, 200),
        (lambda n: {"outputs": [TENSOR] * n}, 1, 200),
        (lambda n: {"dynamic_batching": {"preferred_batch_size": [n]}}, 1, 65_536),
        (lambda n: {"dynamic_batching": {"preferred_batch_size": [1] * n}}, 0, 32),
        (lambda n: {"dynamic_batching": {"max_queue_delay_us": n}}, 0, 60_000_000),
        (lambda n: {"instance_group": [{"kind": "cpu", "count": n}]}, 1, 128),
        (lambda n: {"instance_group": [{"kind": "gpu"}] * n}, 1, 16),
        (lambda n: {"queue_policy": {"default_timeout_us": n}}, 0, 3_600_000_000),
        (lambda n: {"queue_policy": {"max_queue_size": n}}, 0, 1_000_000),
        (lambda n: {"warmup": [{"inputs": {}, "batch_size": n}]}, 1, 65_536),
        (lambda n: {"warmup": [{"inputs": {}}] * n}, 0, 50),
        (lambda n: {"parameters": {"k": "v" * n}}, 0, 4000),
    ],
)
def test_each_number_has_its_limits(changes: Any, least: int, most: int) -> None:
    assert wrong(**changes(least)) == wrong(**changes(most)) == []
    assert wrong(**changes(most + 1)) and (least == 0 or wrong(**changes(least - 1)))


def test_what_must_be_said() -> None:
    for name in ("max_batch_size", "inputs", "outputs"):
        problems: list[Problem] = []
        SERVING.read({key: value for key, value in LEAST.items() if key != name}, "", problems)
        assert [one.field for one in problems] == [name]
    for member in ("name", "data_type", "dims"):
        assert wrong(inputs=[{key: value for key, value in TENSOR.items() if key != member}]) == [f"inputs[0].{member}"]
    assert wrong(instance_group=[{}]) == ["instance_group[0].kind"] and wrong(warmup=[{}]) == ["warmup[0].inputs"]


def test_a_dimension_may_be_free() -> None:
    assert wrong(inputs=[{**TENSOR, "dims": [-1]}]) == [] and wrong(inputs=[{**TENSOR, "dims": [-2]}]) != []


@pytest.mark.parametrize(
    ("said", "meant"),
    [("STRING", "BYTES"), ("TYPE_FP32", "FP32"), ("fp16", "FP16"), ("bfloat16", "BF16"), ("Double", "FP64"), ("int", "INT32"),
     ("long", "INT64"), ("boolean", "BOOL"), ("half", "FP16"), ("float", "FP32"), ("object", "BYTES")],
)  # fmt: skip
def test_other_systems_names_of_a_data_type(said: str, meant: str) -> None:
    problems: list[Problem] = []
    read = SERVING.read({**LEAST, "inputs": [{**TENSOR, "data_type": said}]}, "", problems)
    assert [one.fix for one in problems] == [f"Write {meant}."] and read["inputs"][0]["data_type"] == meant


def test_every_data_type_is_read_as_it_stands() -> None:
    assert all(wrong(inputs=[{**TENSOR, "data_type": name}]) == [] for name in DATA_TYPES) and len(DATA_TYPES) == 14


def test_instances_are_counted_of_one_kind_or_all() -> None:
    serving = {
        "instance_group": [{"kind": "cpu", "count": 2}, {"kind": "gpu", "count": 3}, {"kind": "gpu", "count": 1}, {}]
    }
    assert (instances_of(serving), instances_of(serving, "gpu"), instances_of(serving, "cpu")) == (6, 4, 2)
    assert instances_of({}) == instances_of(serving, "tpu") == 0


def test_preferred_batches_are_put_in_order_once() -> None:
    batching = {"preferred_batch_size": [8, 4, 8], "max_queue_delay_us": 5}
    before = {"max_batch_size": 8, "dynamic_batching": batching}
    assert normal(before)["dynamic_batching"] == {"preferred_batch_size": [4, 8], "max_queue_delay_us": 5}
    assert before["dynamic_batching"] == {"preferred_batch_size": [8, 4, 8], "max_queue_delay_us": 5}
    assert normal({"dynamic_batching": None}) == {"dynamic_batching": None}


def test_batches_fit_the_largest() -> None:
    batching = {"preferred_batch_size": [4, 5]}
    assert list(linted(max_batch_size=4, dynamic_batching=batching)) == ["dynamic_batching.preferred_batch_size[1]"]
    assert linted(max_batch_size=5, dynamic_batching=batching) == linted(dynamic_batching=batching) == {}
    assert linted(max_batch_size=0) == linted(max_batch_size=0, dynamic_batching=None) == {}
    assert list(linted(max_batch_size=0, dynamic_batching=batching)) == ["dynamic_batching"]
    assert linted(max_batch_size=1, dynamic_batching={"preferred_batch_size": [1]}) == linted(max_batch_size=1) == {}


def test_a_queue_belongs_to_a_batcher() -> None:
    queue = {"max_queue_size": 1}
    assert list(linted(queue_policy=queue, dynamic_batching=None)) == ["queue_policy"]
    assert linted(queue_policy=queue) == linted(queue_policy=queue, dynamic_batching={"preferred_batch_size": []}) == {}
    assert linted(queue_policy=None, dynamic_batching=None) == {}


def test_a_name_occurs_once_on_each_side() -> None:
    assert linted(inputs=[TENSOR], outputs=[TENSOR]) == linted(inputs=[{}, {}]) == {}
    assert list(linted(inputs=[TENSOR, TENSOR])) == ["inputs"] and list(linted(outputs=[TENSOR, TENSOR])) == ["outputs"]


def warmed(batch: int | None = None, most: int | None = 4, **inputs: Any) -> dict[str, str]:
    size = {} if batch is None else {"batch_size": batch}
    limit = {} if most is None else {"max_batch_size": most}
    return linted(inputs=[TENSOR], warmup=[{"inputs": {"x": 1}}, {**size, "inputs": {"x": 1, **inputs}}], **limit)


@pytest.mark.parametrize("value", ["he\0llo", float("nan"), "\ud800"])
def test_a_warm_up_that_json_cannot_hold_is_one_mistake(value: Any) -> None:
    problems: list[Problem] = []
    document = {**LEAST, "inputs": [TENSOR], "warmup": [{"inputs": {"x": value}}]}
    read = SERVING.read(document, "serving", problems)
    problems += lint(read)
    assert [one.field for one in problems] == ["serving.warmup[0].inputs.x"]


def test_a_warm_up_is_a_request_that_could_be_sent() -> None:
    assert warmed(4) == warmed() == warmed(1, 0) == warmed(99, None) == warmed(None, 0) == {}
    assert (
        "Write at most 4." in warmed(5)["warmup[1].batch_size"]
        and "Write at most 1." in warmed(2, 0)["warmup[1].batch_size"]
    )
    assert warmed(y=1) == {"warmup[1].inputs.y": "the model has no such input. Its inputs are x."}
    assert linted(inputs=[TENSOR], warmup=[{"inputs": {}}]) == {
        "warmup[0].inputs": "the input 'x' has no value. Add x."
    }
    assert linted(warmup=[{"inputs": {"y": 1}}]) == linted(inputs=[{}], warmup=[{"inputs": {"y": 1}}]) == {}
    later = linted(inputs=[TENSOR], warmup=[{}, {"inputs": {"x": 1, "y": 1}}])
    assert list(later) == ["warmup[1].inputs.y"]  # one that could not be read does not hide the next


@pytest.mark.parametrize(
    ("value", "found"),
    [([None, 1], "null"), ([[1, 2], [3, None]], "null"), ({"a": 1}, "an object"), ([{}], "an object"),
     (None, ""), (1, ""), ([[1.5], [2]], ""), ([], "")],
)  # fmt: skip
def test_a_warm_up_holds_what_a_tensor_holds(value: Any, found: str) -> None:
    says = linted(inputs=[TENSOR], warmup=[{"inputs": {"x": 1}}, {"inputs": {"x": value}}])
    assert list(says) == (["warmup[1].inputs.x"] if found else [])
    assert not found or says["warmup[1].inputs.x"].startswith(f"{found} is no element of a tensor. Write numbers")


def broken(own: dict[str, Any], wanted: dict[str, Any], side: str = "inputs") -> list[str]:
    other = "outputs" if side == "inputs" else "inputs"
    serving = {side: [{**TENSOR, "name": "first"}, {**TENSOR, **own}], other: []}
    return [one.field for one in against_contract(serving, {side: [{**TENSOR, "name": "first"}, {**TENSOR, **wanted}]})]


@pytest.mark.parametrize(
    ("own", "wanted", "fits"),
    [([2], [2], True), ([2], [3], False), ([-1], [3], True), ([2], [-1], True), ([2, 3], [2], False), ([2, 3], [-1, 4], False),
     ([2, 3], [2, -1], True), ([2, 3], [3, 3], False), ([], [], True)],
)  # fmt: skip
def test_shapes_fit_where_they_are_equal_or_free(own: list[int], wanted: list[int], fits: bool) -> None:
    for side in ("inputs", "outputs"):
        assert broken({"dims": own}, {"dims": wanted}, side) == ([] if fits else [f"serving.{side}[1].dims"])


def test_types_and_names_are_the_contracts() -> None:
    assert broken({"data_type": "FP16"}, {}) == ["serving.inputs[1].data_type"]
    assert broken({"name": "other"}, {}) == ["serving.inputs", "serving.inputs[1].name"]
    assert broken({"name": "other"}, {}, "outputs") == ["serving.outputs"]  # an output more is allowed
    assert against_contract({"inputs": [TENSOR], "outputs": [TENSOR]}, {"outputs": [TENSOR]}) == []
