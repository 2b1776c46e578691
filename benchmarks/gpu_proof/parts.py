"""The parts that steps need: whether each is here, and what brings it. Standard library alone, so that it runs before any is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PACK = "`--pack gpu-pack.tar.xz`, the archive that `make gpu-pack` builds"
#: What the proof's own process imports, beside the standard library and this repository.
MODULES = ("numpy", "grpc", "google.protobuf", "tritonclient.grpc", "rapidjson", "structlog", "pynvml")
_TORCH = "import torch, sys; sys.exit(0 if torch.cuda.is_available() or '--any' in sys.argv else 'torch finds no GPU')"
_NVML = "import pynvml as n; n.nvmlInit(); raise SystemExit(0 if n.nvmlDeviceGetCount() else 'the driver found no GPU')"
_ASK_S = 120.0


@dataclass(frozen=True)
class Part:
    """`missing(venv)` returns why the part is not here, or an empty string."""

    name: str
    missing: Callable[[Path], str]
    brought_by: str


def _modules(venv: Path) -> str:
    return _refusal(f"import {', '.join(MODULES)}")


def _triton(venv: Path) -> str:
    """The server's files, and the libpython that the stub of its python backend links to."""
    from serving.targets.agent import runtime_image

    try:
        runtime_image.describe(venv)
        found = runtime_image.environment(venv)
    except runtime_image.RuntimeMissing as error:
        return str(error)
    library = f"lib{found.site.parent.name}.so.1.0"
    if found.python_library and (found.python_library / library).exists():
        return ""
    return _refusal(f"import ctypes; ctypes.CDLL({library!r})")


def _gpu(venv: Path) -> str:
    return _refusal(_NVML)


def _torch(venv: Path) -> str:
    return _refusal(_TORCH)


def _torch_anywhere(venv: Path) -> str:
    return _refusal(_TORCH, "--any")


def _nvcc(venv: Path) -> str:
    return "" if nvcc() else "nvcc is not on the PATH, nor in /usr/local/cuda/bin"


def nvcc() -> str:
    """The compiler's path, or an empty string."""
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.exists() else "")


def _refusal(program: str, *arguments: str) -> str:
    """The last line of a Python program that failed, or an empty string. In a process of its own: a driver may hang or crash."""
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_ASK_S:g} s"
    words = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
    return words[-1] if ended.returncode else ""


PARTS = {
    part.name: part
    for part in (
        Part("modules", _modules, f"`make setup`, or {_PACK}"),
        Part("triton", _triton, f"`make setup`, or {_PACK} and a system with the libpython of its Python"),
        Part("gpu", _gpu, "a machine with an NVIDIA GPU and its driver; `--cpu` runs without"),
        Part("torch", _torch, "PyTorch with CUDA in the machine's Python"),
        Part("torch-any", _torch_anywhere, "PyTorch in the machine's Python"),
        Part("nvcc", _nvcc, "the CUDA toolkit"),
    )
}


def why_missing(names: Sequence[str], venv: Path) -> dict[str, str]:
    """The reasons by part, of those that are not here."""
    found = {name: PARTS[name].missing(venv) for name in names}
    return {name: why for name, why in found.items() if why}
