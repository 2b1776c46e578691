"""An envelope to begin with, from what the files say of themselves. A person reads and corrects it; a gate measures.

Premise: a server holds its weights once on disk and, while it loads them, twice in memory. Numbers are rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.core.file_lint import plan_facts, weights_bytes
from registry.core.serving import instances_of

#: Of the server itself, beside its weights, in MiB of host memory.
SERVER_MIB: Final = 256
#: Of a device, for what computing leaves on it: activations, the framework's own.
DEVICE_SPARE_FRAC: Final = 0.25
_STEP_MIB: Final = 64
_ENGINES: Final = {"sluicegate-onnx": "onnx", "tensorrt": "trt-plan", "pytorch": "torchscript", "python": "python"}
#: Of most of the weights' bytes, as their headers name it.
_PRECISIONS: Final = {
    "FP32": "fp32", "F32": "fp32", "FP16": "fp16", "F16": "fp16", "BF16": "bf16", "INT8": "int8", "I8": "int8",
}  # fmt: skip


def suggested(
    serving: Mapping[str, Any], backend: str, files: Mapping[str, tuple[int, Mapping[str, Any]]]
) -> dict[str, Any]:
    """An envelope for these files. `files`: path → (size in bytes, the facts of `registry.core.formats`)."""
    weights = weights_bytes(files)
    total = sum(size for size, _ in files.values())
    devices = instances_of(serving, "gpu")
    found: dict[str, Any] = {
        "host": {
            "memory_mib_min": _mib(2 * weights + (SERVER_MIB << 20)),
            "disk_mib": _mib(total),
        },
        "limits": {"max_batch_size": serving["max_batch_size"], "instances": instances_of(serving)},
    }
    if devices:
        on_device = weights * devices * (1 + DEVICE_SPARE_FRAC)
        found["accelerator"] = {"vendor": "nvidia", "count": 1, "memory_mib_min": _mib(int(on_device))}
    plan = plan_facts({path: facts for path, (_, facts) in files.items()})
    told = {"precision": _precision(files), "flavour": plan.get("flavour"), "builder_version": plan.get("tensorrt")}
    if backend not in _ENGINES:
        return found
    return found | {"engine": {"type": _ENGINES[backend]} | {name: value for name, value in told.items() if value}}


def _precision(files: Mapping[str, tuple[int, Mapping[str, Any]]]) -> str:
    """The number format that most of the weights have; empty where none is known."""
    elements: dict[str, int] = {}
    for _, facts in files.values():
        for _, data_type, shape in facts.get("tensors", []):
            count = 1
            for size in shape:
                count *= max(size, 0)
            elements[data_type] = elements.get(data_type, 0) + count
    if not elements:
        return ""
    return _PRECISIONS.get(max(sorted(elements), key=elements.__getitem__), "")


def _mib(size_bytes: int) -> int:
    """In MiB, rounded up to a step."""
    steps = -(-size_bytes // (_STEP_MIB << 20))
    return max(1, steps) * _STEP_MIB
