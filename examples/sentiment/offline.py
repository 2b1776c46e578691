"""The model without any server: tokenizer and onnxruntime in this process, for training and for measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from tokenizers import Tokenizer

MAX_TOKENS = 128


class OfflineModel:
    def __init__(self, graph: Path, tokenizer: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(str(tokenizer))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.enable_padding()

    def run(
        self, texts: list[str], *, batch: int = 1, output: str = "probabilities", say: bool = False
    ) -> npt.NDArray[Any]:
        """One row per text, in order. Batches are made of texts of like length, which saves padding."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i])) if batch > 1 else list(range(len(texts)))
        rows: list[Any] = [None] * len(texts)
        for start in range(0, len(texts), batch):
            chosen = order[start : start + batch]
            encoded = self.tokenizer.encode_batch([texts[i] for i in chosen])
            feeds = {
                "input_ids": np.array([e.ids for e in encoded], dtype=np.int64),
                "attention_mask": np.array([e.attention_mask for e in encoded], dtype=np.int64),
                "token_type_ids": np.array([e.type_ids for e in encoded], dtype=np.int64),
            }
            for i, row in zip(chosen, self.session.run([output], feeds)[0], strict=True):
                rows[i] = row
            if say and start // batch % 50 == 0:
                print(f"{start + len(chosen)}/{len(texts)}", flush=True)
        return np.stack(rows)
