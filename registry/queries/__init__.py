"""Named reads of models, releases and their files."""

from __future__ import annotations

from registry.queries.releases import (
    LARGE,
    get_file,
    get_release,
    has_code_waiver,
    manifest_of,
    missing_files,
    newest_releases,
    place_of,
    received_parts,
    releases_of,
    signature_of,
    unverified_uploads,
    visible_model,
    visible_models,
    visible_release,
    visible_release_by_id,
    visible_upload,
    waivers_missing,
    waivers_needed,
)

__all__ = [
    "LARGE",
    "get_file",
    "get_release",
    "has_code_waiver",
    "manifest_of",
    "missing_files",
    "newest_releases",
    "place_of",
    "received_parts",
    "releases_of",
    "signature_of",
    "unverified_uploads",
    "visible_model",
    "visible_models",
    "visible_release",
    "visible_release_by_id",
    "visible_upload",
    "waivers_missing",
    "waivers_needed",
]
