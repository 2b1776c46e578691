"""Two releases of what may be two models, compared: manifests, headers that were read before, tokenizers.

Headers are those remembered at the seal; where one is missing it is read now, by ranges of the stored bytes. Only
tokenizers that differ are read whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from accounts.core.errors import DomainError
from registry.core.diff import Diff, compare, differing
from registry.core.formats import READER, inspect, kind_of
from registry.core.formats.tokenizers import LONGEST, Tokenizer, is_tokenizer_path, read
from registry.core.tokenizer import difference
from registry.models import Inspection, Release
from registry.queries import manifest_of
from registry.storage import store

#: Headers that were never remembered and are read for one answer; a release sealed by this version needs none.
MOST_READ = 200


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
    paths = [path for path in only_old if path in only_new and is_tokenizer_path(path)]
    return Compared(told, {path: _tokenizers(path, only_old[path], only_new[path]) for path in paths})


def _of(files: Mapping[str, Any], facts: Mapping[tuple[str, str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """path → facts with their kind, of those files that are known."""
    keys = {path: (file["sha256"], kind_of(path)) for path, file in files.items()}
    return {path: {"kind": key[1], **facts[key]} for path, key in keys.items() if key in facts}


def _facts(files: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """(sha256, kind) → facts."""
    wanted = {(file["sha256"], kind_of(file["path"])): file for file in files}
    known = {
        (sha256, kind): facts
        for sha256, kind, facts in _rows()
        .filter(blob__in={sha256 for sha256, _ in wanted})
        .values_list("blob_id", "kind", "facts")
    }
    for key in [key for key in wanted if key not in known][:MOST_READ]:
        file = wanted[key]
        try:
            with store().open(file["sha256"]) as content:
                found = inspect(file["path"], content, file["size_bytes"])
        except (
            DomainError,
            OSError,
        ):  # the bytes were collected or cannot be had now: the diff says that they are unread
            continue
        if not found.problems:  # a file that was sealed before files were inspected may have some
            known[key] = found.facts
    return known


def _rows() -> QuerySet[Inspection]:
    return Inspection.objects.filter(reader=READER)


def _tokenizers(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    before, after = (_tokenizer(path, file) for file in (old, new))
    for which, found in (("older", before), ("newer", after)):
        if isinstance(found, str):
            return {"unknown": f"The {which} {path} {found}."}
    assert isinstance(before, Tokenizer) and isinstance(after, Tokenizer)
    return difference(before, after)


def _tokenizer(path: str, file: Mapping[str, Any]) -> Tokenizer | str:
    """The tokenizer, or half a sentence that says why not."""
    if file["size_bytes"] > LONGEST:
        return f"has {file['size_bytes']} bytes, more than are read"
    try:
        with store().open(file["sha256"]) as content:
            data = content.read()
    except (DomainError, OSError):
        return "is not in the store any more"
    return read(path, data) or "holds no vocabulary"
