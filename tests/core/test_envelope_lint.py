"""Limits of an envelope at their edges: what just fits serving and what does not any more."""

from __future__ import annotations

from typing import Any

import pytest

from registry.core.envelope_lint import lint

CPU = [{"kind": "cpu", "count": 2}]
GPU = [{"kind": "gpu", "count": 2}]
INPUTS = [{"name": "ids", "data_type": "INT64", "dims": [-1, 8]}]
SERVING: dict[str, Any] = {"max_batch_size": 4, "inputs": INPUTS, "instance_group": CPU, "queue_policy": None}


def found(
    envelope: dict[str, Any], serving: dict[str, Any] = SERVING, backend: str = "sluicegate-onnx"
) -> dict[str, str]:
    problems = lint(envelope, serving, backend)
    assert all(one.fix for one in problems)
    return {one.field.removeprefix("envelope."): f"{one.message} {one.fix}" for one in problems}


def gpu(**members: Any) -> dict[str, str]:
    """What is wrong with an accelerator on a server of two gpu instances."""
    return found({"accelerator": {"vendor": "nvidia", **members}}, {**SERVING, "instance_group": GPU})


def test_without_a_vendor_nothing_can_be_asked_of_a_device() -> None:
    nothing = {"count": 0, "memory_mib_min": 0, "exclusive": False, "sku_allow": [], "mig": {}, "interconnect": "none"}
    assert found({"accelerator": {"vendor": "none", **nothing}}) == {}
    for name, value in {
        "count": 1,
        "exclusive": True,
        "sku_allow": ["L4"],
        "mig": {"mode": "none"},
        "interconnect": "pcie",
    }.items():
        assert list(found({"accelerator": {"vendor": "none", name: value}})) == [f"accelerator.{name}"]
    assert list(found({"accelerator": {"memory_mib_min": 1}})) == ["accelerator.memory_mib_min"]


def test_a_vendor_gives_at_least_one_device() -> None:
    assert gpu(count=1) == gpu() == {} and list(gpu(count=0)) == ["accelerator.count"]


def test_gpu_instances_need_a_vendor_and_tensorrt_needs_gpu_instances() -> None:
    assert list(found({}, {**SERVING, "instance_group": GPU})) == ["accelerator.vendor"]
    assert found({"accelerator": {"vendor": "nvidia"}}) == {}  # processors may use a device for parts of a graph
    assert list(found({}, backend="tensorrt")) == ["serving.instance_group"]
    assert found({"accelerator": {"vendor": "nvidia"}}, {**SERVING, "instance_group": GPU}, "tensorrt") == {}
    assert found({}, {"max_batch_size": 4}, "tensorrt") == {}  # it could not be read: it has a problem of its own


def test_declared_memory_holds_its_own_peak() -> None:
    assert gpu(memory_mib_min=100, memory_mib_peak_declared=100) == {}
    assert gpu(memory_mib_min=100) == gpu(memory_mib_peak_declared=100) == {}
    assert "Ask for at least 101" in gpu(memory_mib_min=100, memory_mib_peak_declared=101)["accelerator.memory_mib_min"]


def test_a_device_is_asked_for_in_one_way() -> None:
    assert gpu(compute_capability={"min": "8.0"}) == gpu(compute_capability={"any_of": ["8.0"]}) == {}
    assert list(gpu(compute_capability={"min": "8.0", "any_of": ["8.0"]})) == ["accelerator.compute_capability"]
    assert gpu(sku_allow=["A"], sku_deny=["B"]) == {}
    assert "A is also in" in gpu(sku_allow=["A", "C"], sku_deny=["B", "A"])["accelerator.sku_deny"]


@pytest.mark.parametrize(
    ("low", "high", "fits"),
    [
        ("12.4", "12.5", True), ("12.4", "12.4", False), ("12.4", "12.4.0.0", False), ("12.4", "12.4.0.1", True),
        ("12.10", "12.9", False), ("12.9", "12.10", True), ("12", "13", True), ("13", "12.9", False), ("12.4.1", "12.4", False),
    ],
)  # fmt: skip
def test_a_version_must_lie_between_least_and_most(low: str, high: str, fits: bool) -> None:
    said = found({"driver": {"cuda_min": low, "cuda_max_exclusive": high}})
    assert list(said) == ([] if fits else ["driver.cuda_max_exclusive"])
    assert found({"driver": {"cuda_min": low}}) == found({"driver": {"cuda_max_exclusive": high}}) == {}


@pytest.mark.parametrize(
    ("backend", "engine"), [("tensorrt", "trt-plan"), ("sluicegate-onnx", "onnx"), ("pytorch", "torchscript")]
)
def test_each_backend_loads_its_own_kind_of_engine(backend: str, engine: str) -> None:
    serving = {**SERVING, "instance_group": GPU}
    for kind in ("trt-plan", "onnx", "torchscript", "python"):
        said = found({"accelerator": {"vendor": "nvidia"}, "engine": {"type": kind}}, serving, backend)
        assert list(said) == ([] if kind == engine else ["engine.type"])
    assert found({"engine": {"type": "onnx"}}, backend="python") == {}  # code loads what it likes


def profile(least: list[int], best: list[int], most: list[int], name: str = "ids") -> list[str]:
    shapes = {"input": name, "min": least, "opt": best, "max": most}
    return list(found({"engine": {"optimization_profiles": [shapes]}}))


def test_the_shapes_of_a_profile_grow_in_each_dimension() -> None:
    at = ["engine.optimization_profiles[0]"]
    assert profile([1, 8], [4, 8], [4, 8]) == profile([2], [2], [2]) == []
    for shapes in (
        ([2], [1], [3]),
        ([1], [3], [2]),
        ([1], [1, 1], [1]),
        ([1, 2], [1, 1], [1, 2]),
        ([1, 1], [1, 3], [2, 2]),
    ):
        assert profile(*shapes) == at
    assert list(found({"engine": {"optimization_profiles": [{"input": "ids", "min": [2], "max": [1]}]}})) == []


def test_a_profile_is_of_an_input_that_is_served() -> None:
    assert profile([1], [1], [1], name="words") == ["engine.optimization_profiles[0].input"]
    unread: list[dict[str, Any]] = [{}, {"inputs": [{"name": "ids"}, {}]}]
    for serving in unread:  # it has a problem of its own
        assert found({"engine": {"optimization_profiles": [{"input": "words"}]}}, serving) == {}
    assert found({"engine": {"optimization_profiles": [{}]}}) == {}


ON_TENSORRT = {**SERVING, "instance_group": GPU}
WIDE = {"input": "ids", "min": [1, 1, 8], "opt": [2, 32, 8], "max": [4, 64, 8]}


def plan(
    accelerator: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **engine: Any
) -> dict[str, str]:
    """What is wrong with an engine on a server of TensorRT that takes ids[-1, 8] in batches of 4."""
    envelope = {"accelerator": {"vendor": "nvidia", **(accelerator or {})}, "engine": engine, "limits": limits or {}}
    return found(envelope, ON_TENSORRT, "tensorrt")


def test_a_profile_takes_what_serving_and_the_limits_let_in() -> None:
    at = "engine.optimization_profiles[0]"
    assert (
        plan(optimization_profiles=[WIDE])
        == plan(optimization_profiles=[WIDE], limits={"max_input_dims": {"ids": [64, 8]}})
        == {}
    )
    for changes, says in (
        ({"max": [3, 64, 8]}, "takes batches of 1 to 3, and serving lets in 1 to 4"),
        ({"min": [2, 1, 8]}, "takes batches of 2 to 4"),
        ({"max": [4, 64, 9]}, "has the dims [-1, 8], which the profile contradicts"),
        ({"min": [1, 1], "opt": [1, 1], "max": [4, 1]}, "has 3 dimensions with the batch axis, the profile has 2"),
    ):
        assert says in plan(optimization_profiles=[WIDE | changes])[at]
    assert (
        "takes dims up to [64, 8], and"
        in plan(optimization_profiles=[WIDE], limits={"max_input_dims": {"ids": [65, 8]}})[at]
    )
    assert plan(optimization_profiles=[{**WIDE, "max": [3, 1, 8], "opt": [1, 9, 8]}]).keys() == {at}, (
        "out of order, and no more is said"
    )
    assert plan(optimization_profiles=[{"input": "ids", "min": [9]}]) == {}


def test_the_first_profile_of_an_input_counts_as_for_the_server() -> None:
    small, large = WIDE | {"max": [2, 40, 8]}, WIDE | {"min": [2, 1, 8]}
    at = "engine.optimization_profiles[0]"
    limits = {"max_input_dims": {"ids": [64, 8]}}
    assert "batches of 1 to 2" in plan(optimization_profiles=[small, WIDE])[at]
    assert "batches of 2 to" in plan(optimization_profiles=[large, small])[at], (
        "no batch of 1, whatever the second takes"
    )
    assert plan(optimization_profiles=[WIDE, small], limits=limits) == {}
    assert at in plan(optimization_profiles=[small, WIDE], limits=limits)


def test_one_dimension_beyond_the_profile_is_enough_to_refuse() -> None:
    image = {
        "max_batch_size": 0,
        "inputs": [{"name": "image", "data_type": "FP32", "dims": [-1, -1]}],
        "instance_group": GPU,
    }
    profiles = [{"input": "image", "min": [1, 1], "opt": [64, 64], "max": [64, 64]}]
    for limit, is_fine in (([64, 64], True), ([64, 65], False), ([65, 1], False)):
        envelope = {
            "accelerator": {"vendor": "nvidia"},
            "engine": {"optimization_profiles": profiles},
            "limits": {"max_input_dims": {"image": limit}},
        }
        assert (found(envelope, image, "tensorrt") == {}) is is_fine


def test_without_a_batch_axis_a_profile_has_the_dims_alone() -> None:
    def unbatched(shape: list[int]) -> dict[str, str]:
        profiles = [{"input": "ids", "min": shape, "opt": shape, "max": shape}]
        envelope = {"accelerator": {"vendor": "nvidia"}, "engine": {"optimization_profiles": profiles}}
        return found(envelope, {**ON_TENSORRT, "max_batch_size": 0}, "tensorrt")

    assert unbatched([5, 8]) == {}
    assert "has 2 dimensions, the profile has 3" in unbatched([1, 5, 8])["engine.optimization_profiles[0]"]


BUILT_ON_8_9 = {"built_on": {"compute_capability": "8.9"}}


@pytest.mark.parametrize(
    ("accelerator", "engine", "field", "says"),
    [
        ({}, BUILT_ON_8_9, "", ""),
        ({}, {"built_on": {"compute_capability": "9.0"}}, "", ""),
        ({"compute_capability": {"any_of": ["8.0", "8.9"]}}, BUILT_ON_8_9, "", ""),
        ({"compute_capability": {"any_of": ["8.0"]}}, BUILT_ON_8_9, "built_on", "any_of allows 8.0 only. Build the plan for 8.0"),
        ({"compute_capability": {"any_of": ["8.0"]}}, BUILT_ON_8_9 | {"hardware_compatibility": "ampere_plus"}, "", ""),
        ({"compute_capability": {"any_of": ["7.5"]}}, BUILT_ON_8_9 | {"hardware_compatibility": "ampere_plus"}, "built_on", "7.5 only"),
        ({"compute_capability": {"min": "8.9"}}, BUILT_ON_8_9, "", ""),
        ({"compute_capability": {"min": "10.0"}}, BUILT_ON_8_9, "built_on", "asks for 10.0 or later"),
        ({"compute_capability": {"min": "9.0"}}, BUILT_ON_8_9 | {"hardware_compatibility": "ampere_plus"}, "", ""),
        ({"sku_allow": ["NVIDIA-A10", "NVIDIA-L40S"]}, BUILT_ON_8_9, "", ""),
        ({"sku_allow": ["NVIDIA-A10", "NVIDIA-Next"]}, BUILT_ON_8_9, "", "of a product that is not known, nothing is said"),
        ({"sku_allow": ["NVIDIA-H100"]}, BUILT_ON_8_9, "built_on", "sku_allow allows NVIDIA-H100 (9.0) only"),
        ({"sku_allow": ["NVIDIA-H100"]}, {"flavour": "rtx"}, "accelerator.sku_allow", "9.0 (H100, H200)"),
        ({"sku_allow": ["NVIDIA-H100"]}, {}, "", ""),
        ({"compute_capability": {"any_of": ["9.0", "10.0"]}}, {"flavour": "rtx"}, "accelerator.compute_capability.any_of", "9.0 (H100"),
        ({"compute_capability": {"any_of": ["9.0", "12.0"]}}, {"flavour": "rtx"}, "", ""),
        ({}, {"flavour": "rtx", "built_on": {"compute_capability": "10.0"}}, "built_on", "only for 7.5, 8.0"),
        ({}, {"flavour": "rtx", "version_compatible": True}, "engine.version_compatible", "builds no such plan"),
        ({}, {"flavour": "rtx", "version_compatible": False, "hardware_compatibility": "none"}, "", ""),
        ({}, {"flavour": "rtx", "hardware_compatibility": "ampere_plus"}, "engine.hardware_compatibility", "builds no such plan"),
    ],
)  # fmt: skip
def test_a_plan_is_for_a_gpu_that_the_envelope_asks_for(
    accelerator: dict[str, Any], engine: dict[str, Any], field: str, says: str
) -> None:
    problems = plan(accelerator, **engine)
    if not field:
        assert problems == {}
    else:
        [(at, text)] = problems.items()
        assert field in at and says in text


def test_a_limit_that_serving_states_too_must_be_the_same() -> None:
    assert found({"limits": {"max_batch_size": 4, "instances": 2}}) == {} == found({"limits": {}})
    assert list(found({"limits": {"max_batch_size": 5, "instances": 3}})) == [
        "limits.max_batch_size",
        "limits.instances",
    ]
    assert list(found({"limits": {"max_batch_size": 3, "instances": 1}})) == [
        "limits.max_batch_size",
        "limits.instances",
    ]
    assert found({"limits": {"max_batch_size": 5, "instances": 9, "max_concurrency": 1}}, {}) == {}


def concurrent(most: int, **serving: Any) -> str:
    return found({"limits": {"max_concurrency": most}}, {**SERVING, **serving}).get("limits.max_concurrency", "")


def test_requests_at_once_are_as_many_as_instances_at_least() -> None:
    assert concurrent(2) == concurrent(10**6) == ""
    assert "Write 2 or more" in concurrent(1)
    for unread in ("instance_group", "max_batch_size"):
        serving = {name: value for name, value in SERVING.items() if name != unread}
        assert found({"limits": {"max_concurrency": 1}}, serving) == {}


def test_requests_at_once_fit_the_queue_and_what_is_computed() -> None:
    queue = {"queue_policy": {"max_queue_size": 10}}
    assert concurrent(18, **queue) == "" and "hold 18" in concurrent(19, **queue)
    assert "instances of batch 1 hold 12" in concurrent(13, **queue, max_batch_size=0)
    assert concurrent(12, **queue, max_batch_size=0) == "" == concurrent(10**6, queue_policy={"max_queue_size": 0})
    assert concurrent(10**6, queue_policy={}) == ""
    assert concurrent(9, queue_policy={"max_queue_size": 1}) == "" and concurrent(
        10, queue_policy={"max_queue_size": 1}
    )


def test_the_largest_input_has_the_dimensions_that_serving_fixes() -> None:
    def dims(*sizes: int, name: str = "ids", serving: dict[str, Any] = SERVING) -> list[str]:
        return list(found({"limits": {"max_input_dims": {name: list(sizes)}}}, serving))

    assert dims(512, 8) == [] and dims(512, 9) == dims(512) == dims(512, 8, 1) == ["limits.max_input_dims.ids"]
    assert dims(1, name="words") == ["limits.max_input_dims.words"]
    assert dims(1, name="words", serving={}) == [] == dims(1, name="words", serving={"inputs": [{"dims": [1]}]})
    assert dims(1, serving={"inputs": [{"name": "ids"}]}) == []


@pytest.mark.parametrize(
    ("kind", "values", "is_fine"),
    [
        ("INT32", [0, 30521], True), ("INT32", [0, 0.5], False), ("INT32", [0, 2**31], False), ("INT32", [-(2**31), 0], True),
        ("UINT8", [0, 255], True), ("UINT8", [-1, 255], False), ("UINT8", [0, 256], False), ("FP32", [-0.5, 1], True),
        ("FP32", [1, -0.5], False), ("FP16", [0, 65504], True), ("FP16", [-65505, 0], False), ("BYTES", [0, 1], False),
        ("BOOL", [0, 1], False),
    ],
)  # fmt: skip
def test_values_are_such_as_the_input_can_hold(kind: str, values: list[float], is_fine: bool) -> None:
    serving = {"inputs": [{"name": "ids", "data_type": kind, "dims": [4]}]}
    problems = list(found({"limits": {"input_values": {"ids": values}}}, serving))
    assert problems == ([] if is_fine else ["limits.input_values.ids"])


def test_values_are_of_an_input_that_is_there() -> None:
    serving = {"inputs": [{"name": "ids", "data_type": "INT32", "dims": [4]}]}
    assert list(found({"limits": {"input_values": {"words": [0, 1]}}}, serving)) == ["limits.input_values.words"]
    assert list(found({"limits": {"input_values": {"words": [0, 1]}}}, {})) == []


def measured(serving: dict[str, Any] = SERVING, **entry: Any) -> list[str]:
    envelope = {"accelerator": {"vendor": "nvidia", "memory_mib_min": 100}, "performance": [{}, entry]}
    return [name.removeprefix("performance[1].") for name in found(envelope, serving)]


def test_what_was_measured_was_possible() -> None:
    assert measured(batch_size=4) == measured(gpu_memory_mib_peak=100) == measured() == []
    assert measured(batch_size=5) == ["batch_size"] and measured(gpu_memory_mib_peak=101) == ["gpu_memory_mib_peak"]
    unbatched = {**SERVING, "max_batch_size": 0}
    assert measured(unbatched) == measured(unbatched, batch_size=1) == [] and measured(unbatched, batch_size=2)
    assert measured({}, batch_size=99) == []
    assert found({"performance": [{"gpu_memory_mib_peak": 10**6}]}) == {}
    small = {"accelerator": {"vendor": "nvidia", "memory_mib_min": 0}, "performance": [{}, {"gpu_memory_mib_peak": 0}]}
    assert found(small) == {}


@pytest.mark.parametrize("name", ["latency_ms", "ttft_ms", "itl_ms"])
def test_quantiles_grow(name: str) -> None:
    assert measured(**{name: {"p50": 1, "p95": 1, "p99": 1}}) == measured(**{name: {"p99": 1}}) == []
    assert measured(**{name: {"p50": 2, "p95": 1, "p99": 3}}) == [f"{name}.p95"]
    assert measured(**{name: {"p50": 2, "p99": 1}}) == [f"{name}.p99"]


def test_a_load_is_stated_by_its_clients_or_its_rate() -> None:
    assert (
        measured(load_shape={"mode": "closed", "concurrency": 1})
        == measured(load_shape={"mode": "open", "rate_per_s": 1})
        == []
    )
    assert measured(load_shape={"mode": "closed", "rate_per_s": 1}) == ["load_shape.concurrency"]
    assert measured(load_shape={"mode": "open", "concurrency": 1}) == ["load_shape.rate_per_s"]
    assert measured(load_shape={}) == []


def test_replicas_grow() -> None:
    assert (
        found({"lifecycle": {"replicas": {"min": 2, "max": 2}}}) == {} == found({"lifecycle": {"replicas": {"max": 0}}})
    )
    assert list(found({"lifecycle": {"replicas": {"min": 2, "max": 1}}})) == ["lifecycle.replicas.max"]
