"""One file of a release, brought here and checked: a folder gets the whole of it under its name, or nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError
from sluicegate.client import Client


def fetch_file(client: Client, address: str, folder: Path, path: str, sha256: str) -> None:
    """Writes the content of the address to `path` under the folder. Raises CommandError (exit 1) if its sha256 differs."""
    target = _inside(folder, path)
    sha256 = sha256.removeprefix("sha256:")
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    part = target.with_name(f"{target.name}.part")
    with part.open("wb") as out:
        for chunk in client.stream(address):
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != sha256:
        part.unlink()
        raise CommandError(
            f"{target.name} arrived as {digest.hexdigest()}, not {sha256}; it was thrown away.",
            exit_code=exits.FAILED,
            next_step="Repeat the command; if it fails again, run `sluicegate release verify`.",
        )
    part.replace(target)


def _inside(folder: Path, path: str) -> Path:
    """The file's place under the folder; a path that would leave it is refused: the server is not trusted."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\\" in path or any(part in {"..", "."} for part in parts):
        raise CommandError(f"The manifest names {path!r}, which leaves the folder.", exit_code=exits.FAILED)
    return folder.joinpath(*parts)
