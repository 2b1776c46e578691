"""What the files of a release say of themselves: read by ranges of the stored bytes, and remembered at the seal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from ledger.adapters.apart import SMALL_BYTES, Apart, Through
from ledger.core.errors import Invalid
from registry.core.formats import Findings, inspect, kind_of, reader_of
from registry.core.schema import Problem
from registry.models import Inspection, Release
from registry.storage import BlobStore

#: Kinds of which the first bytes alone are read.
_READ_HERE: Final = frozenset({"raw", "text"})


class RangedReader:
    """A stored file of which only what is asked for moves: one ranged read of the store for each `read`."""

    def __init__(self, keys: BlobStore, key: str) -> None:
        self._keys, self._key, self._at = keys, key, 0

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return offset

    def read(self, size: int, /) -> bytes:
        """Raises NotFound for bytes that are not in the store."""
        data = self._keys.read_range(self._key, self._at, size)
        self._at += len(data)
        return data


def read_header(apart: Apart, path: str, keys: BlobStore, key: str, size_bytes: int) -> Findings:
    """Findings of `inspect` in a stored file. A large file is read in a child process.

    Raises NotFound for bytes that are not in the store, and Unavailable while other large files are read.
    """
    reader = RangedReader(keys, key)
    if size_bytes <= SMALL_BYTES or kind_of(path) in _READ_HERE:
        return inspect(path, reader, size_bytes)
    try:
        found: Findings = apart.call(inspect, path, Through(reader), size_bytes)
    except Invalid as error:
        return Findings(kind_of(path), (Problem(path, "its header cannot be read.", error.message),))
    return found


def remembered_facts(sha256s: Collection[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """(sha256, kind) → what was read in the headers of these blobs, by this version's reader. Unread ones are left out."""
    rows = Inspection.objects.filter(blob__in=sha256s).values_list("blob_id", "kind", "reader", "facts")
    return {(sha256, kind): facts for sha256, kind, reader, facts in rows if reader == reader_of(kind)}


def headers_of(release: Release) -> dict[str, dict[str, Any]]:
    """path → {"kind", …facts}, in the order of the paths. Files whose header was never read are left out."""
    files = release.files.values_list("path", "blob_id")
    return headers_of_files([{"path": path, "sha256": sha256} for path, sha256 in files])


def headers_of_files(files: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same of files as a manifest lists them. One query."""
    known = remembered_facts({file["sha256"] for file in files})
    wanted = {file["path"]: (file["sha256"], kind_of(file["path"])) for file in files}
    return {path: {"kind": key[1], **known[key]} for path, key in wanted.items() if key in known}


def imports_of(release: Release) -> Mapping[str, list[str]]:
    """path → what loading the pickle in it would import, for the decision on a waiver; nothing for a release without code."""
    return _facts_named(release, "imports") if release.is_code_bearing else {}


def _facts_named(release: Release, name: str) -> dict[str, list[str]]:
    """path → this fact of each file that has it; the other facts, of which there may be many, are not read."""
    files = dict(release.files.values_list("path", "blob_id"))
    rows = Inspection.objects.filter(blob__in=files.values(), facts__has_key=name)
    known = {
        (sha256, kind): fact
        for sha256, kind, reader, fact in rows.values_list("blob_id", "kind", "reader", f"facts__{name}")
        if reader == reader_of(kind)
    }
    found = {path: known.get((sha256, kind_of(path))) for path, sha256 in files.items()}
    return {path: fact for path, fact in found.items() if fact}


def hidden_of(release: Release) -> Mapping[str, list[str]]:
    """path → what a reviewer of the source in it does not see, for the decision on a waiver (`registry.core.formats.source`)."""
    if not release.is_code_bearing:
        return {}
    rows = release.files.values_list("path", "blob_id")
    files = [{"path": path, "sha256": sha256} for path, sha256 in rows if kind_of(path) == "python"]
    return hidden_in(files, headers_of_files(files))


def hidden_in(files: Sequence[Mapping[str, Any]], read: Mapping[str, Mapping[str, Any]]) -> Mapping[str, list[str]]:
    """The same of files as a manifest lists them, and of what `headers_of_files` told of them."""
    source = [file["path"] for file in files if kind_of(file["path"]) == "python"]
    unread = {
        path: ["not looked for: the release was sealed before that was done"] for path in source if path not in read
    }
    return unread | {path: facts["hidden"] for path, facts in read.items() if facts.get("hidden")}
