"""What the files of a release say of themselves, as the seal remembered it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.core.formats import READER, kind_of
from registry.models import Inspection, Release


def headers_of(release: Release) -> dict[str, dict[str, Any]]:
    """path → {"kind", …facts}, in the order of the paths. Files whose header was never read are left out."""
    files = list(release.files.values_list("path", "blob_id"))
    known = {
        (sha256, kind): facts
        for sha256, kind, facts in Inspection.objects.filter(
            blob__in={sha256 for _, sha256 in files}, reader=READER
        ).values_list("blob_id", "kind", "facts")
    }
    wanted = {path: (sha256, kind_of(path)) for path, sha256 in files}
    return {path: {"kind": key[1], **known[key]} for path, key in wanted.items() if key in known}


def imports_of(release: Release) -> Mapping[str, list[str]]:
    """path → what loading the pickle in it would import, for whoever judges a waiver; nothing for a release without code."""
    if not release.is_code_bearing:
        return {}
    return {path: facts["imports"] for path, facts in headers_of(release).items() if facts.get("imports")}
