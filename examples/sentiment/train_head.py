"""Makes head.json (and head-without-tweets.json, the release with a data bug) and golden.jsonl.

    .venv-serving/bin/python examples/sentiment/train_head.py VADER_SDIST ENCODER_ONNX TOKENIZER_JSON

Takes two to five minutes on one core; its results are committed, so nobody has to run it. Needs numpy, onnxruntime and
tokenizers, which the serving environment has. VADER_SDIST is the file that
`pip download --no-deps --no-binary :all: vaderSentiment==3.3.2` fetches.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from offline import OfflineModel
from sentences import Sentence, read_sentences, split

HERE = Path(__file__).resolve().parent
RIDGE = 1.0


def fit_logistic(
    x: npt.NDArray[Any], y: npt.NDArray[Any], *, ridge: float = RIDGE, steps: int = 30
) -> tuple[Any, float]:
    """(weights, bias) of an L2-regularised logistic regression, by Newton's method. Deterministic."""
    design = np.hstack([x, np.ones((len(x), 1))])
    penalty = np.diag([ridge] * x.shape[1] + [0.0])
    theta = np.zeros(design.shape[1])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-design @ theta))
        gradient = design.T @ (p - y) + penalty @ theta
        step = np.linalg.solve((design * (p * (1 - p))[:, None]).T @ design + penalty, gradient)
        theta -= step
        if np.abs(step).max() < 1e-9:
            break
    return theta[:-1], float(theta[-1])


def write_head(path: Path, sentences: list[Sentence], embeddings: npt.NDArray[Any]) -> None:
    weights, bias = fit_logistic(
        embeddings.astype(np.float64), np.array([s.label for s in sentences], dtype=np.float64)
    )
    head = {
        "labels": ["negative", "positive"],
        "trained_on": {name: sum(s.slice == name for s in sentences) for name in sorted({s.slice for s in sentences})},
        # two columns whose difference is the logistic regression, so that softmax gives its probabilities
        "weight": [[round(-w / 2, 6), round(w / 2, 6)] for w in weights],
        "bias": [round(-bias / 2, 6), round(bias / 2, 6)],
    }
    path.write_text(json.dumps(head, indent=None, separators=(",", ":")).replace("],[", "],\n[") + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", type=Path)
    parser.add_argument("encoder", type=Path, help="an ONNX graph of graph.py with any head")
    parser.add_argument("tokenizer", type=Path)
    arguments = parser.parse_args()
    training, golden = split(read_sentences(arguments.sdist))
    with (HERE / "golden.jsonl").open("w", encoding="utf-8") as out:
        for s in golden:
            item = {"id": s.id, "inputs": {"text": s.text}, "label": s.label, "slice": s.slice}
            out.write(json.dumps(item, ensure_ascii=False) + "\n")
    model = OfflineModel(arguments.encoder, arguments.tokenizer)
    embeddings = model.run([s.text for s in training], batch=32, output="embedding", say=True)
    write_head(HERE / "head.json", training, embeddings)
    keep = np.array([s.slice != "tweets" for s in training])
    write_head(HERE / "head-without-tweets.json", [s for s in training if s.slice != "tweets"], embeddings[keep])


if __name__ == "__main__":
    main()
