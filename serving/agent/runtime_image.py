"""This node's runtime "image": a digest over everything that a release's answers can depend on here.

A container runtime has an image digest; a server from a wheel has none, so one is made: over the server's binaries
(hashed as they lie on the disk), what the wheel recorded of its libraries, the lock file of the serving environment,
the versions really installed in it, and every file of the runner. A release names that digest, and this node refuses
any other.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ledger.core.canonical import digest_of, sha256_of

NAME = "local/triton-onnx"
_SERVING = Path(__file__).resolve().parents[1]
RUNNER = _SERVING / "runner"
LOCK_FILE = _SERVING / "runtime.lock"
#: The server's version by its wheel's. Source: the server's own metadata; tests/contracts/test_launcher.py compares them.
_TRITON_BY_WHEEL = {"0.7.0": "2.51.0"}
_MEASURED_PACKAGES = ("nvidia_pytriton", "numpy", "tokenizers")
#: One of these is installed; both together hold one another's files.
_ONNX_RUNTIMES = ("onnxruntime", "onnxruntime_gpu")


class RuntimeMissing(Exception):
    """The serving environment is not there or not whole; the message says what to do."""


@dataclass(frozen=True)
class Binaries:
    """Where the parts of the server lie in a serving environment."""

    venv: Path
    site: Path

    @property
    def _root(self) -> Path:
        return self.site / "pytriton" / "tritonserver"

    @property
    def server(self) -> Path:
        return self._root / "bin" / "tritonserver"

    @property
    def libraries(self) -> Path:
        return self.site / "nvidia_pytriton.libs"

    @property
    def python_backend(self) -> tuple[Path, ...]:
        """The files that make up the python backend's folder; the stub's Python version is the environment's."""
        version = self.site.parent.name.removeprefix("python")
        folder = self._root / "backends" / "python"
        stub = self._root / "python_backend_stubs" / version / "triton_python_backend_stub"
        return folder / "libtriton_python.so", folder / "triton_python_backend_utils.py", stub

    @property
    def core(self) -> Path:
        return next(self.libraries.glob("libtritonserver-*.so"))

    @property
    def python_home(self) -> Path | None:
        """The folder of the Python that the environment was made with, where it is not the system's."""
        told = next(
            (
                line.partition("=")[2].strip()
                for line in (self.venv / "pyvenv.cfg").read_text().splitlines()
                if line.partition("=")[0].strip() == "home"
            ),
            "",
        )
        home = Path(told).parent
        return home if told and home not in (Path("/"), Path("/usr")) else None

    @property
    def added_folders(self) -> list[Path]:
        """Folders that the environment's .pth files add to the path of its Python. Source: the module `site`."""
        lines = [line.strip() for file in sorted(self.site.glob("*.pth")) for line in file.read_text().splitlines()]
        named = [self.site / line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
        return [folder for folder in named if folder.is_dir()]

    @property
    def python_library(self) -> Path | None:
        """The folder of libpython that the stub links to, where it is not the system's."""
        folder = self.python_home / "lib" if self.python_home else None
        return folder if folder and any(folder.glob(f"lib{self.site.parent.name}.so*")) else None


def binaries(venv: Path) -> Binaries:
    """Raises RuntimeMissing, naming the first missing part."""
    site = next(iter(sorted((venv / "lib").glob("python3.*/site-packages"))), None)
    if site is None:
        raise RuntimeMissing(
            f"There is no serving environment at {venv}; make it with `make setup`, or name another in SLUICEGATE_SERVING_VENV."
        )
    found = Binaries(venv, site)
    for path in (found.server, *found.python_backend):
        if not path.is_file():
            raise RuntimeMissing(f"{path} is missing; install serving/runtime.lock into {venv} again (`make setup`).")
    return found


def describe(venv: Path) -> dict[str, Any]:
    """{"image", "server", "backends", "versions"} of this environment. Raises RuntimeMissing."""
    parts = binaries(venv)
    versions = {name: _version(parts.site, name) for name in (*_MEASURED_PACKAGES, onnx_runtime_in(parts.site))}
    measured = (parts.server, parts.core, *parts.python_backend)
    digest = digest_of(
        {
            "binaries": {path.name: _file_digest(path) for path in measured},
            "recorded": _recorded(parts.site, versions["nvidia_pytriton"]),
            "lock": sha256_of(LOCK_FILE.read_bytes()),
            "installed": versions,
            "runner": {path.relative_to(RUNNER).as_posix(): sha256_of(path.read_bytes()) for path in runner_files()},
        }
    )
    wheel = versions.pop("nvidia_pytriton")
    triton = _TRITON_BY_WHEEL.get(wheel, f"of nvidia-pytriton {wheel}")
    return {
        "image": f"{NAME}@{digest}",
        "server": "triton",
        "backends": ["onnxruntime", "python"],
        "versions": {"triton": triton, **versions},
    }


def runner_files() -> list[Path]:
    """Every file of the runner, in order; compiled leftovers are not part of it."""
    return sorted(path for path in RUNNER.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def onnx_runtime_in(site: Path) -> str:
    """Which of ONNX Runtime's packages is installed there: the processor's or the GPU's. Raises RuntimeMissing where both are."""
    found = [name for name in _ONNX_RUNTIMES if any(site.glob(f"{name}-*.dist-info"))]
    if len(found) > 1:
        raise RuntimeMissing(
            "onnxruntime and onnxruntime-gpu are both installed in the serving environment, and one has overwritten the other; "
            "make it anew with one of them (docs/release-folder.md, Running on CUDA)."
        )
    return found[0] if found else _ONNX_RUNTIMES[0]


def _version(site: Path, package: str) -> str:
    found = next(iter(site.glob(f"{package}-*.dist-info")), None)
    if found is None:
        raise RuntimeMissing(
            f"{package} is not installed in the serving environment; install serving/runtime.lock into it (`make setup`)."
        )
    return found.name.removeprefix(f"{package}-").removesuffix(".dist-info")


def _recorded(site: Path, version: str) -> dict[str, str]:
    """sha256 of the wheel's server parts as it recorded them; installers add lines of their own, which are left out."""
    record = site / f"nvidia_pytriton-{version}.dist-info" / "RECORD"
    wanted = ("pytriton/tritonserver/", "nvidia_pytriton.libs/")
    rows = csv.reader(record.read_text().splitlines())
    return {path: _hex(value) for path, value, _ in rows if path.startswith(wanted) and value.startswith("sha256=")}


def _hex(recorded: str) -> str:
    """`sha256=<urlsafe base64>` → `sha256:<hex>`. Source: the wheel format's RECORD (PEP 427)."""
    raw = recorded.removeprefix("sha256=")
    return f"sha256:{base64.urlsafe_b64decode(raw + '=' * (-len(raw) % 4)).hex()}"


def _file_digest(path: Path) -> str:
    stat = os.stat(path)
    return _hash(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _hash(path: Path, mtime_ns: int, size: int) -> str:
    """Reading 55 MB of server takes a while, so a file is read again only when its time or size changed."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
