"""Writes the model repository of one release, from bytes that were checked while they were written.

Triton's:

<repository>/<model>/config.pbtxt           generated from the manifest's `serving`, checked before the server sees it
<repository>/<model>/1/…                    what lay under artifact/ (model.onnx, model.py, …)
<repository>/<model>/1/tokenizer/…          what lay under tokenizer/
<repository>/<model>/1/sluicegate.json      the manifest's `serving`, for the runner and for code that wants it
<repository>/<model>/1/model.py             with `backend: sluicegate-onnx`: this runtime's runner

Other server kinds have the same tree without the files that they do not read (`registry.core.kinds`).
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from ledger.core.canonical import digest_of
from registry.core import pbtxt
from registry.core.file_rules import CONFIG_FILES
from registry.core.kinds import backend_of, kind_of
from registry.core.kinds.kind import ServerKind
from registry.core.kinds.triton import TRITON
from serving.ports import LaunchError, LaunchSpec
from serving.targets.agent.blob_cache import DamagedBlob
from serving.targets.agent.runtime_image import RUNNER

#: The manifest's `serving`, for the runner and for code that wants it.
SETTINGS = "sluicegate.json"
#: Backends of a release → backends of the server, of servers that somebody else runs too.
SERVER_BACKENDS = {name: one.runs_as for name, one in TRITON.runnable.items()}


class Blobs(Protocol):
    """Puts bytes where they are wanted, by their sha256 (64 hex digits), and never others. See `blob_cache.BlobCache`."""

    def place(self, sha256: str, size_bytes: int, target: Path) -> None: ...

    def sweep(self) -> None: ...


def write(spec: LaunchSpec, blobs: Blobs, repository: Path) -> None:
    """The release's whole tree. Raises LaunchError: digest_mismatch, fetch_failed, bad_config; the tree is then useless."""
    if digest_of(spec.manifest) != spec.digest:
        raise LaunchError(
            "digest_mismatch",
            f"The manifest of {spec.model} {spec.release_name} is not the one that {spec.digest} names; push the release again.",
        )
    backend, runnable = backend_of(spec.manifest), kind_of(spec.manifest).runnable
    if backend not in runnable:
        raise LaunchError(
            "runtime_mismatch", f"This node cannot run the backend {backend!r}; it runs {', '.join(runnable)}."
        )
    manifest = spec.manifest if spec.serving is None else {**spec.manifest, "serving": spec.serving}
    for path, content in tree(manifest, spec.model).items():
        target = repository / spec.model / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            _fetch(blobs, content, target)


def tree(manifest: dict[str, Any], model: str) -> dict[PurePosixPath, dict[str, Any] | bytes]:
    """All files of the model's folder: what was sealed as its entry in the manifest, what is generated as its bytes.

    Raises LaunchError("bad_config").
    """
    kind, name = kind_of(manifest), backend_of(manifest)
    backend, folder, writes = kind.backends[name], PurePosixPath(kind.loads), kind.writes.get(name, ())
    files: dict[PurePosixPath, dict[str, Any] | bytes] = {
        folder / path: file for path, file in placed(manifest["files"], name, kind).items()
    }
    if backend.runner:
        files[folder / "model.py"] = (RUNNER / backend.runner).read_bytes()
    if SETTINGS in writes:
        files[folder / SETTINGS] = json.dumps(manifest["serving"]).encode()
    if kind.has_config:
        files[PurePosixPath("config.pbtxt")] = config(manifest["serving"], model, name).encode()
    return files


def config(serving: dict[str, Any], model: str, backend: str) -> str:
    """config.pbtxt, parsed by the protobuf that the server uses: a server names no line when it refuses one. Raises LaunchError."""
    try:
        parsed = text_format.Parse(pbtxt.render(serving, model), model_config_pb2.ModelConfig())
    except (text_format.ParseError, ValueError, KeyError) as error:
        raise LaunchError(
            "bad_config",
            f"The serving configuration of {model} has no valid config.pbtxt: {error}. Correct `serving` in release.yaml and push again.",
        ) from error
    parsed.name, parsed.backend = model, SERVER_BACKENDS[backend]
    parsed.ClearField("platform")
    parsed.ClearField("default_model_filename")
    batching = parsed.dynamic_batching
    if parsed.max_batch_size < 0 or any(size > parsed.max_batch_size for size in batching.preferred_batch_size):
        raise LaunchError(
            "bad_config",
            f"max_batch_size {parsed.max_batch_size} does not allow the preferred batch sizes {list(batching.preferred_batch_size)}.",
        )
    return str(text_format.MessageToString(parsed))


def placed(files: list[dict[str, Any]], name: str, kind: ServerKind = TRITON) -> dict[PurePosixPath, dict[str, Any]]:
    """Returns the files of a manifest by their places in the folder that is loaded. Raises LaunchError("bad_config").

    Args:
        name: the release's backend.
    """
    backend, writes = kind.backends[name], kind.writes.get(name, ())
    places: dict[PurePosixPath, dict[str, Any]] = {}
    for file in files:
        if (
            file["path"] in CONFIG_FILES
        ):  # it agrees with the manifest's `serving`, from which the server's own is written
            continue
        path = PurePosixPath(file["path"])
        if path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
            raise LaunchError(
                "bad_config", f"{file['path']!r} is no path inside a release folder; push the release again."
            )
        target = PurePosixPath(*path.parts[1:]) if path.parts[0] == "artifact" else path
        if target in places:
            raise LaunchError(
                "bad_config",
                f"{file['path']} and {places[target]['path']} would be the same file in the server; rename one.",
            )
        if str(target) in writes:
            raise LaunchError(
                "bad_config",
                f"{file['path']} has the name of a file that this runtime writes itself; "
                "rename it, or use `backend: python` for your own model.py.",
            )
        places[target] = file
    if PurePosixPath(backend.entry).relative_to("artifact") not in places:
        raise LaunchError("bad_config", f"`backend: {name}` needs {backend.entry}, and the release has none.")
    return places


def _fetch(blobs: Blobs, file: dict[str, Any], target: Path) -> None:
    wanted = file["sha256"].removeprefix("sha256:")
    try:
        blobs.place(wanted, file["size_bytes"], target)
    except DamagedBlob as error:
        raise LaunchError(
            "digest_mismatch",
            f"{file['path']} has the sha256 {error.actual}, not {wanted} as sealed; the stored bytes are damaged. "
            "Restore the blob or push again.",
        ) from error
    except Exception as error:  # a store is an outside system: whatever it raises, the file could not be had
        raise LaunchError(
            "fetch_failed", f"{file['path']} could not be fetched: {error}. Check the blob store, then try again."
        ) from error
