"""The manifest: a release as canonical JSON, whose sha256 is the release's identity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ledger.core.canonical import canonical_bytes, sha256_of
from registry.core.lifecycle import FileRole
from registry.core.spec import Spec

#: Manifests of v1 name the backend `sluicegate-onnx` `onnxruntime` (`registry.core.kinds.backend_of`).
SCHEMA = "sluicegate/manifest/v2"


@dataclass(frozen=True)
class File:
    """One file of a release: `path` as in the release folder, `sha256` as 64 hex digits."""

    path: str
    role: FileRole
    sha256: str
    size_bytes: int


def build(spec: Spec, files: Iterable[File]) -> dict[str, Any]:
    """The manifest. The order in which files are given does not matter."""
    listed = [
        {"path": file.path, "role": file.role.value, "sha256": file.sha256, "size_bytes": file.size_bytes}
        for file in sorted(files, key=lambda file: file.path)
    ]
    return {
        "schema": SCHEMA,
        "model": spec.model,
        "files": listed,
        "runtime": spec.runtime,
        "serving": spec.serving,
        "envelope": spec.envelope,
        "provenance": spec.provenance,
    }


def text_and_digest(spec: Spec, files: Iterable[File]) -> tuple[str, str]:
    """(canonical text, digest): the digest is `sha256:<64 hex>` of the text's UTF-8."""
    data = canonical_bytes(build(spec, files))
    return data.decode("utf-8"), sha256_of(data)
