"""Two releases of what may be two models, compared: manifests, headers that were read before, tokenizers.

Headers are those remembered at the seal; where one is missing it is read now, by ranges of the stored bytes. Only
tokenizers and short JSON files that differ are read whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from django.core.cache import cache

from ledger.adapters.apart import Apart
from ledger.core.errors import DomainError
from registry.core.diff import MOST_CHANGES, Change, Diff, compare, differing, fields, showable
from registry.core.formats import jsons, kind_of
from registry.core.formats.findings import Malformed
from registry.core.formats.tokenizers import LONGEST, Tokenizer, is_tokenizer_path, read
from registry.core.tokenizer import difference
from registry.models import Blob, Release
from registry.queries.file_headers import RangedReader, read_header, remembered_facts
from registry.queries.releases import manifest_of
from registry.storage import store

#: Headers that were never remembered and are read for one answer; a release sealed by this version needs none.
MOST_READ = 200
#: JSON files that are compared member by member: how many of one answer, and how long each may be.
MOST_DOCUMENTS, LONGEST_DOCUMENT = 50, 256 << 10
_READ_WHOLE = (".json", ".txt", ".model")


@dataclass(frozen=True)
class Compared:
    """`tokenizers`: path → what differs, or why it cannot be told."""

    diff: Diff
    tokenizers: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {**self.diff.as_json(), "tokenizers": dict(self.tokenizers)}


def compare_releases(old: Release, new: Release) -> Compared:
    """What the second release changes against the first. Raises StateChanged for a draft."""
    before, after = manifest_of(old), manifest_of(new)
    only_old, only_new = differing(before, after)
    facts = _facts([*only_old.values(), *only_new.values()])
    told = compare(
        before,
        after,
        names=(old.name, new.name),
        old_facts=_of(only_old, facts),
        new_facts=_of(only_new, facts),
    )
    both = {path: (only_old[path], only_new[path]) for path in only_old if path in only_new}
    stored = _Stored(file for path, pair in both.items() if path.endswith(_READ_WHOLE) for file in pair)
    tokenizers = {path: _tokenizers(stored, path, *pair) for path, pair in both.items() if is_tokenizer_path(path)}
    room = MOST_CHANGES - len(told.changes)
    inside = [change for path, pair in _documents(both, tokenizers).items() for change in _inside(stored, path, *pair)]
    found = replace(told, changes=(*told.changes, *inside[:room]), left_off=told.left_off + max(0, len(inside) - room))
    return Compared(found, tokenizers)


def _documents(both: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON files that changed and are short, without those that are told as tokenizers."""
    told = {path for path, found in tokenizers.items() if "unknown" not in found}
    short = {
        path: pair
        for path, pair in both.items()
        if path.endswith(".json") and path not in told and all(one["size_bytes"] <= LONGEST_DOCUMENT for one in pair)
    }
    return dict(sorted(short.items())[:MOST_DOCUMENTS])


def _inside(stored: _Stored, path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What differs between two JSON files, by member; nothing where one of them cannot be read."""
    try:
        before, after = (jsons.parse(stored.read(file), path) for file in (old, new))
        found = list(fields("contents", before, after, path))
        return [
            replace(change, field=showable(change.field), old=_short(change.old), new=_short(change.new))
            for change in found
        ]
    except (DomainError, OSError, Malformed, RecursionError):
        return []


def _short(value: Any) -> Any:
    """A value fit for an answer: long ones are told by their beginning."""
    value = showable(value)
    text = json.dumps(value, ensure_ascii=True)
    return value if len(text) <= 500 else f"{text[:500]}…"


class _Stored:
    """The bytes of a handful of files, whose places are asked of the database at once."""

    def __init__(self, files: Iterable[Mapping[str, Any]]) -> None:
        named = Blob.objects.filter(pk__in={file["sha256"] for file in files})
        self.keys, self.places = store().keys, dict(named.values_list("sha256", "store_key"))

    def key_of(self, file: Mapping[str, Any]) -> str:
        return self.places.get(file["sha256"], str(file["sha256"]))

    def read(self, file: Mapping[str, Any]) -> bytes:
        """Raises NotFound."""
        return RangedReader(self.keys, self.key_of(file)).read(file["size_bytes"])


def _of(files: Mapping[str, Any], facts: Mapping[tuple[str, str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """path → facts with their kind, of those files that are known."""
    keys = {path: (file["sha256"], kind_of(path)) for path, file in files.items()}
    return {path: {"kind": key[1], **facts[key]} for path, key in keys.items() if key in facts}


def _facts(files: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """(sha256, kind) → facts."""
    wanted = {(file["sha256"], kind_of(file["path"])): file for file in files}
    known = remembered_facts({sha256 for sha256, _ in wanted})
    missing = [key for key in wanted if key not in known][:MOST_READ]
    stored = _Stored(wanted[key] for key in missing)
    with Apart() as apart:
        for key in missing:
            file = wanted[key]
            try:
                found = read_header(apart, file["path"], stored.keys, stored.key_of(file), file["size_bytes"])
            except (DomainError, OSError):  # collected, or not to be had now: the diff says that they are unread
                continue
            if not found.problems:  # a file that was sealed before files were inspected may have some
                known[key] = found.facts
    return known


def _tokenizers(stored: _Stored, path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What differs. Cached in memory: large ones take seconds to compare, and their bytes never change."""
    key = f"tokenizers:{old['sha256']}:{new['sha256']}:{PurePosixPath(path).suffix}"
    if (told := cache.get(key)) is None:
        told = _tokenizers_read(stored, path, old, new)
        if "unknown" not in told:
            cache.set(key, told, timeout=None)
    return dict(told)


def _tokenizers_read(stored: _Stored, path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    before, after = (_tokenizer(stored, path, file) for file in (old, new))
    for which, found in (("older", before), ("newer", after)):
        if isinstance(found, str):
            return {"unknown": f"The {which} {path} {found}."}
    assert isinstance(before, Tokenizer) and isinstance(after, Tokenizer)
    try:
        told: dict[str, Any] = showable(difference(before, after))
    except RecursionError:
        return {"unknown": f"{path} is nested too deep to be compared."}
    return told


def _tokenizer(stored: _Stored, path: str, file: Mapping[str, Any]) -> Tokenizer | str:
    """The tokenizer, or half a sentence that says why not."""
    if file["size_bytes"] > LONGEST:
        return f"has {file['size_bytes']} bytes, more than are read"
    try:
        data = stored.read(file)
    except (DomainError, OSError):
        return "is not in the store any more"
    return read(path, data) or "holds no vocabulary"
