"""Whether TensorRT can be used on this machine, and why not."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path


def availability() -> str:
    """`TensorRT <version>`, or `not available here: <why>`. Nothing is loaded, so asking costs nothing."""
    if find_spec("tensorrt") is None:
        return "not available here: the tensorrt package is not installed; install sluicegate[gpu] on a machine with an NVIDIA GPU"
    if not Path("/dev/nvidiactl").exists():
        return "not available here: the tensorrt package is installed, but this machine has no NVIDIA device"
    return f"TensorRT {version('tensorrt')}"
