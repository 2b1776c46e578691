"""Drift detection: whether the files under a running server are still those that were sealed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from serving.targets.agent.model_repository import tree
from serving.targets.core.drift import Drift

#: No more than this is read in a second, so that looking takes no disk from serving.
READ_BYTES_PER_S = 200 * 2**20
_CHUNK_BYTES = 1 << 20
#: Python writes compiled modules beside those that it imports.
_WRITTEN_BY_PYTHON = "__pycache__"


def drift_of(
    manifest: dict[str, Any],
    model: str,
    repository: Path,
    *,
    rest: Callable[[float], object] = time.sleep,
    per_s: float = READ_BYTES_PER_S,
) -> list[Drift]:
    """Every file under the server's model folder that is not as its release was sealed; by path. Reads all of them.

    `rest(seconds)` is called between pieces, so that no more than `per_s` bytes are read in a second. Raises OSError for what
    cannot be read, and LaunchError("bad_config") for a manifest that gives no tree.
    """
    folder = repository / model
    wanted = {path: _sha256_of(content) for path, content in tree(manifest, model).items()}
    there = {PurePosixPath(path.relative_to(folder).as_posix()) for path in _files(folder)}
    found = []
    for path in sorted({*wanted, *there}):
        digest = _hashed(folder / path, rest, per_s) if path in there else ""
        if digest != wanted.get(path, ""):
            found.append(Drift(str(path), wanted.get(path, ""), digest))
    return found


def _sha256_of(content: dict[str, Any] | bytes) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    return str(content["sha256"]).removeprefix("sha256:")


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if (path.is_symlink() or path.is_file()) and _WRITTEN_BY_PYTHON not in path.parts:
            yield path


def _hashed(path: Path, rest: Callable[[float], object], per_s: float) -> str:
    """The sha256 of a file; of a symbolic link, which is never sealed, a hash over its target's path."""
    digest = hashlib.sha256()
    if path.is_symlink():
        return hashlib.sha256(f"link to {path.readlink()}".encode()).hexdigest()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            rest(len(chunk) / per_s)
    return digest.hexdigest()
