"""config.pbtxt: written from serving, and read back with the place of every mistake."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from ledger.core.errors import Invalid
from registry.adapters.pbtxt import _KNOWN, check, parse
from registry.core.pbtxt import FieldPosition, places, render
from registry.core.pbtxt_advice import ADVICE
from registry.core.serving import DATA_TYPES
from registry.core.spec import parse_spec
from tests.support.worlds.registry_samples import release_yaml

SPEC = parse_spec(release_yaml())
AGREES = 'name: "sentiment"\nbackend: "sluicegate-onnx"\nmax_batch_size: 16\n'

_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_/.]{0,10}", fullmatch=True)
_TENSORS = st.lists(
    st.fixed_dictionaries(
        {
            "name": _NAMES,
            "data_type": st.sampled_from(sorted(set(DATA_TYPES) - {"BF16"})),
            "dims": st.lists(st.just(-1) | st.integers(1, 4096), min_size=1, max_size=4),
        }
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda t: t["name"],
)
_QUEUE = st.none() | st.fixed_dictionaries(
    {
        "timeout_action": st.sampled_from(["reject", "delay"]),
        "default_timeout_us": st.integers(0, 10**6),
        "allow_timeout_override": st.booleans(),
        "max_queue_size": st.integers(0, 100),
    }
)
_SERVING = st.fixed_dictionaries(
    {
        "max_batch_size": st.integers(8, 64),
        "inputs": _TENSORS,
        "outputs": _TENSORS,
        "warmup": st.just([]),
        "dynamic_batching": st.fixed_dictionaries(
            {
                "preferred_batch_size": st.lists(st.integers(1, 8), max_size=3),
                "max_queue_delay_us": st.integers(0, 10**6),
            }
        ),
        "queue_policy": _QUEUE,
        "instance_group": st.lists(
            st.fixed_dictionaries({"kind": st.just("cpu"), "count": st.integers(1, 4)}), min_size=1, max_size=2
        ),
        "parameters": st.dictionaries(
            _NAMES, st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20), max_size=3
        ),
    }
)


@given(_SERVING)
def test_what_is_rendered_reads_as_the_same(serving: dict[str, Any]) -> None:
    spec = parse_spec(release_yaml({"serving": serving, "envelope": {}}))
    text = render(spec.serving, spec.model, backend=spec.backend)
    check(text.encode(), spec, "config.pbtxt")
    stated = parse(text).stated
    assert {word: spec.serving[word] for word in stated} == stated
    assert {word for word, value in spec.serving.items() if value and word != "warmup"} <= set(stated)


def test_the_rendered_text_is_tritons() -> None:
    message = text_format.Parse(render(SPEC.serving, "sentiment", backend="python"), model_config_pb2.ModelConfig())
    assert (message.name, message.backend, message.max_batch_size) == ("sentiment", "python", 16)
    assert message.input[0].data_type == model_config_pb2.TYPE_STRING and list(message.output[0].dims) == [2]
    assert list(message.dynamic_batching.preferred_batch_size) == [4, 8]
    assert message.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_CPU
    assert message.parameters["max_tokens"].string_value == "128"
    assert not message.model_warmup


@pytest.mark.parametrize("value", ['say "hi"\n', "back\\slash", "tab\tand ünïcode", "\x01\x7f"])
def test_quoting_survives_the_round_trip(value: str) -> None:
    text = render({**SPEC.serving, "parameters": {"k": value}}, "m")
    assert text_format.Parse(text, model_config_pb2.ModelConfig()).parameters["k"].string_value == value


def test_silence_agrees() -> None:
    with pytest.raises(Invalid):
        check(b"max_batch_size: 15", SPEC, "config.pbtxt")
    check(AGREES.encode(), SPEC, "config.pbtxt")
    check(b'platform: "onnxruntime_onnx" max_batch_size: 16', SPEC, "config.pbtxt")


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        (AGREES + "bogus_field: 1\n", "4:1", 'no field named "bogus_field"'),
        (AGREES + 'input [\n  { name: "text" data_type: TYPE_FLOAT99 }\n]', "5:29", "no value named TYPE_FLOAT99"),
        ('name: "sentiment\n', "1:7", "missing ending quote"),
        ("max_batch_size: -4\n", "1:1", "-4 is out of range"),
        (
            "# a comment\n\nmax_batch_size: 4\ndynamic_batching {\n  preferred_batch_size: [ 2, 8 ]\n}",
            "5:3",
            "8 is more than",
        ),
        (AGREES + 'model_warmup { name: "w" }', "4:1", "no place for model_warmup"),
        (
            AGREES + "instance_group [ { count: 1 kind: KIND_CPU }, { gpus: [ 0 ] kind: KIND_GPU } ]",
            "4:49",
            "no place for instance_group[1].gpus",
        ),
        (AGREES + "instance_group { kind: KIND_AUTO }", "4:18", "not an instance kind"),
    ],
)
def test_a_bad_value_has_line_and_column(text: str, place: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(text)
    errors = {error["field"]: error["message"] for error in caught.value.facts["errors"]}
    assert caught.value.code == "invalid_config"
    assert says in errors[f"config.pbtxt:{place}"]


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("max_batch_size: 8", "1:1", "max_batch_size is 8, and serving.max_batch_size in release.yaml is 16"),
        ('name: "other"\nmax_batch_size: 16', "1:1", "not the model's name"),
        ('max_batch_size: 16\nbackend: "python"', "2:1", "contradicts runtime.backend, which is sluicegate-onnx"),
        ('max_batch_size: 16\nplatform: "tensorrt_plan"', "2:1", "platform 'tensorrt_plan' contradicts"),
        (
            'max_batch_size: 16\ninput [\n  {\n    name: "text"\n    data_type: TYPE_FP32\n    dims: [ 1 ]\n  }\n]',
            "5:5",
            "input[0].data_type is FP32, and serving.inputs[0].data_type in release.yaml is BYTES",
        ),
        ('max_batch_size: 16\noutput { name: "probabilities" data_type: TYPE_FP32\n dims: 3 }', "3:2", "[3]"),
        (
            "max_batch_size: 16\ndynamic_batching { preferred_batch_size: [4, 8]\n max_queue_delay_microseconds: 5 }",
            "3:2",
            "max_queue_delay_microseconds is 5",
        ),
        ("max_batch_size: 16\ninstance_group [ { kind: KIND_CPU\n count: 3 } ]", "3:2", "count is 3"),
        ('max_batch_size: 16\nparameters { key: "max_tokens" value { string_value: "64" } }', "2:1", "max_tokens"),
        (
            "max_batch_size: 16\ndynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 1000\n "
            "default_queue_policy { max_queue_size: 3 } }",
            "3:2",
            "release.yaml is None",
        ),
        (
            "max_batch_size: 16\nmodel_transaction_policy { decoupled: true }",
            "2:28",
            "model_transaction_policy.decoupled is True, and serving.decoupled in release.yaml is False",
        ),
        ("", "1:1", "max_batch_size is 0"),
    ],
)
def test_a_disagreement_with_release_yaml_has_line_and_column(text: str, place: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        check(text.encode(), SPEC, "artifact/config.pbtxt")
    assert caught.value.code == "config_disagrees"
    errors = {error["field"]: error for error in caught.value.facts["errors"]}
    assert says in errors[f"artifact/config.pbtxt:{place}"]["message"]
    assert errors[f"artifact/config.pbtxt:{place}"]["fix"]


def test_a_release_that_streams_says_so_in_both() -> None:
    text = {"name": "text", "data_type": "BYTES", "dims": [1]}
    serving = {"max_batch_size": 8, "inputs": [text], "outputs": [text], "warmup": [], "decoupled": True}
    spec = parse_spec(release_yaml({"serving": serving, "runtime.backend": "python", "envelope": {}}))
    rendered = render(spec.serving, spec.model, backend=spec.backend)
    check(rendered.encode(), spec, "config.pbtxt")
    assert parse(rendered).stated["decoupled"] is True
    refusing = rendered.replace("decoupled: true", "decoupled: false")
    with pytest.raises(Invalid, match="decoupled is False, and serving.decoupled in release.yaml is True"):
        check(refusing.encode(), spec, "config.pbtxt")
    plain = parse_spec(release_yaml({"envelope": {}}))
    unary = render(plain.serving, plain.model, backend=plain.backend) + "model_transaction_policy { decoupled: false }"
    check(unary.encode(), plain, "config.pbtxt")


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(Invalid, match="not UTF-8"):
        check(b"\xff\xfe", SPEC, "config.pbtxt")


def test_places_of_lists_messages_and_comments() -> None:
    found = places(
        '# name: "no"\na: 1 b {\n  c: "x: {" # d\n  e < f: [1, 2] >\n}\ninput [ { g: KIND }, { g: X } ]\nlast: 2'
    )
    assert {name: str(place) for name, place in found.items() if not name.endswith("]")} == {
        "a": "2:1",
        "b": "2:6",
        "b[0].c": "3:3",
        "b[0].e": "4:3",
        "b[0].e[0].f": "4:7",
        "input": "6:1",
        "input[0].g": "6:11",
        "input[1].g": "6:24",
        "last": "7:1",
    }
    assert found["input[1]"] == FieldPosition(6, 22)


def refused_fields() -> list[tuple[str, str]]:
    """(message, field) of each field of Triton that a release has no place for, in messages that it reads."""
    messages = {"ModelConfig": model_config_pb2.ModelConfig.DESCRIPTOR}
    for field in messages["ModelConfig"].fields:
        if field.message_type is not None and field.message_type.name in _KNOWN:
            messages[field.message_type.name] = field.message_type
    found = [(name, field.name) for name, message in messages.items() for field in message.fields]
    return [(message, field) for message, field in found if field not in _KNOWN[message]]


def test_each_field_that_is_refused_says_what_to_do_instead() -> None:
    harmless = {
        "runtime", "version_policy", "metric_tags", "graph", "priority", "cuda", "input_pinned_memory", "output_pinned_memory",
        "gather_kernel_buffer_threshold", "eager_batching", "model_metrics", "response_cache", "format",
        "preserve_ordering", "name", "host_policy",
    }  # fmt: skip
    assert len(refused_fields()) >= 30
    for message, field in refused_fields():
        advice = ADVICE[message][field]
        is_removed = advice.fix == f"Remove {field}."
        assert is_removed is (field in harmless) is advice.means.startswith("It changes no answer"), field
        assert advice.means.endswith(".") and advice.fix.endswith(".")
    assert {name for name, fields in ADVICE.items() for field in fields} <= _KNOWN.keys()


@pytest.mark.parametrize(
    ("text", "means", "fix"),
    [
        (
            'input { name: "text" data_type: TYPE_STRING dims: 1 reshape { shape: [ 1, 1 ] } }',
            "another shape",
            "a Reshape into",
        ),
        ('input { name: "text" data_type: TYPE_STRING dims: 1 optional: true }', "have to send it", "has a default"),
        (
            'output { name: "probabilities" data_type: TYPE_FP32 dims: 2 label_filename: "l.txt" }',
            "names would be",
            "BYTES",
        ),
        ("ensemble_scheduling { step { model_name: 'a' } }", "It is the model", "one graph"),
        ("sequence_batching { direct { } }", "state between requests", "Pass the state"),
        ("instance_group { kind: KIND_CPU gpus: [ 0 ] }", "gives each server its devices", "accelerator.count"),
        ("optimization { graph { level: 1 } }", "optimization.graph. It changes no answer", "Remove graph."),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' "
            "parameters { key: 'precision_mode' value: 'FP16' } } } }",
            "optimization.execution_accelerators. An accelerator computes in other kernels",
            "Export the graph in that precision, or build a plan of it",
        ),
    ],
)
def test_a_field_without_a_place_is_told_with_its_consequence(text: str, means: str, fix: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(AGREES + text)
    [error] = caught.value.facts["errors"]
    assert "release.yaml has no place for" in error["message"] and means in error["message"] and fix in error["fix"]


@pytest.mark.parametrize(
    ("platform", "fix"),
    [
        ("ensemble", "Join the steps"),
        ("tensorflow_savedmodel", "Convert the model to ONNX"),
        ("python", "Make the two equal"),
    ],
)
def test_a_backend_that_is_not_here_is_not_to_be_written(platform: str, fix: str) -> None:
    with pytest.raises(Invalid) as caught:
        check(f'platform: "{platform}" max_batch_size: 16'.encode(), SPEC, "config.pbtxt")
    assert fix in caught.value.facts["errors"][0]["fix"]


@given(st.text(alphabet="ab{}[]<>:\"'\n #1,", max_size=40))
def test_places_never_break_on_broken_text(text: str) -> None:
    assert isinstance(places(text), dict)
