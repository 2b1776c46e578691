"""A release as a model repository of Triton: where each file goes, and the config.pbtxt beside it.

    <model>/config.pbtxt              generated from the manifest's `serving`
    <model>/<version>/…               what lay under artifact/
    <model>/<version>/tokenizer/…     what lay under tokenizer/

For a stock tritonserver with the release's own backend. The version directory is the release's number, so that the trees of two
releases can be put into one repository. Source: Triton's model repository layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.core.file_rules import CONFIG_FILES
from registry.core.kinds import backend_of, kind_of
from registry.core.pbtxt import render

#: Backends of this product, and the stock server's own that loads the same files.
_STOCK: Final = {"sluicegate-onnx": "onnxruntime"}


def tree_of(manifest: Mapping[str, Any], number: int) -> tuple[dict[str, str], dict[str, str]]:
    """({path in the repository: path in the release}, {path in the repository: text}).

    Raises ValueError where two files of the release would be one file there, and for a release on another server kind.
    """
    if not (kind := kind_of(manifest)).has_config:
        raise ValueError(f"it runs on {kind.name}, which has no model repository. Run `sluicegate release fetch`")
    model, version = manifest["model"], str(number)
    placed: dict[str, str] = {}
    for file in manifest["files"]:
        path = file["path"]
        if path in CONFIG_FILES:
            continue  # it says what is generated; it was compared when it came in
        inside = path.removeprefix("artifact/")
        target = f"{model}/{version}/{inside}"
        if target in placed:
            raise ValueError(f"{path} and {placed[target]} would be the same file; rename one and push again")
        placed[target] = path
    backend = backend_of(manifest)
    config = render(manifest["serving"], model, backend=_STOCK.get(backend, backend))
    return placed, {f"{model}/config.pbtxt": config}
