"""The Kubernetes objects of a release: valid in every version that has them, made of the manifest alone, and nothing guessed."""

from __future__ import annotations

import copy
import re
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.core.node_facts import from_labels
from serving.targets.core.kubernetes import NotForKubernetes, Place, object_name, objects_of, undeclared

DIGEST = "sha256:" + "1" * 64
IMAGE = "nvcr.io/nvidia/tritonserver@sha256:" + "2" * 64
CLI = "registry.example/sluicegate@sha256:" + "3" * 64
VERSIONS = ("1.33", "1.34", "1.35", "1.36", "1.37")
L4 = {
    "vendor": "nvidia", "count": 2, "memory_mib_min": 16_000, "compute_capability": {"min": "8.9"},
    "sku_allow": ["NVIDIA-L4", "NVIDIA-L40S"], "sku_deny": ["Tesla-T4"],
}  # fmt: skip
HOST = {"cpu_cores_min": 1.5, "memory_mib_min": 2048, "shm_mib_min": 256, "disk_mib": 4096, "arch": "x86_64"}


def manifest(
    *,
    model: str = "sentiment",
    image: str = IMAGE,
    server: str = "triton",
    backend: str = "",
    path: str = "artifact/model.py",
    **envelope: Any,
) -> dict[str, Any]:
    backend = backend or ("gguf" if server == "llamacpp" else "python")
    return {
        "schema": "sluicegate/manifest/v2",
        "model": model,
        "files": [{"path": path, "sha256": "0" * 64, "size_bytes": 1}],
        "runtime": {"image": image, "server": server, "backend": backend},
        "serving": {"max_batch_size": 0, "inputs": [], "outputs": []},
        "envelope": envelope,
    }


def objects(made: dict[str, Any], **place: Any) -> list[dict[str, Any]]:
    stated = {"environment": "production", "namespace": "models", "url": "https://s.example", "cli_image": CLI, **place}
    return objects_of(made, number=14, digest=DIGEST, place=Place(**stated))


def pod(made: dict[str, Any], **place: Any) -> dict[str, Any]:
    found: dict[str, Any] = objects(made, **place)[0]["spec"]["template"]["spec"]
    return found


def require_valid(found: list[dict[str, Any]]) -> None:
    for version in VERSIONS:
        for one in found:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize(
    "envelope",
    [{}, {"host": HOST}, {"accelerator": L4, "host": HOST, "driver": {"driver_min": "550.54", "cuda_min": "12.4"}}],
)
def test_every_version_takes_the_objects(envelope: dict[str, Any]) -> None:
    require_valid(objects(manifest(**envelope), replicas=3, node_labels={"pool": "gpu"}))


def test_the_schemas_refuse_what_they_should() -> None:
    [deployment, *_] = objects(manifest())
    wrong = copy.deepcopy(deployment)
    wrong["spec"]["template"]["spec"]["containers"][0]["comand"] = ["tritonserver"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.36", strict=True)


SLUGS = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,59}", fullmatch=True)


@settings(max_examples=60, deadline=None)
@given(
    model=SLUGS, number=st.integers(1, 10**6), gpus=st.integers(1, 8), capability=st.sampled_from([None, "8.0", "9.0"])
)
def test_the_same_release_gives_the_same_bytes(model: str, number: int, gpus: int, capability: str | None) -> None:
    accelerator = {
        "vendor": "nvidia",
        "count": gpus,
        **({"compute_capability": {"min": capability}} if capability else {}),
    }
    made = manifest(model=model, accelerator=accelerator)
    place = Place(environment="e", namespace="n", url="https://s", cli_image=CLI)
    first, again = (
        yaml.safe_dump_all(objects_of(copy.deepcopy(made), number=number, digest=DIGEST, place=place)) for _ in range(2)
    )
    assert first == again
    for one in yaml.safe_load_all(first):
        kubernetes_validate.validate(one, "1.36", strict=True)
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])", one["metadata"]["name"])


def test_names_of_two_models_are_two() -> None:
    """`my_model` and `my-model` are two models; a name is cut at the same letters."""
    names = [object_name(slug, 7) for slug in ("my_model", "my-model", "a" * 59 + "b", "a" * 59 + "c", "tail-", "tail")]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 63
    assert object_name("sentiment", 14) == "m-sentiment-r14"


def test_the_envelope_becomes_requests_and_limits() -> None:
    found = pod(manifest(accelerator=L4, host=HOST))
    assert found["containers"][0]["resources"] == {
        "requests": {"cpu": "1500m", "memory": "2304Mi", "ephemeral-storage": "4096Mi", "nvidia.com/gpu": 2},
        "limits": {"memory": "2304Mi", "ephemeral-storage": "4096Mi", "nvidia.com/gpu": 2},
    }
    assert found["nodeSelector"] == {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}} in found["volumes"]


def test_a_graph_without_a_tokenizer_runs_on_the_stock_image() -> None:
    require_valid(objects(manifest(backend="sluicegate-onnx", path="artifact/model.onnx")))


def test_what_is_not_declared_is_left_out_and_told() -> None:
    made = manifest()
    found = pod(made)
    assert found["containers"][0]["resources"] == {} and "affinity" not in found and "tolerations" not in found
    assert undeclared(made) == ["host.cpu_cores_min", "host.memory_mib_min", "accelerator.vendor"]
    assert undeclared(manifest(host=HOST, accelerator={"vendor": "none"})) == []


def admits(found: dict[str, Any], labels: dict[str, str]) -> bool:
    """As the scheduler reads a node affinity. Source: Kubernetes' documentation of node selectors."""

    def holds(one: dict[str, Any]) -> bool:
        there = labels.get(one["key"])
        if one["operator"] == "NotIn":
            return there not in one["values"]
        if there is None:
            return False
        return there in one["values"] if one["operator"] == "In" else int(there) > int(one["values"][0])

    terms = found["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return any(all(holds(one) for one in term["matchExpressions"]) for term in terms)


def node(
    capability: str, *, product: str = "NVIDIA-L4", driver: str = "550.54", prefix: str = "cuda.driver-version"
) -> dict[str, str]:
    (major, minor), (d_major, d_minor) = capability.split("."), driver.split(".")
    return {
        "nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "1", "nvidia.com/gpu.memory": "23034",
        "nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor,
        f"nvidia.com/{prefix}.major": d_major, f"nvidia.com/{prefix}.minor": d_minor,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("capability", "fits"),
    [("8.0", False), ("8.6", False), ("8.9", True), ("9.0", True), ("10.0", True), ("7.9", False)],
)
def test_a_version_is_compared_as_a_version(capability: str, fits: bool) -> None:
    accelerator = {"vendor": "nvidia", "compute_capability": {"min": "8.9"}}
    labels = node(capability)
    assert from_labels(labels).compute_capability == capability  # what `release fit` reads of the same node
    assert admits(pod(manifest(accelerator=accelerator)), labels) is fits


@pytest.mark.parametrize(
    ("driver", "fits"), [("550.54", True), ("550.90", True), ("550.10", False), ("535.99", False), ("560.0", True)]
)
@pytest.mark.parametrize("prefix", ["cuda.driver-version", "cuda.driver"])
def test_a_driver_is_read_by_either_name(driver: str, fits: bool, prefix: str) -> None:
    found = pod(manifest(accelerator={"vendor": "nvidia"}, driver={"driver_min": "550.54"}))
    assert admits(found, node("8.9", driver=driver, prefix=prefix)) is fits


def test_products_memory_and_versions_all_hold() -> None:
    found = pod(manifest(accelerator=L4, driver={"driver_min": "550.54"}))
    assert admits(found, node("8.9"))
    assert not admits(found, node("8.9", product="NVIDIA-A10"))
    assert not admits(found, node("8.9") | {"nvidia.com/gpu.memory": "15999"})
    assert admits(found, node("8.9") | {"nvidia.com/gpu.memory": "16000"})
    assert not admits(found, {"kubernetes.io/os": "linux"})


@pytest.mark.parametrize("version", ["8.0", "8", "8.9"])
def test_values_are_valid_label_values(version: str) -> None:
    """The scheduler refuses a term with any other value."""
    envelope = {"accelerator": {**L4, "compute_capability": {"min": version}}, "driver": {"driver_min": version}}
    terms = pod(manifest(**envelope))["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    values = [
        value for term in terms["nodeSelectorTerms"] for one in term["matchExpressions"] for value in one["values"]
    ]
    assert values and all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value) for value in values)


@pytest.mark.parametrize(
    ("stated", "product", "fits"),
    [
        ({"sku_allow": ["NVIDIA H100 80GB HBM3"]}, "NVIDIA-H100-80GB-HBM3", True),
        ({"sku_allow": ["NVIDIA-L4"]}, "NVIDIA-L4-SHARED", True),
        ({"sku_deny": ["Tesla T4"]}, "Tesla-T4-SHARED", False),
        ({"sku_deny": ["Tesla T4"]}, "NVIDIA-L4", True),
    ],
)
def test_products_are_compared_as_labels_have_them(stated: dict[str, Any], product: str, fits: bool) -> None:
    assert admits(pod(manifest(accelerator={"vendor": "nvidia", **stated})), node("8.9", product=product)) is fits


def test_a_release_that_wants_no_device_gets_none() -> None:
    found = pod(manifest(accelerator={"vendor": "nvidia", "count": 0}))
    assert found["containers"][0]["resources"] == {} and "tolerations" not in found


def test_any_of_some_capabilities() -> None:
    found = pod(manifest(accelerator={"vendor": "nvidia", "compute_capability": {"any_of": ["8.0", "9.0"]}}))
    assert [admits(found, node(one)) for one in ("8.0", "8.9", "9.0")] == [True, False, True]


@pytest.mark.parametrize(
    ("mig", "resource"),
    [
        ({"mode": "mixed", "profiles": ["1g.10gb"]}, "nvidia.com/mig-1g.10gb"),
        ({"mode": "mixed", "profiles": ["1g.10gb+me"]}, "nvidia.com/mig-1g.10gb.me"),
        ({"mode": "single", "profiles": ["1g.10gb"]}, "nvidia.com/gpu"),
        ({"allowed": False}, "nvidia.com/gpu"),
    ],
)
def test_slices(mig: dict[str, Any], resource: str) -> None:
    found = pod(manifest(accelerator={"vendor": "nvidia", "mig": mig}))
    assert found["containers"][0]["resources"]["limits"] == {resource: 1}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (manifest(image="local/triton-onnx@sha256:" + "4" * 64), "nodes of this installation build"),
        (manifest(server="llamacpp"), "on Triton alone"),
        (manifest(accelerator={"vendor": "nvidia", "sku_deny": ["T4"]}), "is no product"),
        (manifest(backend="sluicegate-onnx", path="tokenizer/tokenizer.json"), "own runner"),
        (
            manifest(accelerator={"vendor": "nvidia", "mig": {"mode": "mixed", "profiles": ["1g.10gb", "2g.20gb"]}}),
            "asks for one resource",
        ),
    ],
)
def test_what_has_no_objects_is_refused_with_a_next_step(made: dict[str, Any], words: str) -> None:
    with pytest.raises(NotForKubernetes, match=words) as refused:
        objects(made)
    assert refused.value.next_step


def test_the_pod_passes_the_restricted_profile() -> None:
    """The rules of Kubernetes' Pod Security Standards, profile *restricted*."""
    found = pod(manifest(accelerator=L4))
    assert found["securityContext"]["runAsNonRoot"] and found["securityContext"]["runAsUser"] > 0
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*found["initContainers"], *found["containers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
    assert {next(iter(volume.keys() - {"name"})) for volume in found["volumes"]} == {"emptyDir"}


def test_no_credential_is_in_the_objects() -> None:
    """Only the name of a Secret, for the fetch alone."""
    found = pod(manifest())
    [triton], [fetch] = found["containers"], found["initContainers"]
    assert "env" not in triton and not found["automountServiceAccountToken"]
    [token] = [one for one in fetch["env"] if one["name"] == "SLUICEGATE_TOKEN"]
    assert token == {
        "name": "SLUICEGATE_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "sluicegate-fetch", "key": "token"}},
    }
