"""What a candidate changes against stable, part by part: the fewer at once, the clearer what a fault comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.core.lifecycle import FileRole

#: Part → what it is made of in a manifest's files; code travels with the artifact.
_FILES = {"artifact": {FileRole.ARTIFACT, FileRole.CODE}, "tokenizer": {FileRole.TOKENIZER}}


def changed_parts(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Which of `artifact`, `tokenizer`, `runtime image` and `serving config` differ between two manifests."""
    found = [part for part, roles in _FILES.items() if _digests(before, roles) != _digests(after, roles)]
    if before.get("runtime") != after.get("runtime"):
        found.append("runtime image")
    if before.get("serving") != after.get("serving"):
        found.append("serving config")
    return tuple(found)


def _digests(manifest: Mapping[str, Any], roles: set[FileRole]) -> set[tuple[str, str]]:
    return {(file["path"], file["sha256"]) for file in manifest.get("files", []) if file["role"] in roles}
