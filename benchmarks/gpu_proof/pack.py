"""The archive for a GPU machine without a package index: real Triton with CUDA, the numpy of its stub, and small modules.

`python -m benchmarks.gpu_proof.pack OUT` builds it; `run_in` unpacks it as a virtual environment and runs the proof there. That
environment is the serving environment too, so that the product's launcher runs unchanged. Standard library alone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.gpu_proof.parts import ROOT

PYTHON = "3.12"
MOST_BYTES = 40 << 20
_PLATFORM = "x86_64-manylinux_2_35"
#: Packages by the lock file that holds their versions and hashes.
PACKAGES = {
    "serving/runtime.lock": ("nvidia-pytriton", "numpy"),
    "requirements.lock": (
        "tritonclient",
        "python-rapidjson",
        "ml-dtypes",
        "structlog",
        "protobuf",
        "grpcio",
        "typing-extensions",
        "nvidia-ml-py",
    ),
}
#: Parts of the wheels that the proof does not use, as patterns below site-packages.
PRUNED = (
    "bin", "**/__pycache__", "**/tests", "**/*.pyi", "numpy/f2py", "numpy/doc", "numpy/core/include", "numpy/core/lib", "numpy/distutils",
    "nvidia_pytriton.libs/libpython3-*", "pytriton/tritonserver/python_backend_stubs/3.[!1]*",
    "pytriton/tritonserver/python_backend_stubs/3.1[!2]", "pytriton/tritonserver/caches", "tritonclient/http", "tritongrpcclient",
    "tritonhttpclient", "tritonclientutils", "tritonshmutils", "tritonclient/utils/cuda_shared_memory",
)  # fmt: skip
#: Modules that come with debug information, which is as large as the rest of them.
_STRIPPED = ("ml_dtypes/*.so", "rapidjson.*.so")
#: What must be there after pruning.
MEMBERS = (
    "pytriton/tritonserver/bin/tritonserver",
    "pytriton/tritonserver/backends/python/libtriton_python.so",
    "pytriton/tritonserver/backends/python/triton_python_backend_utils.py",
    f"pytriton/tritonserver/python_backend_stubs/{PYTHON}/triton_python_backend_stub",
    "numpy/__init__.py",
    "tritonclient/grpc/__init__.py",
    "structlog/__init__.py",
    "google/protobuf/message.py",
    "pynvml.py",
)
#: Installed on the machine; the runtime's digest names their versions.
_OF_THE_MACHINE = ("onnxruntime", "tokenizers")


def build(out: Path) -> int:
    """Writes the archive, and returns its size in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        site, wanted = Path(folder) / "site-packages", Path(folder) / "requirements.txt"
        wanted.write_text("".join(_locked(ROOT / lock, names) for lock, names in PACKAGES.items()))
        uv = ROOT / ".build" / "installer" / "bin" / "uv"
        install = [
            str(uv),
            "pip",
            "install",
            "-q",
            "--target",
            str(site),
            "--python-version",
            PYTHON,
            "--python-platform",
            _PLATFORM,
        ]
        subprocess.run(
            [*install, "--only-binary", ":all:", "--no-deps", "--require-hashes", "-r", str(wanted)], check=True
        )
        prune(site)
        absent = [name for name in MEMBERS if not (site / name).exists()]
        if absent:
            raise SystemExit(f"the wheels have no {', '.join(absent)}")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(out, "w:xz", preset=9) as archive:
            archive.add(site, "site-packages", filter=_plain)
    return out.stat().st_size


def _locked(lock: Path, names: Iterable[str]) -> str:
    """The requirements of these packages with their hashes, as the lock file has them."""
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", lock.read_text())
    found = {re.split(r"[=\[ ]", entry, maxsplit=1)[0]: entry for entry in entries}
    return "".join(re.sub(r"(?m)^\s*#.*\n?", "", found[name]) for name in names)


def prune(site: Path) -> None:
    """Removes what PRUNED names, and modules of pytriton itself: the server is a program of its own."""
    for pattern in PRUNED:
        for path in list(site.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if strip := shutil.which("strip"):
        for pattern in _STRIPPED:
            subprocess.run([strip, "--strip-debug", *site.glob(pattern)], check=True)
    for path in (site / "pytriton").iterdir():
        if path.name != "tritonserver":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def unpack(archive: Path, folder: Path) -> Path:
    """A virtual environment with the archive's packages first, and the machine's own after them. Returns its folder."""
    home = folder / "venv"
    venv.create(home, system_site_packages=True, symlinks=True, with_pip=False)
    site = next((home / "lib").glob("python3.*")) / "site-packages"
    with tarfile.open(archive) as packed:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.11.2 of Debian 12 has none yet
        packed.extractall(site.parent, **safely)  # type: ignore[arg-type]
    machines = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "machine.pth").write_text("".join(f"{path}\n" for path in machines))
    for name in _OF_THE_MACHINE:
        for path in (Path(one) for one in machines):
            for found in path.glob(f"{name}-*.dist-info"):
                (site / found.name).symlink_to(found)
    return home


def run_in(archive: Path, arguments: Sequence[str]) -> int:
    """The exit code of the proof in the unpacked environment."""
    if not archive.is_file():
        print(
            f"missing: pack: there is no {archive}; build it with `make gpu-pack`, and name it with --pack",
            file=sys.stderr,
        )
        return 2
    if f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON:
        print(
            f"missing: python: the archive is for Python {PYTHON}, and this is {sys.version.split()[0]}",
            file=sys.stderr,
        )
        return 2
    rest, skip = [], False
    for argument in arguments:
        if not skip and not argument.startswith("--pack"):
            rest.append(argument)
        skip = argument == "--pack"
    folder = Path(tempfile.mkdtemp(prefix="gpu-pack-"))
    folder.chmod(0o755)
    try:
        home = unpack(archive, folder)
        command = [str(home / "bin" / "python"), "-m", "benchmarks.gpu_proof", "--serving-venv", str(home), *rest]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    size = build(Path(sys.argv[1]))
    print(f"{sys.argv[1]}: {size / 1e6:.1f} MB")
    sys.exit(f"it is larger than {MOST_BYTES >> 20} MiB" if size > MOST_BYTES else 0)
