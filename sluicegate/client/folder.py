"""A release folder on disk: read, checked and hashed before anything is sent."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from registry.core.folder_rules import DOCUMENT, PARTS, Arranged, Member, MemberKind, added_part, arrange, problem_of
from registry.core.located import Located
from registry.core.schema import Problem
from sluicegate.client.documents import read_yaml
from sluicegate.client.errors import refuse

CHUNK_BYTES = 1 << 20
#: Paths that are shown of what was left out.
SHOWN: Final = 5


@dataclass(frozen=True)
class LocalFile:
    path: str  # relative, with forward slashes
    source: Path
    sha256: str  # 64 hex digits
    size_bytes: int

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "sha256": self.sha256, "size_bytes": self.size_bytes}


@dataclass(frozen=True)
class ReleaseFolder:
    """A release folder as it lies on disk, before its files are read.

    `files`: (path in the release, path on disk) by path, without release.yaml. `document`: where release.yaml is, or None.
    `problems`: mistakes of the folder itself. `left_out`: files that are not sent.
    """

    root: Path
    files: tuple[tuple[str, Path], ...]
    document: Path | None = None
    problems: tuple[Located, ...] = ()
    left_out: tuple[str, ...] = ()

    def left_out_words(self) -> str:
        """`Left out: artifact/.DS_Store, notes.txt.`; empty if everything is sent."""
        if not self.left_out:
            return ""
        more = len(self.left_out) - SHOWN
        return f"Left out: {', '.join(self.left_out[:SHOWN])}{f' and {more} more' if more > 0 else ''}."


def read_document(folder: Path) -> dict[str, Any]:
    """release.yaml as a mapping. Raises Mistake naming the line of a mistake."""
    path = folder / DOCUMENT
    if not folder.is_dir():
        raise refuse(f"{folder} is not a folder.", "Name the release folder, which holds release.yaml and artifact/.")
    try:
        is_there = path.is_file() and not path.is_symlink()
    except OSError as error:
        raise _unreadable(path, error) from error
    if not is_there:
        raise refuse(f"{folder} has no {DOCUMENT}.", "Write one; examples/sentiment/build.py makes examples.")
    return read_yaml(path)


def read_folder(folder: Path) -> ReleaseFolder:
    """What of the folder is sent, with every mistake of it. Symbolic links are not followed, because their target may change.

    Raises Mistake for a path that is no folder, and for files that cannot be read.
    """
    try:
        if not folder.is_dir():
            raise refuse(
                f"{folder} is not a folder.", "Name the release folder, which holds release.yaml and artifact/."
            )
        members, odd = list[Member](), list[Located]()
        for member in _walk(folder, folder):
            if _shown(member.name) == member.name:
                members.append(member)
            elif member.name.split("/")[0] in PARTS and not added_part(member.name):
                fix = "Rename the file: the release states its name as text."
                odd.append(Located(_shown(member.name), Problem("path", "its name is not UTF-8.", fix)))
    except OSError as error:
        raise _unreadable(Path(os.fsdecode(error.filename or folder)), error) from error
    return arranged_folder(folder, arrange(members, has_top=False), odd)


def arranged_folder(root: Path, arranged: Arranged, more: Iterable[Located] = ()) -> ReleaseFolder:
    """The release folder at `root`, after its members were judged."""
    files = tuple((path, root.joinpath(*path.split("/"))) for path in sorted(arranged.files) if path != DOCUMENT)
    document = root / DOCUMENT if arranged.has_document else None
    missing = (
        ()
        if document or any(one.file == DOCUMENT for one in arranged.problems)
        else (problem_of(DOCUMENT, "no_document"),)
    )
    return ReleaseFolder(root, files, document, (*missing, *arranged.problems, *more), arranged.left_out)


def _walk(root: Path, folder: Path) -> Iterator[Member]:
    """Everything below the folder but what lies in a folder that is left out, by name. Raises OSError."""
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        name = Path(entry.path).relative_to(root).as_posix()
        status = entry.stat(follow_symlinks=False)
        kind = _kind(status.st_mode)
        yield Member(name, kind, status.st_size)
        is_sent = name.split("/")[0] in PARTS and not added_part(name) and _shown(name) == name
        if kind is MemberKind.FOLDER and is_sent:
            yield from _walk(root, Path(entry.path))


def _kind(mode: int) -> MemberKind:
    if stat.S_ISREG(mode):
        return MemberKind.FILE
    if stat.S_ISDIR(mode):
        return MemberKind.FOLDER
    return MemberKind.LINK if stat.S_ISLNK(mode) else MemberKind.OTHER


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
    """The bytes of a file of the release. Raises Mistake with the name of an unreadable file."""
    try:
        with source.open("rb") as stream:
            yield stream
    except OSError as error:
        raise _unreadable(source, error) from error


def hash_files(found: Sequence[tuple[str, Path]], progress: Callable[[int, int, str], None]) -> list[LocalFile]:
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
