"""The real sentence encoder of examples/sentiment as releases: as it is, and spoilt in the ways in which such a release goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from registry.core.spec import parse_spec
from serving.targets.agent import runtime_image
from tests.contracts import serving_models as made
from tests.support.worlds.candidate_models import Make
from validators.core.golden_set import GoldenItem, parse_golden_set

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "sentiment"
GRAPH = "artifact/model.onnx"


@cache
def built() -> Path:
    """The folder with r1 … r5, built for this machine's runtime. The first time fetches 83 MB of weights, and takes ten seconds."""
    out = ROOT / ".build" / "sentiment"
    image = runtime_image.describe(made.VENV)["image"]
    argv = [sys.executable, str(EXAMPLE / "build.py"), "--runtime", image, "--out", str(out)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def sentiment(name: str, *, spoilt: str = "") -> Make:
    """The release of examples/sentiment, or that with another graph: `per tensor` or `without tweets`."""

    def make(blobs: made.MemoryBlobs) -> dict[str, Any]:
        folder = built() / name
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for part in ("artifact", "tokenizer")
            for path in (folder / part).iterdir()
        }
        if spoilt:
            files[GRAPH] = _SPOILT[spoilt](folder / GRAPH)
        spec = parse_spec(yaml.safe_load((folder / "release.yaml").read_text()))
        return made.manifest(blobs, "sentiment", files, dict(spec.serving))

    return make


def golden() -> Sequence[GoldenItem]:
    return parse_golden_set((EXAMPLE / "golden.jsonl").read_bytes())


def gate_policy() -> dict[str, Any]:
    """The example's own, for what it answers; how fast this machine answers is not asked."""
    policy = yaml.safe_load((EXAMPLE / "model.yaml").read_text())["gate_policy"]
    return {"gates": ["contract", "cold_start", "golden"], **{name: policy[name] for name in ("cold_start", "golden")}}


def _per_tensor(graph: Path) -> bytes:
    """One scale for a whole weight matrix, which is what quantising does where nobody asks for more."""
    from onnxruntime.quantization import quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        quantize_dynamic(graph, Path(folder) / "int8.onnx")
        return (Path(folder) / "int8.onnx").read_bytes()


def _without_tweets(graph: Path) -> bytes:
    """The head that was trained on data without one of the four sources."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    model, head = onnx.load(graph), json.loads((EXAMPLE / "head-without-tweets.json").read_text())
    own = {"head.w": head["weight"], "head.b": head["bias"]}
    for weights in model.graph.initializer:
        if weights.name in own:
            weights.CopyFrom(numpy_helper.from_array(np.array(own.pop(weights.name), np.float32), weights.name))
    assert not own
    return bytes(model.SerializeToString())


_SPOILT = {"per tensor": _per_tensor, "without tweets": _without_tweets}
