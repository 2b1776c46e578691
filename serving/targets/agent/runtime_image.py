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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ledger.core.canonical import digest_of, sha256_of
from registry.core.kinds import DEFAULT
from registry.core.kinds.kind import Image, ServerKind
from registry.core.kinds.triton import TRITON

_SERVING = Path(__file__).resolve().parents[2]
RUNNER = _SERVING / "runner"
#: How an environment is made.
_HOW = "`make setup`; for a kind other than Triton see docs/server-kinds.md"


class RuntimeMissing(Exception):
    """The serving environment is not there or not whole; the message says what to do."""


@dataclass(frozen=True)
class ServingEnvironment:
    """A serving environment: a virtual environment of Python with a server in it."""

    venv: Path
    site: Path

    @property
    def python(self) -> str:
        """Version of its Python, such as 3.11."""
        return self.site.parent.name.removeprefix("python")

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


def venv_of(venv: Path, kind: ServerKind) -> Path:
    """The serving environment of a kind. `venv`: that of the default kind, beside which the others lie."""
    return venv if kind.name == DEFAULT else venv.with_name(f"{venv.name}-{kind.name}")


def environment(venv: Path) -> ServingEnvironment:
    """Raises RuntimeMissing."""
    site = next(iter(sorted((venv / "lib").glob("python3.*/site-packages"))), None)
    if site is None:
        raise RuntimeMissing(
            f"There is no serving environment at {venv}. Make it ({_HOW}), or name another in SLUICEGATE_SERVING_VENV."
        )
    return ServingEnvironment(venv, site)


def files_of(kind: ServerKind, found: ServingEnvironment) -> dict[str, Path]:
    """The measured files of the kind's image, by their names. Raises RuntimeMissing, naming the first missing one."""
    files = {}
    for name, pattern in kind.image.files(found.python).items():
        path = next(iter(sorted(found.site.glob(pattern))), None)
        if path is None or not path.is_file():
            raise RuntimeMissing(
                f"{found.site / pattern} is missing; install serving/{kind.image.lock} into {found.venv} again ({_HOW})."
            )
        files[name] = path
    return files


def describe(venv: Path, kind: ServerKind = TRITON) -> dict[str, Any]:
    """{"image", "server", "backends", "versions"} of this environment. Raises RuntimeMissing."""
    try:
        return _described(venv, kind)
    except (OSError, ValueError) as error:
        raise RuntimeMissing(
            f"The serving environment {venv} is damaged: {error}. Remove it and install serving/{kind.image.lock} "
            f"into it again ({_HOW})."
        ) from error


def _described(venv: Path, kind: ServerKind) -> dict[str, Any]:
    image, found = kind.image, environment(venv)
    files = files_of(kind, found)
    lock = sha256_of((_SERVING / image.lock).read_bytes())
    packages = [installed_of(found.site, names, image.lock) for names in image.packages]
    versions = {name: _version(found.site, name, image.lock) for name in packages}
    digest = digest_of(
        {
            "binaries": {path.name: _file_digest(path) for path in files.values()},
            "recorded": _recorded(found.site, image, versions[image.package]),
            "lock": lock,
            "installed": versions,
            "runner": {path: sha256_of((RUNNER / path).read_bytes()) for path in image.runner},
        }
    )
    server = image.server_version(versions.pop(image.package))
    return {
        "image": f"{image.name}@{digest}",
        "server": kind.name,
        "backends": sorted(kind.runnable),
        "versions": {kind.name: server, **versions},
    }


def installed_of(site: Path, alternatives: Sequence[str], lock: str) -> str:
    """Which of these packages is installed there; the first if none is. Raises RuntimeMissing where several are."""
    found = [name for name in alternatives if any(site.glob(f"{name}-*.dist-info"))]
    if len(found) > 1:
        raise RuntimeMissing(
            f"{' and '.join(found).replace('_', '-')} are both installed in the serving environment, and one has overwritten the "
            f"other. Install serving/{lock} into a new environment with one of them (docs/release-folder.md, Running on CUDA)."
        )
    return found[0] if found else alternatives[0]


def _version(site: Path, package: str, lock: str) -> str:
    found = next(iter(site.glob(f"{package}-*.dist-info")), None)
    if found is None:
        raise RuntimeMissing(
            f"{package} is not installed in the serving environment; install serving/{lock} into it ({_HOW})."
        )
    return found.name.removeprefix(f"{package}-").removesuffix(".dist-info")


def _recorded(site: Path, image: Image, version: str) -> dict[str, str]:
    """sha256 of the wheel's server parts as it recorded them; installers add lines of their own, which are left out."""
    record = site / f"{image.package}-{version}.dist-info" / "RECORD"
    rows = csv.reader(record.read_text().splitlines())
    return {
        path: _hex(value) for path, value, _ in rows if path.startswith(image.recorded) and value.startswith("sha256=")
    }


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
