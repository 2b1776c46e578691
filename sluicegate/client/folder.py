"""A release folder on disk: read, checked and hashed before anything is sent."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sluicegate.client.documents import read_yaml
from sluicegate.client.errors import refuse

CHUNK_BYTES = 1 << 20
DOCUMENT = "release.yaml"
#: The parts of a release folder that are sent.
PARTS = ("artifact", "tokenizer")
#: Sent too, where it is there: the server compares it with `serving`.
CONFIG = "config.pbtxt"


@dataclass(frozen=True)
class LocalFile:
    path: str  # relative, with forward slashes
    source: Path
    sha256: str  # 64 hex digits
    size_bytes: int

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "sha256": self.sha256, "size_bytes": self.size_bytes}


def read_document(folder: Path) -> dict[str, Any]:
    """release.yaml as a mapping. Raises Mistake naming the line of a mistake."""
    path = folder / DOCUMENT
    try:
        is_folder, is_there = folder.is_dir(), path.is_file() and not path.is_symlink()
    except OSError as error:
        raise _unreadable(path, error) from error
    if not is_folder:
        raise refuse(f"{folder} is not a folder.", "Name the release folder, which holds release.yaml and artifact/.")
    if not is_there:
        raise refuse(f"{folder} has no {DOCUMENT}.", "Write one; examples/sentiment/build.py makes examples.")
    return read_yaml(path)


def find_files(folder: Path) -> list[tuple[str, Path]]:
    """(path in the release, path on disk) of config.pbtxt and of every file under artifact/ and tokenizer/, by path.

    Loose files beside them, such as notes, are not sent. Raises Mistake for symbolic links (what they point at may
    change, and may lie outside), for special files, for names that are not UTF-8, for what cannot be read, for other
    folders (a misspelt tokenizer/ must not be left behind), and when there is nothing under artifact/.
    """
    try:
        found = [*_loose(folder), *(file for part in PARTS for file in _below(folder, part))]
    except OSError as error:
        raise _unreadable(Path(os.fsdecode(error.filename or folder)), error) from error
    if not any(path.startswith("artifact/") for path, _ in found):
        raise refuse(
            f"{folder} has no file under artifact/.", "Put what the server loads there, such as artifact/model.onnx."
        )
    return sorted(found)


def _loose(folder: Path) -> Iterator[tuple[str, Path]]:
    """config.pbtxt, if it is there. Raises Mistake for folders that would be left behind."""
    for entry in sorted(folder.iterdir()):
        if entry.name == CONFIG:
            yield _ordinary(folder, entry)
        elif entry.name in PARTS and not entry.is_symlink() and not entry.is_dir():
            raise refuse(f"{entry} is not a folder.", "Make it a folder, and put the files there.")
        elif entry.is_dir() and entry.name not in PARTS and not entry.name.startswith("."):
            raise refuse(
                f"{_shown(entry)} is neither artifact/ nor tokenizer/, and would not be sent.",
                "Move it under one of the two, or out of the release folder.",
            )


def _below(folder: Path, part: str) -> Iterator[tuple[str, Path]]:
    """Every file under artifact/ or tokenizer/. Raises Mistake, and OSError for a folder that cannot be read."""
    if (folder / part).is_symlink():
        raise _refuse_link(folder / part)
    if not (folder / part).exists():
        return

    def stop(error: OSError) -> None:
        raise error  # os.walk would go on without what is in there

    for root, folders, files in os.walk(folder / part, onerror=stop, followlinks=False):
        for name in folders:
            if Path(root, name).is_symlink():
                raise _refuse_link(Path(root, name))
        yield from (_ordinary(folder, Path(root, name)) for name in files)


def _ordinary(folder: Path, path: Path) -> tuple[str, Path]:
    """(path in the release, path on disk) of a file that holds bytes and has a name that can be sent."""
    kind = path.lstat().st_mode
    if stat.S_ISLNK(kind):
        raise _refuse_link(path)
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "a device, a socket or a pipe"
        raise refuse(
            f"{_shown(path)} is {what}, not an ordinary file.", "Remove it from the release folder, or make it a file."
        )
    name = path.relative_to(folder).as_posix()
    if _shown(name) != name:
        raise refuse(
            f"The name of {_shown(path)} is not UTF-8.", "Rename the file: the release states its name as text."
        )
    return name, path


def _shown(path: Path | str) -> str:
    """The path as text that can be printed: bytes that are not UTF-8 as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _unreadable(path: Path, error: OSError) -> Exception:
    return refuse(
        f"{_shown(path)} cannot be read: {error.strerror or error}.",
        "Let yourself read it (chmod), or take it out of the release folder; nothing is left out silently.",
    )


@contextmanager
def open_file(source: Path) -> Iterator[BinaryIO]:
    """The bytes of a file of the release. Raises Mistake naming one that cannot be read."""
    try:
        with source.open("rb") as stream:
            yield stream
    except OSError as error:
        raise _unreadable(source, error) from error


def _refuse_link(path: Path) -> Exception:
    return refuse(
        f"{_shown(path)} is a symbolic link; releases hold bytes, not pointers.", "Replace it with a copy of the file."
    )


def hash_files(found: list[tuple[str, Path]], progress: Callable[[int, int, str], None]) -> list[LocalFile]:
    """The files with their sha256 and sizes; `progress(done, total, path)` counts bytes."""
    total = sum(_size_bytes(source) for _, source in found)
    done, files = 0, []
    for path, source in found:
        digest, size = hashlib.sha256(), 0
        for chunk in chunks_of(source):
            digest.update(chunk)
            size += len(chunk)
            done += len(chunk)
            progress(done, total, "")
        files.append(LocalFile(path, source, digest.hexdigest(), size))
    return files


def _size_bytes(source: Path) -> int:
    with open_file(source) as stream:
        return os.fstat(stream.fileno()).st_size


def chunks_of(source: Path) -> Iterator[bytes]:
    with open_file(source) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
