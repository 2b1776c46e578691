"""Serves an ONNX graph, with its tokenizer if it has one, as a model of Triton's python backend.

The launcher puts this file into the version folder as `model.py`, beside:

    sluicegate.json             what the release's manifest says: inputs, outputs, max_batch_size, parameters
    model.onnx                  the graph (and its external data files)
    tokenizer/tokenizer.json    present when the release has a tokenizer; its BYTES input is then called `text`

With a tokenizer, `text` becomes the graph's input_ids, attention_mask and token_type_ids (as many of them as it
takes); every other input goes to the graph under its own name. All requests of one execute() call run as one batch.
A request that cannot be served gets an error of its own and spoils nobody else's: what does not fit the declared
inputs is refused before the batch is made, and when a batch fails its requests are run one by one.

Parameters (text, all optional): `max_tokens` (longest sequence, default 512 or what tokenizer.json says),
`intra_op_threads` (default 1).

This file runs under the serving environment's Python (numpy < 2), not under the service's.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

TEXT = "text"
DEFAULT_MAX_TOKENS = 512
NUMPY_TYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
GRAPH_TYPES = {
    "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(string)": np.object_,
}


class BadRequest(Exception):
    """This one request cannot be served; the message is for its sender."""


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(__file__).resolve().parent
        self.config = json.loads((folder / "sluicegate.json").read_text(encoding="utf-8"))
        parameters = self.config.get("parameters", {})
        self.batches = self.config["max_batch_size"] > 0
        self.inputs = {tensor["name"]: tensor for tensor in self.config["inputs"]}
        self.outputs = {tensor["name"]: NUMPY_TYPES[tensor["data_type"]] for tensor in self.config["outputs"]}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(parameters.get("intra_op_threads", "1"))
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.graph = {tensor.name: GRAPH_TYPES[tensor.type] for tensor in self.session.get_inputs()}
        self.tokenizer = self._tokenizer(folder / "tokenizer" / "tokenizer.json", parameters)
        self._check_names()

    def _tokenizer(self, path, parameters):
        if not path.is_file() or self.inputs.get(TEXT, {}).get("data_type") != "BYTES":
            return None
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        most = parameters.get("max_tokens")
        if most or tokenizer.truncation is None:
            tokenizer.enable_truncation(max_length=int(most or DEFAULT_MAX_TOKENS))
        padding = tokenizer.padding or {}
        token = padding.get("pad_token", "[PAD]")
        tokenizer.enable_padding(pad_id=padding.get("pad_id", tokenizer.token_to_id(token) or 0), pad_token=token)
        return tokenizer

    def _check_names(self):
        """Raises ValueError at load time for what no request could ever make right."""
        made = {"input_ids", "attention_mask", "token_type_ids"} if self.tokenizer else set()
        given = (set(self.inputs) - {TEXT} if self.tokenizer else set(self.inputs)) | made
        if set(self.graph) - given:
            raise ValueError(
                f"the graph needs the inputs {sorted(set(self.graph) - given)}, which the release does not declare; "
                f"it declares {sorted(self.inputs)}"
            )
        if given - made - set(self.graph):
            raise ValueError(
                f"the release declares the inputs {sorted(given - made - set(self.graph))}, but the graph has {sorted(self.graph)}"
            )
        types = {tensor.name: GRAPH_TYPES.get(tensor.type) for tensor in self.session.get_outputs()}
        for name, wanted in self.outputs.items():
            if name not in types:
                raise ValueError(f"the release declares the output {name!r}, but the graph has {sorted(types)}")
            if types[name] is None or not np.can_cast(types[name], wanted, casting="same_kind"):
                raise ValueError(
                    f"the graph's output {name!r} is {types[name]}, which cannot become {np.dtype(wanted)} as the release declares"
                )

    def execute(self, requests):
        answers = [None] * len(requests)
        ready = {}  # what may be joined: one list of (index, feed, size) for each set of shapes
        for i, request in enumerate(requests):
            try:
                tensors = self._read(request)
                size = len(next(iter(tensors.values()))) if self.batches else 1
                ready.setdefault(self._signature(i, tensors), []).append((i, tensors, size))
            except Exception as error:
                answers[i] = _refused(error)
        for members in ready.values():
            self._run_together(members, answers)
        return answers

    def _read(self, request):
        tensors = {}
        for name, declared in self.inputs.items():
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise BadRequest(f"the input {name!r} is missing")
            value = tensor.as_numpy()
            dims = value.shape[1:] if self.batches else value.shape
            if len(dims) != len(declared["dims"]) or any(
                d not in (-1, n) for d, n in zip(declared["dims"], dims, strict=True)
            ):
                raise BadRequest(f"the input {name!r} has the shape {list(dims)}, not {declared['dims']}")
            tensors[name] = value
        if self.batches and len({len(value) for value in tensors.values()}) != 1:
            raise BadRequest("the inputs do not have one batch size")
        if self.tokenizer:
            tensors[TEXT] = self._texts(tensors[TEXT])
        return tensors

    def _texts(self, value):
        rows = value.reshape(len(value), -1) if self.batches else value.reshape(-1, 1)
        if rows.shape[1:] != (1,):
            raise BadRequest(f"the input {TEXT!r} takes one text for each item, not {rows.shape[1:]}")
        try:
            texts = [row[0].decode("utf-8") if isinstance(row[0], bytes) else str(row[0]) for row in rows]
        except UnicodeDecodeError as error:
            raise BadRequest(f"the input {TEXT!r} is not UTF-8: {error.reason} at byte {error.start}") from None
        return np.array(texts, dtype=np.object_)

    def _signature(self, i, tensors):
        """Requests with equal signatures can be one batch."""
        if not self.batches:
            return i
        return tuple(
            (name, value.shape[1:]) for name, value in tensors.items() if not (self.tokenizer and name == TEXT)
        )

    def _run_together(self, members, answers):
        try:
            joined = {name: np.concatenate([tensors[name] for _, tensors, _ in members]) for name in self.inputs}
            outputs = self._infer(joined, sum(size for _, _, size in members))
        except Exception as error:
            if len(members) == 1:
                answers[members[0][0]] = _failed(error)
                return
            for member in members:  # one of them is at fault: find out which, so that the others get their answers
                self._run_together([member], answers)
            return
        start = 0
        for i, _, size in members:
            part = slice(start, start + size) if self.batches else slice(None)
            answers[i] = pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, np.ascontiguousarray(value[part])) for name, value in outputs.items()]
            )
            start += size

    def _infer(self, tensors, size):
        if self.tokenizer:
            tensors.update(self._encode(tensors.pop(TEXT)))
        feed = {name: tensors[name].astype(dtype, copy=False) for name, dtype in self.graph.items()}
        values = dict(zip(self.outputs, self.session.run(list(self.outputs), feed), strict=True))
        for name, value in values.items():
            if self.batches and value.shape[:1] != (size,):
                raise ValueError(f"the output {name!r} has the shape {list(value.shape)} for a batch of {size}")
        return {name: value.astype(self.outputs[name], copy=False) for name, value in values.items()}

    def _encode(self, texts):
        encoded = self.tokenizer.encode_batch(list(texts))
        return {
            "input_ids": np.array([one.ids for one in encoded], dtype=np.int64),
            "attention_mask": np.array([one.attention_mask for one in encoded], dtype=np.int64),
            "token_type_ids": np.array([one.type_ids for one in encoded], dtype=np.int64),
        }


def _refused(error):
    kind = pb_utils.TritonError.INVALID_ARG if isinstance(error, BadRequest) else pb_utils.TritonError.INTERNAL
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), kind))


def _failed(error):
    """ONNX Runtime's InvalidArgument means that the sender's shape or value does not fit the graph."""
    is_senders = isinstance(error, BadRequest) or type(error).__name__ == "InvalidArgument"
    kind = pb_utils.TritonError.INVALID_ARG if is_senders else pb_utils.TritonError.INTERNAL
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), kind))
