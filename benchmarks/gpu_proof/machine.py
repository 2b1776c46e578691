"""Facts of the machine that a proof ran on. A fact that cannot be read is None."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.gpu_proof.parts import ROOT


def machine() -> dict[str, Any]:
    """{"card", "cards", "driver", "cuda", "is_virtual", "cores", "cpu", "memory_mib", "python", "torch", "numpy", "glibc"}."""
    from serving.targets.agent.hardware import hardware

    found = hardware()
    cards, labels = found["gpus"] or [], found.get("labels") or {}
    return {
        "card": cards[0] if cards else None,
        "cards": cards,
        "cards_unknown": found.get("gpus_unknown", ""),
        "driver": found["driver"],
        "cuda": labels.get("nvidia.com/cuda.runtime-version.full"),
        "labels": labels,
        "is_virtual": _is_virtual(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": found["cpu_model"],
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "glibc": platform.libc_ver()[1] or None,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "numpy", "tritonclient", "nvidia-ml-py")},
    }


def revision() -> str | None:
    """The commit of the checkout, or None outside of one."""
    with contextlib.suppress(OSError):
        ended = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=10
        )
        return ended.stdout.strip() or None
    return None


def _is_virtual() -> bool | None:
    """Whether the processor reports a hypervisor (x86-64); a container looks like its host."""
    with contextlib.suppress(OSError):
        flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
        return "hypervisor" in flags.split() if flags else None
    return None


def _version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None
