"""Detects this machine's CPU, GPUs and driver. What cannot be determined is None, never a guess."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pynvml


def hardware() -> dict[str, Any]:
    """{"cpu_model", "gpus": [names], "driver", "labels"} or, without an NVIDIA driver, `gpus` None with "gpus_unknown": why.

    `labels` has GPU Feature Discovery's names, as `registry.core.node_facts` reads them, for what all devices share.
    """
    return {"cpu_model": _cpu_model(), **_gpus()}


def _cpu_model() -> str | None:
    try:
        return cpu_model_in(Path("/proc/cpuinfo").read_text())
    except OSError:
        return None


def cpu_model_in(cpuinfo: str) -> str | None:
    """The CPU's name in Linux's words; ARM's have no name there, but numbers of who made it and of the part."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    if found:
        return found[1].strip()
    maker, part = (re.search(rf"^CPU {name}\s*:\s*(\S+)$", cpuinfo, re.MULTILINE) for name in ("implementer", "part"))
    return f"ARM implementer {maker[1]} part {part[1]}" if maker and part else None


def _gpus() -> dict[str, Any]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"gpus": None, "driver": None, "gpus_unknown": str(error)}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return {"gpus": names, "driver": driver, "labels": _labels(handles, names, driver)}
    except pynvml.NVMLError as error:
        return {"gpus": None, "driver": None, "gpus_unknown": str(error)}
    finally:
        pynvml.nvmlShutdown()


def _labels(handles: list[Any], names: list[str], driver: str) -> dict[str, str]:
    """The facts that all devices of this machine share; facts that differ or are unknown are left out."""
    memories = _shared(lambda one: pynvml.nvmlDeviceGetMemoryInfo(one).total >> 20, handles)
    capability = _shared(lambda one: tuple(pynvml.nvmlDeviceGetCudaComputeCapability(one)), handles)
    sliced = _shared(lambda one: pynvml.nvmlDeviceGetMigMode(one)[0], handles)
    cuda = _or_none(pynvml.nvmlSystemGetCudaDriverVersion)  # 12040 is 12.4
    found = {
        "gpu.count": len(names),
        "gpu.product": "-".join(names[0].split()) if len(set(names)) == 1 else None,
        "gpu.memory": memories,
        "gpu.compute.major": capability and capability[0],
        "gpu.compute.minor": capability and capability[1],
        "cuda.driver-version.full": driver,
        "cuda.runtime-version.full": cuda and f"{cuda // 1000}.{cuda % 1000 // 10}",
        "mig.strategy": "none" if sliced == 0 else None,
    }
    return {f"nvidia.com/{name}": str(value) for name, value in found.items() if value is not None}


def _shared(ask: Callable[[Any], Any], handles: list[Any]) -> Any:
    answers = {_or_none(partial(ask, one)) for one in handles}
    return answers.pop() if len(answers) == 1 else None


def _or_none(ask: Callable[[], Any]) -> Any:
    """The answer; None where this device or driver does not support the question."""
    try:
        return ask()
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
