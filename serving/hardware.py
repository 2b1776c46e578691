"""What this machine computes with, as far as it can be told. What cannot be told is None, never a guess."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pynvml


def hardware() -> dict[str, Any]:
    """{"cpu_model", "gpus": [names], "driver", "gpus_unknown": why}. Without an NVIDIA driver `gpus` is None, with the reason."""
    return {"cpu_model": _cpu_model(), **_gpus()}


def _cpu_model() -> str | None:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return found[1].strip() if found else None


def _gpus() -> dict[str, Any]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"gpus": None, "driver": None, "gpus_unknown": str(error)}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        return {"gpus": names, "driver": _text(pynvml.nvmlSystemGetDriverVersion())}
    except pynvml.NVMLError as error:
        return {"gpus": None, "driver": None, "gpus_unknown": str(error)}
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
