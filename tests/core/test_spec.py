"""release.yaml: every mistake is named at once, with its field and its fix."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.errors import Invalid
from registry.core.contract import read_settings
from registry.core.serving import against_contract
from registry.core.spec import DOCUMENT, parse_spec, read_spec
from tests.support.worlds.registry_samples import CONTRACT, IMAGE, release_yaml


def mistakes(changes: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """{field: (message, fix)} of a good document with changes."""
    with pytest.raises(Invalid) as caught:
        parse_spec(release_yaml(changes))
    return {error["field"]: (error["message"], error["fix"]) for error in caught.value.facts["errors"]}


def test_a_good_document_is_read_whole() -> None:
    spec = parse_spec(release_yaml())
    assert (spec.model, spec.backend, spec.runtime["image"]) == ("sentiment", "sluicegate-onnx", IMAGE)
    assert spec.serving["warmup"] == [{"batch_size": 1, "inputs": {"text": "warm"}}]
    assert parse_spec(spec.as_json()) == spec


def test_defaults_are_filled_in_for_serving_and_never_for_the_envelope() -> None:
    spec = parse_spec(
        {
            "model": "sentiment",
            "runtime": {"image": IMAGE, "backend": "sluicegate-onnx"},
            "serving": {"max_batch_size": 0, **CONTRACT},
        }
    )
    assert spec.runtime["server"] == "triton"
    assert spec.serving["instance_group"] == [{"kind": "cpu", "count": 1}]
    assert spec.serving["dynamic_batching"] is None and spec.serving["queue_policy"] is None
    assert spec.serving["warmup"] == [] and spec.serving["parameters"] == {}
    assert spec.envelope == {} and spec.provenance == {}


def test_two_spellings_of_one_configuration_are_one() -> None:
    shuffled = {"serving.dynamic_batching.preferred_batch_size": [8, 4, 8], "provenance.trained_at": date(2026, 3, 1)}
    plain = {"provenance.trained_at": "2026-03-01"}
    assert parse_spec(release_yaml(shuffled)) == parse_spec(release_yaml(plain))


@pytest.mark.parametrize(
    ("changes", "field", "message", "fix"),
    [
        ({"surprise": 1}, "surprise", "no such field", "Remove it"),
        ({"serving.max_batchsize": 1}, "serving.max_batchsize", "no such field", "Was max_batch_size meant"),
        ({"serving.input": []}, "serving.input", "no such field", "Write inputs"),
        ({"model": ...}, "model", "missing", "Add model"),
        ({"model": "Sentiment!"}, "model", "not a model's name", "such as sentiment"),
        ({"runtime.image": "triton-local:v1"}, "runtime.image", "names a tag (v1)", "triton-local@sha256:"),
        ({"runtime.image": "triton-local"}, "runtime.image", "names a tag (latest)", "triton-local@sha256:"),
        ({"runtime.image": "host:5000/triton"}, "runtime.image", "names a tag (latest)", "host:5000/triton@sha256:"),
        ({"runtime.image": "triton@sha256:12"}, "runtime.image", "not an image named by its digest", "64 hex digits"),
        ({"runtime.backend": "onnxruntime"}, "runtime.backend", "Triton's own backend", "Write sluicegate-onnx"),
        ({"runtime.backend": "sluicegate-onx"}, "runtime.backend", "not a known backend", "Was sluicegate-onnx meant"),
        (
            {"serving.inputs.0.data_type": "FLOAT99"},
            "serving.inputs[0].data_type",
            "not a data type",
            "Write one of BOOL",
        ),
        (
            {"serving.inputs.0.data_type": "TYPE_STRING"},
            "serving.inputs[0].data_type",
            "not a data type",
            "Write BYTES.",
        ),
        ({"serving.outputs.0.data_type": "float32"}, "serving.outputs[0].data_type", "not a data type", "Write FP32."),
        ({"serving.outputs.0.data_type": 32}, "serving.outputs[0].data_type", "not text", "Write one of BOOL"),
        ({"serving.inputs.0.dims": [0]}, "serving.inputs[0].dims[0]", "out of range", "or -1"),
        ({"serving.inputs.0.dims": [1] * 32}, "serving.inputs[0].dims", "32 items", "0 to 31"),
        ({"serving.inputs.0.dims": 3}, "serving.inputs[0].dims", "not a list", "also for a single item"),
        ({"serving.max_batch_size": -1}, "serving.max_batch_size", "out of range", "0 to"),
        ({"serving.max_batch_size": True}, "serving.max_batch_size", "not a whole number", "0 to"),
        ({"serving.max_batch_size": "16"}, "serving.max_batch_size", "not a whole number", "0 to"),
        (
            {"serving.dynamic_batching.preferred_batch_size": [4, 17]},
            "serving.dynamic_batching.preferred_batch_size[1]",
            "17 is more than serving.max_batch_size, which is 16",
            "Write at most 16",
        ),
        (
            {"serving.dynamic_batching.max_queue_delay_microseconds": 5},
            "serving.dynamic_batching.max_queue_delay_microseconds",
            "no such field",
            "max_queue_delay_us",
        ),
        (
            {"serving.instance_group": [{"kind": "tpu"}]},
            "serving.instance_group[0].kind",
            "not an instance kind",
            "cpu, gpu",
        ),
        (
            {"serving.instance_group": [{"kind": "cpu", "count": 0}]},
            "serving.instance_group[0].count",
            "out of range",
            "1 to",
        ),
        (
            {"serving.queue_policy": {"timeout_action": "drop"}},
            "serving.queue_policy.timeout_action",
            "not a timeout action",
            "reject, delay",
        ),
        (
            {"serving.dynamic_batching": None, "serving.queue_policy": {}},
            "serving.queue_policy",
            "there is none",
            "Add serving.dynamic_batching",
        ),
        (
            {"serving.warmup": [{"inputs": {"text": "x", "txet": "y"}}]},
            "serving.warmup[0].inputs.txet",
            "no such input",
            "Its inputs are text",
        ),
        ({"serving.warmup": [{"inputs": {}}]}, "serving.warmup[0].inputs", "'text' has no value", "Add text"),
        (
            {"serving.warmup": [{"batch_size": 17, "inputs": {"text": "x"}}]},
            "serving.warmup[0].batch_size",
            "more than",
            "at most 16",
        ),
        (
            {"serving.warmup": [{"inputs": {"text": float("nan")}}]},
            "serving.warmup[0].inputs.text",
            "cannot be written as JSON",
            "finite",
        ),
        ({"serving.parameters": {"a": 1}}, "serving.parameters.a", "not text", "in quotes"),
        (
            {"serving.inputs": [*CONTRACT["inputs"], *CONTRACT["inputs"]]},
            "serving.inputs",
            "occurs twice",
            "a name of its own",
        ),
        ({"provenance.git_commit": 1234567}, "provenance.git_commit", "not text", "in quotes"),
        ({"provenance.trained_at": "yesterday"}, "provenance.trained_at", "not a date", "ISO 8601"),
        ({"provenance.ci_run_url": "javascript:alert(1)"}, "provenance.ci_run_url", "not an http", "https://"),
        ({"provenance": []}, "provenance", "not an object", "Write the members"),
    ],
)
def test_each_mistake_names_its_field_and_its_fix(changes: dict[str, Any], field: str, message: str, fix: str) -> None:
    found = mistakes(changes)
    assert field in found
    assert message in found[field][0] and fix in found[field][1]


def test_all_mistakes_are_named_at_once() -> None:
    found = mistakes(
        {
            "x": 1,
            "runtime.image": "a:1",
            "serving.max_batch_size": 2,
            "serving.inputs.0.data_type": "int",
            "envelope.batching": {},
        }
    )
    assert set(found) == {
        "x",
        "runtime.image",
        "serving.inputs[0].data_type",
        "serving.warmup[0].inputs.text",
        "envelope.batching",
        "serving.dynamic_batching.preferred_batch_size[0]",
        "serving.dynamic_batching.preferred_batch_size[1]",
        "envelope.limits.max_batch_size",
    }


@pytest.mark.parametrize("document", [None, [], "model: x", 3])
def test_a_document_that_is_no_object_is_refused(document: Any) -> None:
    with pytest.raises(Invalid, match="not an object"):
        parse_spec(document)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*DOCUMENT.members, "inputs", "kind"]) | st.text(), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(
    st.sampled_from(
        [
            "runtime",
            "serving",
            "serving.inputs",
            "serving.warmup",
            "serving.dynamic_batching",
            "envelope",
            "envelope.limits",
            "envelope.performance",
            "provenance",
            "model",
            "serving.inputs.0",
        ]
    ),
    _JSON,
)
def test_whatever_is_sent_is_read_or_refused_with_reasons(path: str, value: Any) -> None:
    spec, problems = read_spec(release_yaml({path: value}))
    assert (spec is None) == bool(problems) and all(problem.message and problem.fix for problem in problems)


def test_a_release_must_keep_the_models_contract() -> None:
    serving = parse_spec(
        release_yaml({"serving.outputs.0.dims": [3], "serving.inputs.0.data_type": "INT64", "serving.warmup": []})
    ).serving
    fields = {problem.field for problem in against_contract(serving, CONTRACT)}
    assert fields == {"serving.outputs[0].dims", "serving.inputs[0].data_type"}
    other = parse_spec(
        release_yaml({"serving.inputs.0.name": "t", "serving.warmup": [], "serving.outputs.0.dims": [-1]})
    ).serving
    assert {p.field for p in against_contract(other, CONTRACT)} == {"serving.inputs", "serving.inputs[0].name"}
    assert against_contract(other, {}) == []


def test_objectives_are_fractions_and_milliseconds() -> None:
    _, problems = read_settings(
        {"objectives": {"errors_max_frac": 2, "slow": {"threshold_ms": 0}, "max_slow_frac": 0.1}, "gate_policy": []}
    )
    assert {p.field for p in problems} == {
        "objectives.errors_max_frac",
        "objectives.slow.threshold_ms",
        "objectives.slow.max_frac",
        "objectives.max_slow_frac",
        "gate_policy",
    }
    good = {"objectives": {"errors_max_frac": 0.001, "slow": {"threshold_ms": 250, "max_frac": 0.01}}}
    assert read_settings(good) == (good, [])
