"""Prints the table of README.md: what the golden gate will see, without any server.

    .venv-serving/bin/python examples/sentiment/measure.py [.build/sentiment]

Answers each golden sentence alone (batch 1) with r1, r2 and r3 and compares with r1. Under a minute on one core.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from offline import OfflineModel

HERE = Path(__file__).resolve().parent


def measure(release: Path, items: list[dict[str, Any]]) -> tuple[Any, float]:
    """(labels, milliseconds per sentence)."""
    model = OfflineModel(release / "artifact" / "model.onnx", release / "tokenizer" / "tokenizer.json")
    texts = [item["inputs"]["text"] for item in items]
    model.run(texts[:10])
    started = time.perf_counter()
    labels = model.run(texts).argmax(axis=1)
    return labels, (time.perf_counter() - started) / len(texts) * 1e3


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / ".build" / "sentiment"
    items = [json.loads(line) for line in (HERE / "golden.jsonl").read_text(encoding="utf-8").splitlines()]
    truth = np.array([item["label"] for item in items])
    slices = np.array([item["slice"] for item in items])
    names = sorted(set(slices))
    print(f"| release | accuracy | agreement with r1 | {' | '.join(names)} | ms each |")
    print("|---|---|---|" + "---|" * (len(names) + 1))
    reference = None
    for release in ("r1", "r2", "r3"):
        labels, each_ms = measure(folder / release, items)
        reference = labels if reference is None else reference
        right = labels == truth
        cells = [f"{right[slices == name].mean():.3f}" for name in names]
        agreement = (labels == reference).mean()
        print(f"| {release} | {right.mean():.4f} | {agreement:.4f} | {' | '.join(cells)} | {each_ms:.1f} |")


if __name__ == "__main__":
    main()
