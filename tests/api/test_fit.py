"""The fit of a release: on the nodes that agents tell of, on labels, in the preview of a rollout, and as a command."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from django.test import Client

from accounts.actions import actor_for, issue_token
from accounts.core.access import Actor
from ledger.core.errors import Unavailable
from registry import actions
from registry.core.node_facts import from_agent
from registry.models import Inspection, Release
from registry.queries import gpu_memory_estimate
from serving.targets.actions import ensure_replica
from serving.targets.agent.hardware import hardware
from serving.targets.queries.node_fit import nodes_for, offering, why_refused
from tests.support.worlds.factories import make_environment, make_node
from tests.support.worlds.model_files import onnx_file, plan_file
from tests.support.worlds.registry_samples import IMAGE, draft_with, person, served_model

pytestmark = pytest.mark.django_db
URL = "/api/v1/models/sentiment/releases/r1/fit"
RUNTIME = {"image": IMAGE, "server": "triton", "backends": ["sluicegate-onnx"], "versions": {"tensorrt": "10.3.0"}}
GPU = {
    "serving.instance_group": [{"kind": "gpu", "count": 1}],
    "envelope.accelerator": {"vendor": "nvidia", "memory_mib_min": 8000},
}


def caller(name: str, **role: Any) -> Client:
    user = person(name, **role)
    return Client(headers={"Authorization": f"Bearer {issue_token(user=user, name='test', actor=actor_for(user))}"})


@pytest.fixture
def dev() -> Client:
    return caller("dev")


@pytest.fixture
def release(dev: Client) -> Release:
    actor = Actor.system("tests")
    return actions.seal(actor=actor, release=draft_with(actor, served_model(actor), changes=GPU))


def test_every_node_is_told(dev: Client, release: Release) -> None:
    labels = {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}
    host = {"memory_bytes": 64 << 30}
    make_node("big", facts={"labels": labels, **host}, runtimes=[RUNTIME])
    make_node("plain", facts={"gpus": [], **host}, runtimes=[])
    make_node("silent", facts={"gpus": None, **host}, runtimes=[{**RUNTIME, "backends": ["python"]}])
    told = {one["node"]: one for one in dev.get(URL).json()["results"]}
    assert {name: (one["verdict"], one["has_runtime"]) for name, one in told.items()} == {
        "big": ("yes", True), "plain": ("no", False), "silent": ("no", False),
    }  # fmt: skip
    assert [one["field"] for one in told["plain"]["reasons"][:2]] == ["runtime", "accelerator.count"]
    assert told["silent"]["reasons"][0]["message"] == (
        f"The node does not offer the image {IMAGE} with the backend sluicegate-onnx; it offers {IMAGE} (python)."
    )


def graph_release(actor: Actor) -> Release:
    """Weights of 1024 × 1024 × 4 bytes, in two instances: 8 MiB. It asks for a GPU and declares no memory."""
    graph = onnx_file(weights=[("w", "FP32", [1024, 1024])])
    changes = {
        "serving.instance_group": [{"kind": "gpu", "count": 2}],
        "envelope.accelerator": {"vendor": "nvidia"},
    }
    return actions.seal(actor=actor, release=draft_with(actor, served_model(actor), graph, changes))


def test_undeclared_gpu_memory_is_estimated_from_the_headers_that_the_seal_read(dev: Client) -> None:
    release = graph_release(Actor.system("tests"))
    labels = {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "7"}
    make_node("small", facts={"labels": labels, "memory_bytes": 64 << 30}, runtimes=[RUNTIME])
    make_node(
        "big", facts={"labels": labels | {"nvidia.com/gpu.memory": "8"}, "memory_bytes": 64 << 30}, runtimes=[RUNTIME]
    )
    told = {one["node"]: one for one in dev.get(URL).json()["results"]}
    assert {name: one["verdict"] for name, one in told.items()} == {"small": "no", "big": "unknown"}
    assert told["small"]["reasons"][0] == {
        "field": "accelerator.memory_mib_min (estimate)", "verdict": "no",
        "message": "The node has 7 MiB on each device; by estimate the weights alone take 8 MiB.",
    }  # fmt: skip
    estimate = told["big"]["gpu_memory_estimate"]
    assert (estimate["total_mib"], estimate["is_partial"], estimate["instances"]) == (9, True, 2)
    weights, activations, *_ = estimate["parts"]
    assert weights["mib"] == 8 and weights["source"] == (
        "tensors in the ONNX graph and its external data, in each of 2 instances"
    )
    assert activations["mib"] == 1 and "between them are not counted" in activations["source"]
    by_labels = dev.post(URL, json.dumps({"labels": labels}), content_type="application/json").json()
    assert by_labels["gpu_memory_estimate"] == estimate and by_labels["verdict"] == "no"
    found = gpu_memory_estimate(release)
    assert found is not None and found.as_json() == estimate


def test_an_estimate_reads_no_file_and_a_cpu_release_has_none(
    dev: Client, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = Actor.system("tests")
    release = graph_release(actor)

    def reads(*_: Any) -> Any:
        raise AssertionError("a file was read")

    with monkeypatch.context() as forbidden, django_assert_num_queries(1):
        forbidden.setattr("registry.queries.file_headers.RangedReader.read", reads)
        assert gpu_memory_estimate(release) is not None
    Inspection.objects.all().delete()  # sealed before headers were read
    unread = gpu_memory_estimate(release)
    assert unread is not None and "file sizes" in unread.parts[0].source
    on_cpu = actions.seal(actor=actor, release=draft_with(actor, release.model, onnx_file("other")))
    with django_assert_num_queries(0):
        assert gpu_memory_estimate(on_cpu) is None


def test_a_node_that_the_release_fits_is_taken_before_others(dev: Client, release: Release) -> None:
    labels = {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}
    host = {"memory_bytes": 64 << 30}
    plain = make_node("plain", facts={"gpus": [], **host}, runtimes=[RUNTIME])
    silent = make_node("silent", facts={"gpus": None, **host}, runtimes=[RUNTIME])
    big = make_node("big", facts={"labels": labels, **host}, runtimes=[RUNTIME])
    other = make_node("other", facts={"labels": labels, **host}, runtimes=[])
    assert nodes_for(release, [plain, other, silent, big]) == [big, silent]
    assert nodes_for(release, [plain]) == nodes_for(release, [other]) == []
    assert why_refused(release, [plain, other, silent, big]) == ["plain: The node has 0 NVIDIA devices; it asks for 1."]
    replica = ensure_replica(
        actor=Actor.system("tests"), release=release, environment=make_environment("staging"), reason="try"
    )
    assert replica.node == big


def test_labels_are_asked_about(dev: Client, release: Release) -> None:
    labels = {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "NVIDIA-T4", "nvidia.com/gpu.memory": "4000"}
    answer = dev.post(URL, json.dumps({"labels": labels}), content_type="application/json")
    assert answer.status_code == 200 and answer.json()["verdict"] == "no"
    for body in ("{}", '{"labels": []}', '{"labels": {}, "x": 1}'):
        refused = dev.post(URL, body, content_type="application/json")
        assert refused.status_code == 422 and refused.json()["errors"][0]["fix"], body


def test_a_stranger_learns_nothing(dev: Client, release: Release) -> None:
    stranger = caller("eve", team="sound")
    assert stranger.get(URL).status_code == stranger.post(URL, "{}", content_type="application/json").status_code == 404


def with_plan(actor: Actor, engine: dict[str, Any]) -> Release:
    """A release with an engine plan of TensorRT 10.3.0.26."""
    changes = GPU | {"runtime.backend": "tensorrt", "envelope.engine": engine}
    draft = draft_with(actor, served_model(actor), onnx_file(), changes, artifact__model_plan=plan_file())
    return actions.seal(actor=actor, release=draft)


L4_LABELS = {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034",
             "nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "9"}  # fmt: skip


def test_a_plan_is_never_placed_where_it_cannot_load(dev: Client) -> None:
    """The version comes from the plan's header alone, the compute capability from the envelope."""
    actor, staging = Actor.system("tests"), make_environment("staging")
    release = with_plan(actor, {"built_on": {"compute_capability": "8.9"}})
    own = {**RUNTIME, "backends": ["tensorrt"]}
    newer = make_node("newer", facts={"labels": L4_LABELS}, runtimes=[{**own, "versions": {"tensorrt": "10.4.0"}}])
    hopper = {**L4_LABELS, "nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0"}
    make_node("hopper", facts={"labels": hopper}, runtimes=[own])
    with pytest.raises(
        Unavailable, match="newer: The node has TensorRT 10.4.0; the plan loads in 10.3.0.26"
    ) as refused:
        ensure_replica(actor=actor, release=release, environment=staging, reason="try")
    assert refused.value.code == "plan_loads_nowhere" and "built for 8.9" in refused.value.message
    assert nodes_for(release, [newer]) == [] and not release.replicas.exists()
    told = {one["node"]: one["reasons"][0]["message"] for one in dev.get(URL).json()["results"]}
    assert "10.3.0.26 only" in told["newer"] and "built for 8.9" in told["hopper"]
    labels = json.dumps({"labels": hopper})
    (first, second, *_) = dev.post(URL, labels, content_type="application/json").json()["reasons"]
    assert "built for 8.9" in first["message"] and "was built by 10.3.0.26" in second["message"]
    own["versions"] = {}
    silent = make_node("silent", facts={"labels": L4_LABELS}, runtimes=[own])  # may load it: unknown is no refusal
    assert ensure_replica(actor=actor, release=release, environment=staging, reason="try").node == silent


def test_a_plan_is_held_against_the_tensorrt_of_the_runtime_that_it_names(dev: Client) -> None:
    actor = Actor.system("tests")
    release = with_plan(actor, {"builder_version": "10.3.0"})
    for version, verdict in (("10.3.0.26", "yes"), ("10.4.0", "no")):
        own = {**RUNTIME, "backends": ["tensorrt"], "versions": {"tensorrt": version}}
        node = make_node(
            f"node-{verdict}", facts={}, runtimes=[{**own, "image": "other@sha256:1", "versions": {}}, own]
        )
        [(_, fit)] = offering(release, [node])
        told = {reason.field: reason.verdict for reason in fit.reasons}
        assert told["engine.builder_version"] == verdict


def test_what_nvml_tells_becomes_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    answers = {
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: None, "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda i: i, "nvmlDeviceGetName": lambda _: "NVIDIA H100 80GB HBM3",
        "nvmlSystemGetDriverVersion": lambda: "550.54.15", "nvmlSystemGetCudaDriverVersion": lambda: 12040,
        "nvmlDeviceGetMemoryInfo": lambda i: SimpleNamespace(total=(81559 + i) << 20),
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0), "nvmlDeviceGetMigMode": unsupported,
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    node = from_agent(hardware())
    assert node.gpus == ("NVIDIA-H100-80GB-HBM3",) * 2 and node.gpu_memory_mib is None  # the two differ
    assert (node.compute_capability, node.driver, node.cuda, node.mig_strategy) == ("9.0", "550.54.15", "12.4", None)
