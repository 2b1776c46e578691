"""The envelope: units in names, and no contradiction with serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from registry.core.contract import OBJECTIVES
from registry.core.envelope import ENVELOPE
from registry.core.schema import ListOf, Object, Record
from registry.core.spec import DOCUMENT, parse_spec, read_spec
from tests.support.worlds.registry_samples import release_yaml

GPU = {"serving.instance_group": [{"kind": "gpu", "count": 2}]}
FULL: dict[str, Any] = {
    "accelerator": {
        "vendor": "nvidia",
        "count": 1,
        "memory_mib_min": 8000,
        "memory_mib_peak_declared": 6000,
        "compute_capability": {"min": "8.0"},
        "sku_allow": ["NVIDIA-L4"],
        "sku_deny": ["Tesla-T4"],
        "mig": {"allowed": True, "mode": "single", "profiles": ["1g.10gb"]},
        "interconnect": "pcie",
        "exclusive": False,
    },
    "host": {
        "cpu_cores_min": 2.5,
        "memory_mib_min": 4096,
        "shm_mib_min": 64,
        "pinned_memory_mib": 256,
        "disk_mib": 900,
        "os": "linux",
        "arch": "x86_64",
        "numa_local": False,
    },
    "driver": {"driver_min": "535.104", "cuda_min": "12.2", "cuda_max_exclusive": "13.0", "forward_compat": False},
    "engine": {
        "type": "onnx",
        "builder_version": "1.19",
        "version_compatible": True,
        "precision": "fp16",
        "built_on": {"sku": "NVIDIA-L4", "compute_capability": "8.9", "driver": "550.54"},
        "optimization_profiles": [{"input": "text", "min": [1, 1], "opt": [8, 1], "max": [16, 1]}],
    },
    "limits": {
        "max_request_bytes": 1048576,
        "max_batch_size": 16,
        "instances": 2,
        "max_concurrency": 32,
        "max_input_dims": {"text": [1]},
        "max_input_tokens": 128,
        "streaming": False,
    },
    "performance": [
        {
            "hardware": "NVIDIA-L4",
            "workload": "golden",
            "source": "declared",
            "batch_size": 8,
            "load_shape": {"mode": "open", "rate_per_s": 100},
            "latency_ms": {"p50": 3, "p95": 5, "p99": 9.5},
            "throughput": {"value": 400, "unit": "items_per_s"},
            "error_max_frac": 0.001,
            "gpu_memory_mib_peak": 5000,
            "cold_start_s": {"download": 4, "load": 3, "warmup": 1},
            "n": 1000,
            "duration_s": 60,
        }
    ],
    "lifecycle": {
        "load_timeout_s": 60,
        "warmup_requests": 5,
        "drain_s": 10,
        "replicas": {"min": 1, "max": 4},
        "scale_unit": 1,
    },
}


def fields(changes: dict[str, Any], envelope: dict[str, Any] | None = None) -> dict[str, str]:
    """{field: message and fix} of a good document with this envelope and changes."""
    _, problems = read_spec(release_yaml(({"envelope": envelope} if envelope is not None else {}) | changes))
    return {problem.field: f"{problem.message} {problem.fix}" for problem in problems}


def test_a_full_envelope_is_read_as_it_stands() -> None:
    assert parse_spec(release_yaml({"envelope": FULL, **GPU})).envelope == FULL


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        (
            {"envelope.limits.max_batch_size": 32},
            "envelope.limits.max_batch_size",
            "contradicts serving.max_batch_size, which is 16",
        ),
        (
            {"envelope.limits.instances": 3},
            "envelope.limits.instances",
            "contradicts serving.instance_group, which counts 1",
        ),
        (
            {"serving.instance_group": [{"kind": "cpu", "count": 4}], "envelope.limits.max_concurrency": 2},
            "envelope.limits.max_concurrency",
            "less than the 4 instances of serving.instance_group",
        ),
        (
            {"serving.queue_policy": {"max_queue_size": 10}, "envelope.limits.max_concurrency": 100},
            "envelope.limits.max_concurrency",
            "serving.queue_policy.max_queue_size 10",
        ),
        (
            {"envelope.accelerator": {"vendor": "none"}, **GPU},
            "envelope.accelerator.vendor",
            "serving.instance_group asks for gpu",
        ),
        (GPU, "envelope.accelerator.vendor", "serving.instance_group asks for gpu"),
        ({"envelope.accelerator": {"vendor": "nvidia", "count": 0}}, "envelope.accelerator.count", "the count is 0"),
        (
            {"envelope.accelerator": {"vendor": "none", "memory_mib_min": 5}},
            "envelope.accelerator.memory_mib_min",
            "vendor is none",
        ),
        ({"runtime.backend": "tensorrt"}, "serving.instance_group", "runtime.backend tensorrt runs on a gpu only"),
        ({"envelope.engine": {"type": "trt-plan"}}, "envelope.engine.type", "runtime.backend sluicegate-onnx"),
        ({"envelope.batching": {"max_batch_size": 16}}, "envelope.batching", "derived from serving"),
        ({"envelope.host.memory": 512}, "envelope.host.memory", "Was memory_mib_min meant"),
        (
            {"envelope.limits.max_input_dims": {"txt": [1]}},
            "envelope.limits.max_input_dims.txt",
            "serving.inputs has no 'txt'",
        ),
        (
            {"envelope.limits.max_input_dims": {"text": [2]}},
            "envelope.limits.max_input_dims.text",
            "contradicts the dims [1] in serving.inputs",
        ),
        (
            {"envelope.driver": {"cuda_min": "12.10", "cuda_max_exclusive": "12.9"}},
            "envelope.driver.cuda_max_exclusive",
            "no version fits",
        ),
        ({"envelope.lifecycle": {"replicas": {"min": 3, "max": 2}}}, "envelope.lifecycle.replicas.max", "less than"),
    ],
)
def test_a_contradiction_names_both_fields(changes: dict[str, Any], field: str, says: str) -> None:
    found = fields(changes)
    assert says in found[field]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"latency_ms": {"p50": 9, "p99": 5}}, "latency_ms.p99"),
        ({"batch_size": 17}, "batch_size"),
        ({"gpu_memory_mib_peak": 9000}, "gpu_memory_mib_peak"),
        ({"load_shape": {"mode": "closed"}}, "load_shape.concurrency"),
        ({"source": "guessed"}, "source"),
        ({"latency": 5}, "latency"),
    ],
)
def test_a_performance_entry_is_checked(changes: dict[str, Any], field: str) -> None:
    entry = {**FULL["performance"][0], **changes}
    assert set(fields(GPU, {**FULL, "performance": [entry]})) == {f"envelope.performance[0].{field}"}


def test_no_limit_is_checked_against_a_serving_part_that_could_not_be_read() -> None:
    assert set(fields({"serving.max_batch_size": "x"})) == {"serving.max_batch_size"}


def _names(kind: Any) -> set[str]:
    if isinstance(kind, ListOf | Object):
        return _names(kind.of)
    if isinstance(kind, Record):
        return set(kind.members) | {name for member in kind.members.values() for name in _names(member.kind)}
    return set()


def test_every_field_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "release-folder.md").read_text()
    missing = sorted(
        name for name in _names(DOCUMENT) | _names(ENVELOPE) | _names(OBJECTIVES) if f"`{name}`" not in page
    )
    assert missing == []
