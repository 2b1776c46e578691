"""The proof's releases as manifests, in the form that this run asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledger.core.canonical import digest_of
from serving.ports import LaunchSpec

RELEASES = Path(__file__).parent / "releases"
ITEM = 64  # numbers of one item of the dense release
#: Sizes by form and kind: a request costs some milliseconds in each.
_DENSE = {
    ("numpy", "cpu"): {"size": "256", "turns": "4"},
    ("torch", "cpu"): {"size": "256", "turns": "4"},
    ("torch", "gpu"): {"size": "2048", "turns": "8"},
}
_STREAM = {
    ("numpy", "cpu"): {"width": "256", "layers": "8", "slots": "16", "longest": "512"},
    ("torch", "cpu"): {"width": "192", "layers": "2", "slots": "16", "longest": "1024"},
    ("torch", "gpu"): {"width": "768", "layers": "8", "slots": "16", "longest": "9216"},
}
#: MiB that the envelope declares; the torch forms hold a CUDA context, and libraries in host memory.
_MEMORY = {"numpy": {"host": 512, "gpu": 0}, "torch": {"host": 6144, "gpu": 8192}}


@dataclass
class Blobs:
    """Implements `serving.targets.agent.blob_cache.BlobReader` in memory."""

    data: dict[str, bytes] = field(default_factory=dict)

    def put(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        self.data[sha256] = data
        return sha256

    def reader_of(self, sha256: str) -> Callable[[int, int], bytes]:
        data = self.data[sha256]
        return lambda start, length: data[start : start + length]


@dataclass(frozen=True)
class Maker:
    """Makes manifests. `form` is numpy or torch, `kind` cpu or gpu, `image` the runtime's name."""

    form: str
    kind: str
    image: str
    blobs: Blobs

    def dense(self, model: str = "dense", *, output: str = "FP32", **parameters: Any) -> dict[str, Any]:
        """y = 2x; `output` is the data type that the release declares for y."""
        serving = {
            **self._serving({**_DENSE[self.form, self.kind], **parameters}),
            "max_batch_size": 8,
            "inputs": [{"name": "x", "data_type": "FP32", "dims": [ITEM]}],
            "outputs": [{"name": "y", "data_type": output, "dims": [ITEM]}],
            "dynamic_batching": {"preferred_batch_size": [], "max_queue_delay_us": 500},
        }
        return self._manifest(model, "dense.py", serving)

    def stream(self, model: str = "stream", *, tokens: int, **parameters: Any) -> dict[str, Any]:
        """A text in, `tokens` pieces out, each in a message of its own."""
        text = {"name": "text", "data_type": "BYTES", "dims": [1]}
        serving = {
            **self._serving({**_STREAM[self.form, self.kind], "tokens": tokens, **parameters}),
            "max_batch_size": 8,
            "inputs": [text],
            "outputs": [{**text, "name": "y"}],
            "dynamic_batching": None,
            "decoupled": True,
        }
        return self._manifest(model, "stream.py", serving)

    def _serving(self, parameters: dict[str, Any]) -> dict[str, Any]:
        whole = {"form": self.form, **parameters}
        return {
            "instance_group": [{"kind": self.kind, "count": 1}],
            "queue_policy": None,
            "warmup": [],
            "parameters": {name: str(value) for name, value in whole.items()},
        }

    def _manifest(self, model: str, source: str, serving: dict[str, Any]) -> dict[str, Any]:
        data, memory = (RELEASES / source).read_bytes(), _MEMORY[self.form]
        envelope: dict[str, Any] = {"host": {"memory_mib_min": memory["host"]}}
        if self.kind == "gpu":
            accelerator = {"vendor": "nvidia", "count": 1, "memory_mib_peak_declared": memory["gpu"]}
            envelope["accelerator"] = accelerator
        file = {
            "path": "artifact/model.py",
            "role": "artifact",
            "sha256": self.blobs.put(data),
            "size_bytes": len(data),
        }
        return {
            "schema": "sluicegate/manifest/v2",
            "model": model,
            "files": [file],
            "runtime": {"image": self.image, "server": "triton", "backend": "python"},
            "serving": serving,
            "envelope": envelope,
            "provenance": {},
        }


def launch_spec(manifest: dict[str, Any], folder: Path) -> LaunchSpec:
    return LaunchSpec(1, manifest["model"], "r1", digest_of(manifest), manifest, folder)
