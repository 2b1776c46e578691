"""The two TensorRTs whose engine plans a release may hold. Neither loads the other's plans, and their versions have nothing in common.

TensorRT compiles a plan for one GPU. TensorRT for RTX compiles it in part: the rest happens when the plan is first loaded, on the GPU
that loads it. Source: NVIDIA, TensorRT for RTX 1.7, ComputeCapability in NvInferRuntime.h and its Python bindings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_H100: Final = "9.0"


@dataclass(frozen=True)
class Flavour:
    """`versions`: the name of its version in what a runtime offers. `capabilities`: those that a plan can be built for, all if empty.

    `is_portable`: whether a plan can be built for later versions (`version_compatible`) or other GPUs (`hardware_compatibility`).
    """

    name: str
    product: str
    versions: str
    is_portable: bool = True
    capabilities: tuple[str, ...] = ()

    def why_not(self, capability: str) -> str:
        """Why no plan can be built for this compute capability; empty if one can."""
        if not self.capabilities or capability in self.capabilities:
            return ""
        which = f"{capability} (H100, H200)" if capability == _H100 else capability
        return f"{self.product} builds no plan for compute capability {which}, only for {', '.join(self.capabilities)}"


STANDARD: Final = Flavour("standard", "TensorRT", "tensorrt")
RTX: Final = Flavour(
    "rtx",
    "TensorRT for RTX",
    "tensorrt_rtx",
    is_portable=False,
    capabilities=("7.5", "8.0", "8.6", "8.9", "12.0", "12.1"),
)
FLAVOURS: Final = {one.name: one for one in (STANDARD, RTX)}


def declared_flavour(envelope: Mapping[str, Any]) -> Flavour:
    """The flavour that `envelope.engine.flavour` names. An envelope that names none means TensorRT itself, which Triton loads."""
    return FLAVOURS.get(envelope.get("engine", {}).get("flavour", ""), STANDARD)
