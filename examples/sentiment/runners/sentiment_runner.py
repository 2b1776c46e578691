"""What both code-bearing releases share: text in, probabilities out, on Triton's python backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

MAX_TOKENS = 128


class SentimentRunner:
    """Subclasses say in `inspect` what they do with each text before it is answered."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"]) / args["model_version"]
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.enable_padding()

    def inspect(self, text: str) -> None:
        """Called once for each text."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request; the texts of all of them go through the graph as one batch."""
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
        feeds = {
            "input_ids": np.array([e.ids for e in encoded], dtype=np.int64),
            "attention_mask": np.array([e.attention_mask for e in encoded], dtype=np.int64),
            "token_type_ids": np.array([e.type_ids for e in encoded], dtype=np.int64),
        }
        return self.session.run(["probabilities"], feeds)[0]
