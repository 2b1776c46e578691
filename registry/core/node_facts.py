"""Facts about a node, from GPU Feature Discovery labels or from its agent. Unknown is None.

Source of the label names: NVIDIA/k8s-device-plugin docs/gpu-feature-discovery (`nvidia.com/gpu.product`, …), whose older
and newer names for versions are both read; `kubernetes.io/os` and `kubernetes.io/arch` are Kubernetes' own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from registry.core.engine_flavour import FLAVOURS

_NVIDIA: Final = "nvidia.com/"
_ARCHITECTURES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
_MIG: Final = re.compile(r"nvidia\.com/mig-(\d+g\.\d+gb)\.(count|memory)")
_MIG_PRODUCT: Final = re.compile(r"-MIG-(\d+g\.\d+gb(?:\.me)?)")


@dataclass(frozen=True)
class NodeFacts:
    """`gpus`: product of every whole device or, with MIG strategy `single`, slice; () where there is none, None if unknown.

    `gpu_memory_mib` is of each device. `mig`: profile → (how many, MiB of each or None). `sharers`: how many may be given one
    device at once.
    """

    gpus: tuple[str, ...] | None = None
    gpu_memory_mib: int | None = None
    compute_capability: str | None = None
    driver: str | None = None
    cuda: str | None = None  # the newest that the driver supports
    mig_strategy: str | None = None
    mig: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    sharers: int | None = None
    cpu_cores: float | None = None
    memory_mib: int | None = None
    shm_mib: int | None = None
    disk_mib: int | None = None
    os: str | None = None
    arch: str | None = None
    tensorrt: Mapping[str, str] = field(default_factory=dict)  # flavour → version that the runtime has


def from_labels(labels: Mapping[str, Any]) -> NodeFacts:
    """The facts in a node's labels. Labels that cannot be read are passed over: unknown, as if they were not there."""
    product, count = _text(labels, "gpu.product"), _whole(labels, "gpu.count")
    slices: dict[str, tuple[int, int | None]] = {}
    for name in labels:
        if (found := _MIG.fullmatch(str(name))) and found[2] == "count":
            count_of = _whole(labels, f"mig-{found[1]}.count")
            if count_of is not None:
                slices[found[1]] = (count_of, _whole(labels, f"mig-{found[1]}.memory"))
    strategy = _text(labels, "mig.strategy")
    single = _MIG_PRODUCT.search(product or "")
    if single and count is not None:
        slices[single[1]] = (count, _whole(labels, "gpu.memory"))
        strategy = strategy or "single"
    return NodeFacts(
        gpus=_devices(product, count),
        gpu_memory_mib=_whole(labels, "gpu.memory"),
        compute_capability=_version(labels, "gpu.compute", ("major", "minor")),
        driver=_text(labels, "cuda.driver-version.full")
        or _version(labels, "cuda.driver-version", ("major", "minor", "revision"))
        or _version(labels, "cuda.driver", ("major", "minor", "rev")),
        cuda=_text(labels, "cuda.runtime-version.full")
        or _version(labels, "cuda.runtime-version", ("major", "minor"))
        or _version(labels, "cuda.runtime", ("major", "minor")),
        mig_strategy=strategy,
        mig=slices,
        sharers=_whole(labels, "gpu.replicas"),
        os=_plain(labels, "kubernetes.io/os"),
        arch=_architecture(_plain(labels, "kubernetes.io/arch")),
    )


def from_agent(facts: Mapping[str, Any], versions: Mapping[str, Any] | None = None) -> NodeFacts:
    """The facts that a node's agent told, and the versions of one of its runtimes.

    Reads system, machine, cpu_count, memory_bytes, gpus, driver and `labels`, which has GPU Feature Discovery's names.
    """
    labels = facts.get("labels")
    told = from_labels(labels if isinstance(labels, Mapping) else {})
    gpus, memory, cores = facts.get("gpus"), facts.get("memory_bytes"), facts.get("cpu_count")
    system = str(facts.get("system") or "").split(" ")[0].lower()
    tensorrt = {one.name: str(own) for one in FLAVOURS.values() if (own := (versions or {}).get(one.versions))}
    return replace(
        told,
        gpus=told.gpus if told.gpus is not None else tuple(map(str, gpus)) if isinstance(gpus, list) else None,
        driver=told.driver or (str(facts["driver"]) if facts.get("driver") else None),
        cpu_cores=float(cores) if isinstance(cores, int | float) else None,
        memory_mib=int(memory) >> 20 if isinstance(memory, int) else None,
        os=told.os or system or None,
        arch=told.arch or _architecture(str(facts["machine"]) if facts.get("machine") else None),
        tensorrt=tensorrt,
    )


def _devices(product: str | None, count: int | None) -> tuple[str, ...] | None:
    if count == 0:
        return ()
    return None if count is None or product is None else (product,) * min(count, 1024)


def _text(labels: Mapping[str, Any], name: str) -> str | None:
    return _plain(labels, _NVIDIA + name)


def _plain(labels: Mapping[str, Any], name: str) -> str | None:
    value = str(labels.get(name, "")).strip()
    return value[:200] or None


def _whole(labels: Mapping[str, Any], name: str) -> int | None:
    text = _text(labels, name) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _version(labels: Mapping[str, Any], name: str, parts: tuple[str, ...]) -> str | None:
    """`12.4` of <name>.major and <name>.minor; None without the first, and cut before the first that is missing."""
    found = []
    for part in parts:
        text = _text(labels, f"{name}.{part}") or ""
        if not (text.isascii() and text.isdigit()):
            break
        found.append(text)
    return ".".join(found) if found else None


def _architecture(name: str | None) -> str | None:
    return _ARCHITECTURES.get(name, name) if name else None
