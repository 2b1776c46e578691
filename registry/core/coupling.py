"""What a candidate changes against stable, part by part: the fewer at once, the clearer what a fault comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from registry.core.kinds import runtime_of
from registry.core.lifecycle import FileRole

#: Part → what it is made of in a manifest's files; code travels with the artifact.
_FILES = {"artifact": {FileRole.ARTIFACT, FileRole.CODE}, "tokenizer": {FileRole.TOKENIZER}}


def changed_parts(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Which of `artifact`, `tokenizer`, `runtime image`, `driver needs` and `serving config` differ between two manifests."""
    found = [part for part, roles in _FILES.items() if _digests(before, roles) != _digests(after, roles)]
    if runtime_of(before) != runtime_of(after):
        found.append("runtime image")
    if _driver(before) != _driver(after):
        found.append("driver needs")
    if before.get("serving") != after.get("serving"):
        found.append("serving config")
    return tuple(found)


def warning(parts: Sequence[str], candidate: str, stable: str) -> str:
    """The warning for a candidate that changes several parts at once; empty for one or none."""
    if len(parts) < 2:
        return ""
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}"
    return (
        f"{candidate} changes {listed} at once against {stable}. If it fails, nobody can tell which of "
        "them it was; one release for each change would."
    )


def _digests(manifest: Mapping[str, Any], roles: set[FileRole]) -> set[tuple[str, str]]:
    return {(file["path"], file["sha256"]) for file in manifest.get("files", []) if file["role"] in roles}


def _driver(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the release asks of driver and CUDA; a part that is not declared asks nothing."""
    needs: Mapping[str, Any] = manifest.get("envelope", {}).get("driver", {})
    return needs
