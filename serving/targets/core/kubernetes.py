"""The Kubernetes objects that run one release: a Deployment, a headless Service and a PodDisruptionBudget.

The pod template follows from the sealed manifest and the place alone, so the same release gives the same bytes. What an
envelope does not declare is left out, never guessed.

Sources: Kubernetes 1.36, apps/v1, v1 and policy/v1; the labels of GPU Feature Discovery; the options of tritonserver.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from registry.core.kinds import backend_of, kind_of
from registry.core.triton_tree import tree_of

_GFD: Final = "nvidia.com/"
_LONGEST_NAME: Final = 63  # of a Service
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_PORTS: Final = {"http": 8000, "grpc": 8001, "metrics": 8002}
#: Paths in the container.
_TMP, _SHM = "/tmp", "/dev/shm"  # noqa: S108
#: An account that is nobody's on the node.
_USER: Final = 10001
#: Products as GPU Feature Discovery labels them.
_PRODUCT: Final = re.compile(r"(NVIDIA|Tesla|Quadro|GRID)-[A-Za-z0-9._-]{1,40}")
#: Images of the product's own runtimes, which nodes build from wheels.
_LOCAL_IMAGE: Final = "local/"

Json = dict[str, Any]
#: Node selector terms are alternatives; the conditions of one term all hold.
Conditions = tuple[Json, ...]


class NotForKubernetes(ValueError):
    """No objects can be made of this release. `next_step`: what its author does."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the cluster adds.

    Attributes:
        environment: name of the environment.
        namespace: its namespace.
        url: address of this installation's API, as the cluster reaches it.
        cli_image: image by digest that holds the command `sluicegate`.
        secret: Secret of which the key `token` may read the release.
        replicas: servers, at least 1.
        node_labels: label → value of the nodes that may run it.
    """

    environment: str
    namespace: str
    url: str
    cli_image: str
    secret: str = "sluicegate-fetch"
    replicas: int = 1
    node_labels: Mapping[str, str] = field(default_factory=dict)


def object_name(model: str, number: int) -> str:
    """Returns a DNS label of at most 63 letters. A model's name that is changed or cut gets 8 digits of its SHA-256."""
    plain, tail = model.replace("_", "-"), f"-r{number}"
    if plain == model and not model.endswith("-") and len(f"m-{plain}{tail}") <= _LONGEST_NAME:
        return f"m-{plain}{tail}"
    tail = f"-{hashlib.sha256(model.encode()).hexdigest()[:8]}{tail}"
    return f"m-{plain[: _LONGEST_NAME - 2 - len(tail)].rstrip('-')}{tail}"


def objects_of(manifest: Mapping[str, Any], *, number: int, digest: str, place: Place) -> list[Json]:
    """Returns the Deployment, the Service and the PodDisruptionBudget. Raises NotForKubernetes."""
    _require_image(manifest)
    model, name = str(manifest["model"]), object_name(manifest["model"], number)
    labels = {
        "app.kubernetes.io/managed-by": "sluicegate",
        "app.kubernetes.io/name": name,
        "sluicegate.dev/environment": place.environment,
    }
    about: Json = {
        "name": name,
        "namespace": place.namespace,
        "labels": labels,
        "annotations": {"sluicegate.dev/release": f"{model}/r{number}", "sluicegate.dev/digest": digest},
    }
    chosen = {"app.kubernetes.io/name": name, "sluicegate.dev/environment": place.environment}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": about,
        "spec": {
            "replicas": place.replicas,
            "selector": {"matchLabels": chosen},
            "template": {
                "metadata": {"labels": labels, "annotations": about["annotations"]},
                "spec": _pod(manifest, f"{model}/r{number}", number, chosen, place),
            },
        },
    }
    ports = [{"name": port, "port": at, "targetPort": port} for port, at in _PORTS.items()]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": about,
        "spec": {"clusterIP": "None", "selector": chosen, "ports": ports},
    }
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": about,
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": chosen}},
    }
    return [deployment, service, budget]


def undeclared(manifest: Mapping[str, Any]) -> list[str]:
    """Returns the fields without which Kubernetes places a pod blindly, of those that the envelope leaves out."""
    envelope = manifest.get("envelope") or {}
    asked = ("host.cpu_cores_min", "host.memory_mib_min", "accelerator.vendor")
    return [path for path in asked if _at(envelope, path) is None]


def _require_image(manifest: Mapping[str, Any]) -> None:
    kind, image = kind_of(manifest), str(manifest["runtime"]["image"])
    if not kind.has_config:
        raise NotForKubernetes(
            f"Manifests can be made for releases on Triton alone, and this one runs on {kind.name}.",
            "Run it on an environment of this installation.",
        )
    if image.startswith(_LOCAL_IMAGE):
        raise NotForKubernetes(
            f"The release was sealed for {image.partition('@')[0]}, which nodes of this installation build, and no registry has.",
            "Push it again with `runtime.image` set to the cluster's Triton image by digest.",
        )
    if kind.backends[backend_of(manifest)].runner and any(
        file["path"].startswith("tokenizer/") for file in manifest["files"]
    ):
        raise NotForKubernetes(
            "Its tokenizer runs in this product's own runner, which a stock Triton image lacks.",
            "Push it with `backend: python` and the tokenizer in model.py, or with tensors as inputs.",
        )
    try:
        tree_of(manifest, 1)
    except ValueError as error:
        raise NotForKubernetes(
            f"It cannot be a model repository: {error}.", "Rename the file and push again."
        ) from error


def _pod(manifest: Mapping[str, Any], release: str, number: int, chosen: Json, place: Place) -> Json:
    envelope = manifest.get("envelope") or {}
    host, gpus = envelope.get("host") or {}, _gpus(envelope.get("accelerator") or {})
    shm, disk = host.get("shm_mib_min"), host.get("disk_mib")
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": int(kind_of(manifest).exit_grace_s) + 1,
        "nodeSelector": {"kubernetes.io/os": "linux", **_architecture(host), **place.node_labels},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": chosen},
            }
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
        "initContainers": [_fetch(release, place)],
        "containers": [_triton(manifest, number, gpus)],
        "volumes": [
            {"name": "release", "emptyDir": {"sizeLimit": f"{disk}Mi"} if disk else {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", **({"sizeLimit": f"{shm}Mi"} if shm else {})}},
        ],
    }
    if terms := _node_terms(envelope):
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        pod["affinity"] = {"nodeAffinity": required}
    if gpus:
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return pod


def _fetch(release: str, place: Place) -> Json:
    """Kubernetes may run it again over what it wrote before, so it begins with an empty folder."""
    script = f"rm -rf /release/* && exec sluicegate release export {release} /release --triton"
    token = {"secretKeyRef": {"name": place.secret, "key": "token"}}
    return {
        "name": "fetch",
        "image": place.cli_image,
        "command": ["sh", "-c", script],
        "env": [
            {"name": "SLUICEGATE_URL", "value": place.url},
            {"name": "SLUICEGATE_TOKEN", "valueFrom": token},
            {"name": "HOME", "value": _TMP},
        ],
        "securityContext": _confined(),
        "volumeMounts": [{"name": "release", "mountPath": "/release"}, {"name": "tmp", "mountPath": _TMP}],
    }


def _triton(manifest: Mapping[str, Any], number: int, gpus: Mapping[str, int]) -> Json:
    envelope = manifest.get("envelope") or {}
    host, model = envelope.get("host") or {}, manifest["model"]
    requests, limits = dict(gpus), dict(gpus)
    bounds: Json = {}
    if cores := host.get("cpu_cores_min"):
        bounds["cpu"] = f"{round(cores * 1000)}m"
    if memory := host.get("memory_mib_min"):
        # what lies in /dev/shm counts as the pod's memory
        bounds["memory"] = f"{memory + (host.get('shm_mib_min') or 0)}Mi"
    if disk := host.get("disk_mib"):
        bounds["ephemeral-storage"] = f"{disk}Mi"
    # a limit on CPU would throttle, which makes the slowest requests slower
    everything = {
        "requests": {**bounds, **requests},
        "limits": {**{k: v for k, v in bounds.items() if k != "cpu"}, **limits},
    }
    return {
        "name": "triton",
        "image": manifest["runtime"]["image"],
        "command": ["tritonserver"],
        "args": [
            "--model-repository=/release",
            "--model-control-mode=none",
            "--disable-auto-complete-config",
            f"--exit-timeout-secs={int(kind_of(manifest).exit_grace_s)}",
        ],
        "ports": [{"name": port, "containerPort": at} for port, at in _PORTS.items()],
        "readinessProbe": {
            "httpGet": {"path": f"/v2/models/{model}/versions/{number}/ready", "port": "http"},
            "periodSeconds": 1,
            "failureThreshold": 3,
        },
        "resources": {name: values for name, values in everything.items() if values},
        "securityContext": _confined(),
        "volumeMounts": [
            {"name": "release", "mountPath": "/release", "readOnly": True},
            {"name": "tmp", "mountPath": _TMP},
            {"name": "shm", "mountPath": _SHM},
        ],
    }


def _confined() -> Json:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _gpus(accelerator: Mapping[str, Any]) -> dict[str, int]:
    """Returns the extended resource and its count. Raises NotForKubernetes for a choice that one resource cannot state."""
    if accelerator.get("vendor") != "nvidia":
        return {}
    count, mig = int(accelerator.get("count", 1)), accelerator.get("mig") or {}
    if not count:
        return {}
    profiles = mig.get("profiles") or []
    if not profiles or mig.get("mode") in {"none", "single"}:
        return {"nvidia.com/gpu": count}
    if len(profiles) > 1:
        raise NotForKubernetes(
            f"The envelope allows the MIG profiles {', '.join(profiles)}, and a pod asks for one resource.",
            "Push it again with one profile in `accelerator.mig.profiles`.",
        )
    return {f"nvidia.com/mig-{profiles[0].replace('+', '.')}": count}


def _architecture(host: Mapping[str, Any]) -> dict[str, str]:
    return {"kubernetes.io/arch": _ARCHITECTURES[host["arch"]]} if host.get("arch") else {}


def _node_terms(envelope: Mapping[str, Any]) -> list[Json]:
    """Returns alternatives on the labels of GPU Feature Discovery."""
    accelerator, driver = envelope.get("accelerator") or {}, envelope.get("driver") or {}
    if accelerator.get("vendor") != "nvidia":
        return []
    capability = accelerator.get("compute_capability") or {}
    axes: list[list[Conditions]] = [
        _at_least(("gpu.compute",), capability.get("min")),
        [_is_version("gpu.compute", one) for one in capability.get("any_of") or []],
        _at_least(("cuda.driver-version", "cuda.driver"), driver.get("driver_min")),
        _at_least(("cuda.runtime-version", "cuda.runtime"), driver.get("cuda_min")),
        _products("In", accelerator.get("sku_allow")),
        _products("NotIn", accelerator.get("sku_deny")),
        [(_above("gpu.memory", int(accelerator["memory_mib_min"]) - 1),)] if accelerator.get("memory_mib_min") else [],
    ]
    chosen: list[list[Conditions]] = [axis for axis in axes if axis]
    return (
        [{"matchExpressions": [one for part in parts for one in part]} for parts in product(*chosen)] if chosen else []
    )


def _at_least(labels: tuple[str, ...], version: str | None) -> list[Conditions]:
    """`Gt` compares whole numbers, so a version takes two alternatives: a newer major, or the same and no older minor.

    The part after the minor is not compared. `labels`: the names under which versions of the tool write the same fact.
    """
    if not version:
        return []
    major, minor = _halves(version)
    found: list[Conditions] = []
    for label in labels:
        if minor:
            same = _is(f"{label}.major", major), _above(f"{label}.minor", minor - 1)
            found += [(_above(f"{label}.major", major),), same]
        else:
            found.append((_above(f"{label}.major", max(0, major - 1)),))
    return found


def _is_version(label: str, version: str) -> Conditions:
    major, minor = _halves(version)
    return _is(f"{label}.major", major), _is(f"{label}.minor", minor)


def _halves(version: str) -> tuple[int, int]:
    numbers = [int(one) for one in re.findall(r"\d+", version)]
    return numbers[0], numbers[1] if len(numbers) > 1 else 0


def _above(label: str, number: int) -> Json:
    return {"key": f"{_GFD}{label}", "operator": "Gt", "values": [str(number)]}


def _is(label: str, number: int) -> Json:
    return {"key": f"{_GFD}{label}", "operator": "In", "values": [str(number)]}


def _products(operator: str, names: list[str] | None) -> list[Conditions]:
    """The label has the driver's name with dashes for blanks, and `-SHARED` behind it on a shared device.

    Raises NotForKubernetes for a short name such as `L4`, which would match no label.
    """
    plain = ["-".join(name.split()) for name in names or []]
    if short := [name for name in plain if not _PRODUCT.fullmatch(name)]:
        raise NotForKubernetes(
            f"{short[0]!r} is no product as the label nvidia.com/gpu.product has it.",
            "Push it again with the label's text in `accelerator.sku_allow` and `sku_deny`, such as NVIDIA-L4.",
        )
    values = [one for name in plain for one in (name, f"{name}-SHARED")]
    return [({"key": f"{_GFD}gpu.product", "operator": operator, "values": values},)] if values else []


def _at(envelope: Mapping[str, Any], path: str) -> Any:
    section, _, name = path.partition(".")
    return (envelope.get(section) or {}).get(name)
