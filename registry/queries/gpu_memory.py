"""The estimate of a release's GPU memory, by the headers that were read at the seal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.core.gpu_memory import MemoryEstimate, asks_for_gpu, estimate
from registry.core.kinds import backend_of
from registry.models import Release
from registry.queries.file_headers import headers_of_files
from registry.queries.releases import manifest_of


def gpu_memory_estimate(release: Release) -> MemoryEstimate | None:
    """Of a sealed release; None if it asks for no GPU. Reads no file; one query if the release asks for a GPU."""
    manifest = manifest_of(release)
    if not asks_for_gpu(backend_of(manifest), manifest["serving"], manifest["envelope"]):
        return None
    return estimate_in(manifest, headers_of_files(manifest["files"]))


def estimate_in(manifest: Mapping[str, Any], headers: Mapping[str, Mapping[str, Any]]) -> MemoryEstimate | None:
    """The same of a release's manifest and of its headers, as `headers_of_files` returns them."""
    files = {file["path"]: (file["size_bytes"], headers.get(file["path"], {})) for file in manifest["files"]}
    return estimate(backend_of(manifest), manifest["serving"], manifest["envelope"], files)
