"""Envelope against node: yes, no and unknown, from GPU Feature Discovery labels and from an agent's facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.core.fit import ESTIMATED, Fit, Verdict, fit
from registry.core.gpu_memory import MemoryEstimate, MemoryPart
from registry.core.gpu_names import capability_of, sku
from registry.core.node_facts import NodeFacts, from_agent, from_labels
from registry.core.spec import parse_spec
from tests.support.worlds.registry_samples import release_yaml

LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-L4",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.memory": "23034",
    "nvidia.com/gpu.family": "ada-lovelace",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "9",
    "nvidia.com/cuda.driver.major": "550",
    "nvidia.com/cuda.driver.minor": "54",
    "nvidia.com/cuda.driver.rev": "15",
    "nvidia.com/cuda.runtime.major": "12",
    "nvidia.com/cuda.runtime.minor": "4",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/mig.strategy": "none",
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
}
SINGLE = LABELS | {
    "nvidia.com/mig.strategy": "single",
    "nvidia.com/gpu.product": "A100-SXM4-40GB-MIG-1g.5gb",
    "nvidia.com/gpu.count": "56",
    "nvidia.com/gpu.memory": "4864",
    "nvidia.com/gpu.compute.minor": "0",
}
MIXED = LABELS | {
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/gpu.product": "A100-SXM4-40GB",
    "nvidia.com/mig-1g.5gb.count": "2",
    "nvidia.com/mig-1g.5gb.memory": "4864",
    "nvidia.com/mig-3g.20gb.count": "1",
    "nvidia.com/mig-3g.20gb.memory": "19968",
}
L4 = from_labels(LABELS)
GPU: dict[str, Any] = {"vendor": "nvidia"}
TWO_KINDS = replace(L4, gpus=("NVIDIA-L4", "NVIDIA-A10"))
EMPTY = NodeFacts()
CPU_ONLY = NodeFacts(gpus=(), cpu_cores=4.0, memory_mib=8192, os="linux", arch="x86_64")


def test_labels_are_read() -> None:
    assert NodeFacts(
        gpus=("NVIDIA-L4", "NVIDIA-L4"), gpu_memory_mib=23034, compute_capability="8.9", driver="550.54.15", cuda="12.4",
        mig_strategy="none", sharers=1, os="linux", arch="x86_64",
    ) == L4  # fmt: skip
    newer = {"nvidia.com/cuda.driver-version.full": "570.1.2", "nvidia.com/cuda.runtime-version.major": "12"}
    assert (from_labels(newer).driver, from_labels(newer).cuda) == ("570.1.2", "12")
    assert from_labels(SINGLE).mig == {"1g.5gb": (56, 4864)}
    assert from_labels(MIXED).mig == {"1g.5gb": (2, 4864), "3g.20gb": (1, 19968)}
    assert from_labels({}) == EMPTY and from_labels({"nvidia.com/gpu.count": "0"}).gpus == ()
    assert from_labels({"nvidia.com/gpu.count": "many", "nvidia.com/gpu.memory": "-1"}) == EMPTY


def test_an_agents_facts_are_read() -> None:
    told = {
        "system": "Linux 6.1",
        "machine": "x86_64",
        "cpu_count": 8,
        "memory_bytes": 16 << 30,
        "gpus": ["NVIDIA L4"],
        "driver": "550.1",
    }
    node = from_agent(told, {"tensorrt": "10.3.0"})
    assert (node.gpus, node.driver, node.cpu_cores, node.memory_mib) == (("NVIDIA L4",), "550.1", 8.0, 16384)
    assert (node.os, node.arch, node.tensorrt) == ("linux", "x86_64", {"standard": "10.3.0"})
    assert from_agent({"gpus": None, "driver": None}) == EMPTY
    assert from_agent(told | {"labels": LABELS}).gpu_memory_mib == 23034


CASES: list[tuple[dict[str, Any], NodeFacts, str, str]] = [
    # what is asked, of which node, the verdict, a part of the worst reason
    ({}, EMPTY, "yes", ""),
    ({"accelerator": {"vendor": "none"}}, CPU_ONLY, "yes", ""),
    ({"accelerator": GPU}, L4, "yes", ""),
    ({"accelerator": GPU}, EMPTY, "unknown", "asks for 1"),
    ({"accelerator": GPU}, CPU_ONLY, "no", "0 NVIDIA devices"),
    ({"accelerator": GPU | {"count": 2}}, L4, "yes", ""),
    ({"accelerator": GPU | {"count": 3}}, L4, "no", "2 NVIDIA devices; it asks for 3"),
    ({"accelerator": GPU | {"memory_mib_min": 23034}}, L4, "yes", ""),
    ({"accelerator": GPU | {"memory_mib_min": 23035}}, L4, "no", "23034 MiB on each device"),
    ({"accelerator": GPU | {"memory_mib_min": 1}}, NodeFacts(gpus=("L4",)), "unknown", "1 MiB"),
    ({"accelerator": GPU | {"compute_capability": {"min": "8.9"}}}, L4, "yes", ""),
    ({"accelerator": GPU | {"compute_capability": {"min": "9.0"}}}, L4, "no", "9.0 or later"),
    ({"accelerator": GPU | {"compute_capability": {"min": "9.0"}}}, NodeFacts(gpus=("x",), compute_capability="10.0"), "yes", ""),
    ({"accelerator": GPU | {"compute_capability": {"any_of": ["8.0", "8.9"]}}}, L4, "yes", ""),
    ({"accelerator": GPU | {"compute_capability": {"any_of": ["8.0"]}}}, L4, "no", "one of 8.0"),
    ({"accelerator": GPU | {"sku_allow": ["L4", "NVIDIA-A10"]}}, L4, "yes", ""),
    ({"accelerator": GPU | {"sku_allow": ["NVIDIA-A10"]}}, L4, "no", "only on NVIDIA-A10"),
    ({"accelerator": GPU | {"sku_deny": ["NVIDIA L4"]}}, L4, "no", "never on"),
    ({"accelerator": GPU | {"sku_deny": ["NVIDIA-A10"]}}, L4, "yes", ""),
    ({"accelerator": GPU | {"sku_allow": ["NVIDIA-L4"]}}, TWO_KINDS, "no", "only on NVIDIA-L4"),
    ({"accelerator": GPU | {"sku_allow": ["NVIDIA-L4", "NVIDIA-A10"]}}, TWO_KINDS, "yes", ""),
    ({"accelerator": GPU | {"sku_deny": ["NVIDIA-A10"]}}, TWO_KINDS, "no", "never on NVIDIA-A10"),
    ({"accelerator": GPU | {"sku_deny": ["NVIDIA-A10"]}}, EMPTY, "unknown", "never on"),
    ({"accelerator": GPU | {"exclusive": True}}, L4, "yes", ""),
    ({"accelerator": GPU | {"exclusive": True}}, from_labels(LABELS | {"nvidia.com/gpu.replicas": "4"}), "no", "4 sharers"),
    ({"accelerator": GPU | {"interconnect": "nvlink"}}, L4, "yes", ""),
    ({"accelerator": GPU | {"interconnect": "nvlink", "count": 2}}, L4, "unknown", "NVLink"),
    ({"accelerator": GPU}, from_labels(SINGLE), "unknown", "does not say whether"),
    ({"accelerator": GPU | {"mig": {"allowed": True}}}, from_labels(SINGLE), "yes", ""),
    ({"accelerator": GPU | {"mig": {"allowed": False}}}, from_labels(SINGLE), "no", "whole devices"),
    ({"accelerator": GPU | {"mig": {"allowed": False}}}, L4, "yes", ""),
    ({"accelerator": GPU | {"mig": {"mode": "single"}}}, from_labels(SINGLE), "yes", ""),
    ({"accelerator": GPU | {"mig": {"mode": "single"}}}, from_labels(MIXED), "no", "mode mixed"),
    ({"accelerator": GPU | {"mig": {"mode": "none"}}}, L4, "yes", ""),
    ({"accelerator": GPU | {"mig": {"profiles": ["3g.20gb"]}, "memory_mib_min": 19000}}, from_labels(MIXED), "yes", ""),
    ({"accelerator": GPU | {"mig": {"profiles": ["3g.20gb"]}, "count": 2}}, from_labels(MIXED), "no", "1 × 3g.20gb"),
    ({"accelerator": GPU | {"mig": {"profiles": ["1g.5gb"]}, "memory_mib_min": 19000}}, from_labels(MIXED), "no", "4864 MiB"),
    ({"accelerator": GPU | {"mig": {"profiles": ["1g.5gb", "3g.20gb"]}, "memory_mib_min": 19968}}, from_labels(MIXED), "yes", ""),
    ({"accelerator": GPU | {"mig": {"profiles": ["1g.5gb", "3g.20gb"]}, "memory_mib_min": 19969}}, from_labels(MIXED), "no", "19968 MiB"),
    ({"accelerator": GPU | {"mig": {"profiles": ["7g.40gb"]}}}, from_labels(MIXED), "no", "only 1g.5gb, 3g.20gb"),
    ({"accelerator": GPU | {"mig": {"profiles": ["1g.5gb"]}}}, from_labels(SINGLE), "yes", ""),
    ({"driver": {"driver_min": "550.54"}}, L4, "yes", ""),
    ({"driver": {"driver_min": "550.54.15"}}, L4, "yes", ""),
    ({"driver": {"driver_min": "550.54.15.0"}}, L4, "yes", ""),
    ({"driver": {"driver_min": "550.54"}}, replace(L4, driver="550.54.0"), "yes", ""),
    ({"driver": {"driver_min": "560"}}, L4, "no", "560 or later"),
    ({"driver": {"driver_min": "560"}}, EMPTY, "unknown", "560"),
    ({"driver": {"cuda_min": "12.4", "cuda_max_exclusive": "13.0"}}, L4, "yes", ""),
    ({"driver": {"cuda_min": "12.10"}}, L4, "no", "12.10 or later"),
    ({"driver": {"cuda_min": "12.10", "forward_compat": True}}, L4, "unknown", "forward compatibility"),
    ({"driver": {"cuda_max_exclusive": "12.4"}}, L4, "no", "less than 12.4"),
    ({"host": {"cpu_cores_min": 4, "memory_mib_min": 8192, "os": "linux", "arch": "x86_64"}}, CPU_ONLY, "yes", ""),
    ({"host": {"cpu_cores_min": 4.5}}, CPU_ONLY, "no", "4 cores; it asks for 4.5"),
    ({"host": {"memory_mib_min": 9000}}, CPU_ONLY, "no", "8192 MiB of memory"),
    ({"host": {"pinned_memory_mib": 9000}}, CPU_ONLY, "no", "asks for 9000"),
    ({"host": {"disk_mib": 1}}, CPU_ONLY, "unknown", "asks for 1"),
    ({"host": {"arch": "aarch64"}}, L4, "no", "aarch64"),
    ({"host": {"numa_local": True}}, CPU_ONLY, "unknown", "NUMA"),
]  # fmt: skip


@pytest.mark.parametrize(("envelope", "node", "verdict", "says"), CASES)
def test_each_thing_that_an_envelope_asks(envelope: dict[str, Any], node: NodeFacts, verdict: str, says: str) -> None:
    found = fit(envelope, node)
    assert found.verdict == verdict, found.reasons
    assert not says or any(says in one.message for one in found.reasons if one.verdict == verdict)


ON_L4 = {"sku": "NVIDIA-L4", "compute_capability": "8.9"}
RTX = LABELS | {"nvidia.com/gpu.product": "NVIDIA-RTX-4090"}
TURING = LABELS | {"nvidia.com/gpu.compute.major": "7"}
PLAN = {"builder_version": "10.3.0", "built_on": ON_L4}


def with_tensorrt(node: NodeFacts, version: str | None, flavour: str = "standard") -> NodeFacts:
    return replace(node, tensorrt={flavour: version} if version else {})


@pytest.mark.parametrize(
    ("engine", "labels", "tensorrt", "verdict", "says"),
    [
        (PLAN, LABELS, "10.3.0.26", "yes", ""),
        (PLAN, LABELS, "10.4.0", "no", "loads in 10.3.0 only"),
        (PLAN, LABELS, None, "unknown", "tells no TensorRT"),
        ({"built_on": ON_L4}, LABELS, "10.3.0", "unknown", "says which TensorRT"),
        ({"builder_version": "10.3.0"}, LABELS, "10.3.0", "unknown", "for which compute capability"),
        (PLAN | {"version_compatible": True}, LABELS, "10.4.0", "yes", ""),
        (PLAN | {"version_compatible": True}, LABELS, "10.2.0", "no", "10.3.0 or later"),
        (PLAN | {"version_compatible": True}, LABELS, "11.0", "yes", ""),
        (PLAN | {"version_compatible": True}, LABELS, "12.0", "unknown", "that is not promised"),
        (PLAN, SINGLE, "10.3.0", "no", "built for 8.9"),
        (PLAN | {"hardware_compatibility": "ampere_plus"}, SINGLE, "10.3.0", "yes", ""),
        (PLAN | {"hardware_compatibility": "ampere_plus"}, TURING, "10.3.0", "no", "8.0 or later"),
        (PLAN, RTX, "10.3.0", "unknown", "may fail or be slow"),
        (PLAN | {"hardware_compatibility": "same_compute_capability"}, RTX, "10.3.0", "yes", ""),
    ],
)  # fmt: skip
def test_a_plan_runs_where_it_was_built(
    engine: dict[str, Any], labels: dict[str, str], tensorrt: str | None, verdict: str, says: str
) -> None:
    asked = {"accelerator": GPU | {"mig": {"allowed": True}}, "engine": engine}
    found = fit(asked, with_tensorrt(from_labels(labels), tensorrt), backend="tensorrt")
    assert found.verdict == verdict, found.reasons
    assert any(says in reason.message for reason in found.reasons if reason.verdict == verdict)


def test_a_plans_own_version_counts_before_the_declared_one_and_what_cannot_load_is_named() -> None:
    asked = {"accelerator": GPU | {"mig": {"allowed": True}}, "engine": PLAN}
    node = with_tensorrt(from_labels(LABELS), "10.3.0")
    assert fit(asked, node, backend="tensorrt", plan={"tensorrt": "10.3.0.26"}).cannot_load is None
    other = fit(asked, node, backend="tensorrt", plan={"tensorrt": "10.4.0.1"}).cannot_load
    assert other is not None and other.message == "The node has TensorRT 10.3.0; the plan loads in 10.4.0.1 only."
    elsewhere = fit(asked, with_tensorrt(from_labels(SINGLE), "10.3.0"), backend="tensorrt").cannot_load
    assert elsewhere is not None and "built for 8.9" in elsewhere.message
    small = fit({"accelerator": GPU | {"memory_mib_min": 99_999}}, from_labels(LABELS))
    assert small.verdict == Verdict.NO and small.cannot_load is None
    assert fit(asked, with_tensorrt(from_labels(LABELS), None), backend="tensorrt").cannot_load is None


RTX_PLAN = {"flavour": "rtx", "tensorrt": "1.7.1.116", "compute_capabilities": ["8.6", "8.9"]}


@pytest.mark.parametrize(
    ("plan", "declared", "offered", "verdict", "says"),
    [
        (RTX_PLAN, {}, {"rtx": "1.7.1.116"}, "yes", "the plan was built for 8.6, 8.9"),
        (RTX_PLAN, {}, {"rtx": "1.6.1.120"}, "no", "TensorRT for RTX 1.6.1.120; the plan loads in 1.7.1.116 only"),
        (RTX_PLAN, {}, {"standard": "10.3.0"}, "no", "has TensorRT 10.3.0; the plan loads in TensorRT for RTX only"),
        (RTX_PLAN, {}, {}, "unknown", "tells no TensorRT for RTX"),
        (RTX_PLAN, {"built_on": {"compute_capability": "7.5"}}, {"rtx": "1.7.1"}, "yes", "built for 8.6, 8.9"),
        ({}, {"flavour": "rtx", **PLAN}, {"standard": "10.3.0"}, "no", "loads in TensorRT for RTX only"),
        ({}, {"flavour": "rtx", **PLAN}, {"standard": "10.3.0", "rtx": "10.3.0"}, "yes", "TensorRT for RTX 10.3.0"),
        ({}, PLAN, {"rtx": "10.3.0"}, "no", "has TensorRT for RTX 10.3.0; the plan loads in TensorRT only"),
        (RTX_PLAN | {"compute_capabilities": ["12.0"]}, {}, {"rtx": "1.7.1"}, "no", "built for 12.0"),
        (RTX_PLAN | {"compute_capabilities": None}, {}, {"rtx": "1.7.1"}, "unknown", "for which compute capability"),
    ],
)  # fmt: skip
def test_versions_of_one_flavour_are_no_answer_for_the_other(
    plan: dict[str, Any], declared: dict[str, Any], offered: dict[str, str], verdict: str, says: str
) -> None:
    asked = {"accelerator": GPU | {"mig": {"allowed": True}}, "engine": declared}
    found = fit(asked, replace(L4, tensorrt=offered), backend="tensorrt", plan=plan)
    assert found.verdict == verdict, found.reasons
    assert any(says in reason.message for reason in found.reasons), found.reasons


def test_a_runtime_tells_the_version_of_each_flavour() -> None:
    offered = {"triton": "2.51.0", "tensorrt": "10.3.0", "tensorrt_rtx": "1.7.1.116"}
    assert from_agent({}, offered).tensorrt == {"standard": "10.3.0", "rtx": "1.7.1.116"}
    assert from_agent({}, {"triton": "2.51.0"}).tensorrt == {}


def test_a_plan_without_an_envelope_still_needs_a_device() -> None:
    assert fit({}, CPU_ONLY, backend="tensorrt").verdict == Verdict.NO
    assert fit({}, CPU_ONLY, backend="sluicegate-onnx").verdict == Verdict.YES
    assert fit({"engine": {"type": "onnx"}}, CPU_ONLY, backend="sluicegate-onnx").reasons == ()


def taking(weights_mib: int, *, certain: bool = True) -> MemoryEstimate:
    """Weights of that size, 1000 MiB of activations, and a runtime of unknown size."""
    parts = (
        MemoryPart("weights", weights_mib, "file"),
        MemoryPart("activations", 1000, "graph"),
        MemoryPart("runtime", None, "driver"),
    )
    return MemoryEstimate(parts, 1, weights_mib if certain else 0)


@pytest.mark.parametrize(
    ("weights", "certain", "node", "verdict", "says"),
    [
        (100, True, L4, "unknown", "has 23034 MiB on each device; the envelope declares none, and the estimate is about 1100 MiB"),
        (23034, True, L4, "unknown", "the estimate is about 24034 MiB"),  # activations alone never decide
        (23035, True, L4, "no", "by estimate the weights alone take 23035 MiB"),
        (23035, False, L4, "unknown", "the estimate is about 24035 MiB"),  # code may load fewer
        (23035, True, NodeFacts(gpus=("L4",)), "unknown", "does not report the memory of its devices"),
    ],
)  # fmt: skip
def test_an_estimate_counts_where_no_memory_is_declared_and_proves_no_yes(
    weights: int, certain: bool, node: NodeFacts, verdict: str, says: str
) -> None:
    found = fit({"accelerator": GPU}, node, estimate=taking(weights, certain=certain))
    (reason,) = (one for one in found.reasons if one.field == ESTIMATED)
    assert (found.verdict, reason.verdict) == (verdict, verdict) and says in reason.message
    assert "estimate" in reason.message and "estimate" in reason.field
    told = found.as_json()["gpu_memory_estimate"]
    assert told["total_mib"] == weights + 1000 and told["parts"][2] == {
        "name": "runtime", "mib": None, "is_partial": False, "source": "driver",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["memory_mib_min", "memory_mib_peak_declared"])
def test_a_declared_memory_counts_before_the_estimate_and_is_doubted_if_the_weights_are_larger(name: str) -> None:
    enough = fit({"accelerator": GPU | {name: 5000}}, L4, estimate=taking(5000))
    assert enough.verdict == Verdict.YES and all("estimate" not in one.message for one in enough.reasons)
    little = fit({"accelerator": GPU | {name: 4999}}, L4, estimate=taking(5000))
    assert little.verdict == Verdict.UNKNOWN
    assert little.reasons[0].message == (
        "It declares 4999 MiB; by estimate the weights alone take 5000 MiB on each device."
    )
    too_large = fit({"accelerator": GPU | {name: 23035}}, L4, estimate=taking(1))
    assert too_large.verdict == Verdict.NO and too_large.reasons[0].field == f"accelerator.{name}"


def test_an_estimate_is_held_against_the_slices_that_are_asked_for() -> None:
    asked = {"accelerator": GPU | {"mig": {"profiles": ["1g.5gb"]}}}
    assert fit(asked, from_labels(MIXED), estimate=taking(4865)).verdict == Verdict.NO
    assert fit(asked, from_labels(MIXED), estimate=taking(4864)).verdict == Verdict.UNKNOWN
    assert fit({}, L4).as_json()["gpu_memory_estimate"] is None


def test_names_of_products() -> None:
    assert sku("NVIDIA L4") == sku("NVIDIA-L4") == sku("nvidia_l4") == sku("L4-SHARED") == "l4"
    assert sku("A100-SXM4-40GB-MIG-1g.5gb") == "a100-sxm4-40gb"


@pytest.mark.parametrize(
    ("product", "capability"),
    [
        ("Tesla-T4", "7.5"), ("NVIDIA T4", "7.5"), ("Tesla V100", None), ("NVIDIA A100-SXM4-40GB-MIG-1g.5gb", "8.0"), ("NVIDIA-A10", "8.6"),
        ("NVIDIA-A10G", "8.6"), ("NVIDIA-A100", "8.0"), ("NVIDIA RTX A6000", "8.6"), ("NVIDIA-L4-SHARED", "8.9"),
        ("L40S", "8.9"), ("NVIDIA GeForce RTX 4090", "8.9"), ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("NVIDIA H100 80GB HBM3", "9.0"), ("NVIDIA-H200", "9.0"), ("NVIDIA B200", "10.0"), ("NVIDIA B300", None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0"), ("NVIDIA GeForce RTX 5090", "12.0"), ("L400", None),
    ],
)  # fmt: skip
def test_the_compute_capability_of_products(product: str, capability: str | None) -> None:
    assert capability_of(product) == capability


def test_the_answer_as_json_has_the_worst_first() -> None:
    asked = {"accelerator": GPU | {"memory_mib_min": 99_999}, "host": {"disk_mib": 1, "os": "linux"}}
    told = fit(asked, L4).as_json()
    assert told["verdict"] == "no" and [r["verdict"] for r in told["reasons"]] == ["no", "unknown", "yes", "yes"]


LABEL = st.sampled_from([*LABELS, *MIXED, "nvidia.com/mig-x.count", "nvidia.com/gpu.compute.major"])


@settings(max_examples=300)
@given(st.dictionaries(LABEL, st.text(max_size=12) | st.integers() | st.none(), max_size=12), st.sampled_from(CASES))
def test_any_labels_give_an_answer(labels: dict[str, Any], case: tuple[dict[str, Any], NodeFacts, str, str]) -> None:
    found = fit(case[0], from_labels(labels))
    assert isinstance(found, Fit) and found.verdict in set(Verdict)


def test_every_asked_envelope_is_one_that_can_be_written() -> None:
    gpu = {"serving.instance_group": [{"kind": "gpu", "count": 1}]}
    for envelope, *_ in CASES:
        needs_gpu = envelope.get("accelerator", {}).get("vendor") == "nvidia"
        assert parse_spec(release_yaml({"envelope": envelope} | (gpu if needs_gpu else {}))).model == "sentiment"
