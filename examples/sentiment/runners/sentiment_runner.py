"""What both code-bearing releases share: text in, probabilities out, on Triton's python backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

MAX_TOKENS = 128
#: What one more run of the graph costs, in tokens: padding beyond that is dearer than a run of its own.
TOKENS_OF_A_RUN = 8


class SentimentRunner:
    """Subclasses say in `inspect` what they do with each text before it is answered."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"]) / args["model_version"]
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.no_padding()

    def inspect(self, text: str) -> None:
        """Called once for each text."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request; texts of like length, of whichever request, go through the graph together."""
        groups = [pb_utils.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1) for request in requests]
        texts = [raw.decode("utf-8", "replace") for group in groups for raw in group]
        for text in texts:
            self.inspect(text)
        probabilities = self.probabilities(texts)
        responses, start = [], 0
        for group in groups:
            rows = probabilities[start : start + len(group)]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("probabilities", rows)]))
            start += len(group)
        return responses

    def probabilities(self, texts: list[str]) -> Any:
        encoded = self.tokenizer.encode_batch(texts)
        found = np.empty((len(texts), 2), np.float32)
        for run in like_lengths([len(one) for one in encoded]):
            found[run] = self._run([encoded[at] for at in run])
        return found

    def _run(self, encoded: list[Any]) -> Any:
        mask = np.zeros((len(encoded), max(len(one) for one in encoded)), np.int64)
        ids = np.zeros_like(mask)  # 0 is [PAD]
        for row, one in enumerate(encoded):
            ids[row, : len(one)], mask[row, : len(one)] = one.ids, 1
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
        return self.session.run(["probabilities"], feeds)[0]


def like_lengths(lengths: list[int]) -> list[list[int]]:
    """Positions of `lengths` in runs of the graph, shortest first: a text joins while padding costs less than a run."""
    runs: list[list[int]] = []
    longest = 0
    for at in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not runs or len(runs[-1]) * (lengths[at] - longest) > TOKENS_OF_A_RUN:
            runs.append([])
        runs[-1].append(at)
        longest = lengths[at]
    return runs
