"""Serves an ONNX graph, with its tokenizer if it has one, as a model of Triton's python backend.

The launcher puts this file into the version folder as `model.py`, beside:

    sluicegate.json             what the release's manifest says: inputs, outputs, max_batch_size, parameters
    model.onnx                  the graph (and its external data files)
    tokenizer/tokenizer.json    present when the release has a tokenizer; its BYTES input is then called `text`

With a tokenizer, `text` becomes the graph's input_ids, attention_mask and token_type_ids (as many of them as it
takes); every other input goes to the graph under its own name. The requests of one execute() call share runs of the
graph: all of them one run where there is no text, else texts of like length, so that a long text costs its own length
and not that of everybody in its batch. Otherwise a server does less work the more it is asked, and a queue that has
formed stays (`benchmarks.batching` measures it). Answers go back in the order of the requests.
A request that cannot be served gets an error of its own and spoils nobody else's: what does not fit the declared
inputs is refused before anything runs, and when a run fails the requests are run one by one. What its caller has cancelled
by the time that it comes to it is not run at all; only gRPC tells (`benchmarks.deadlines`).

An instance of the kind gpu runs the graph by ONNX Runtime's CUDA provider on its own device, and fails to load where that
is not to be had: it never runs on the processor instead (what has no kernel on the device does, as ONNX Runtime shares out).

Parameters (text, all optional): `max_tokens` (longest sequence, default 512 or what tokenizer.json says),
`max_tokens_per_run` (texts times the longest of them in one run of the graph, at least 1, default 512; a longer text
runs alone), `intra_op_threads` (default 1).

This file runs under the serving environment's Python (numpy < 2), not under the service's.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

TEXT = "text"
CUDA = "CUDAExecutionProvider"
DEFAULT_MAX_TOKENS = 512
#: Work in one run: enough that more saves nothing, little enough that its numbers stay in the processor's cache.
#: Source: `python -m benchmarks.batching --costs`: ms per token are level to 1024 tokens and grow by a fifth at 2048.
DEFAULT_MAX_TOKENS_PER_RUN = 512
#: What one more run costs, in tokens: padding beyond that is dearer than a run of its own. Source: as above, 2 ms of 0.26 ms.
TOKENS_OF_A_RUN = 8
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


class Asked:
    """One request that can be answered: its place in the call, its tensors, how many items, and its texts' tokens."""

    def __init__(self, place, tensors, size, encodings):
        self.place, self.tensors, self.size, self.encodings = place, tensors, size, encodings


def cut(lengths, most):
    """Positions of `lengths` (tokens of each text), shortest first, as runs of the graph that cost little padding.

    A text joins the run before it while what that pads is worth less than a run, and the run has at most `most` tokens.
    """
    runs = []
    longest = 0
    for at in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[at]
        rows = len(runs[-1]) if runs else 0
        if not runs or rows * (length - longest) > TOKENS_OF_A_RUN or (rows + 1) * length > most:
            runs.append([])
        runs[-1].append(at)
        longest = length
    return runs


def _session(path, options, args):
    """The graph on what the instance is for: its device, or the processor. Raises RuntimeError where there is no such device.

    Source: ONNX Runtime's Python API tries a session that failed on CUDA once more on the processor unless `enable_fallback` is
    0, and leaves a provider that cannot be loaded out of `get_providers` with no more than a line in the log.
    """
    if args.get("model_instance_kind") != "GPU":
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    device = args.get("model_instance_device_id", "0")
    has = onnxruntime.get_available_providers()
    if CUDA in has:
        onnxruntime.preload_dlls()  # CUDA's and cuDNN's libraries lie in wheels, where the loader does not look
        session = onnxruntime.InferenceSession(
            path, options, providers=[(CUDA, {"device_id": device})], enable_fallback=0
        )
        has = session.get_providers()
        if CUDA in has:
            return session
    raise RuntimeError(
        f"the release declares gpu instances, and ONNX Runtime {onnxruntime.__version__} has no CUDA for device {device} here, "
        f"only {', '.join(has)}; it will not run on the processor instead. Use a runtime with onnxruntime-gpu and a driver that "
        "fits it, or declare instances of the kind cpu"
    )


class TritonPythonModel:
    #: How tokenizer.json fills a text up, beside its `pad_id`: the types of what is added, its side, the least length, its multiple.
    pad_type_id, pads_left, pad_least, pad_multiple = 0, False, 1, 1

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
        self.session = _session(str(folder / "model.onnx"), options, args)
        self.max_tokens_per_run = int(parameters.get("max_tokens_per_run", DEFAULT_MAX_TOKENS_PER_RUN))
        if self.max_tokens_per_run < 1:
            raise ValueError(f"max_tokens_per_run is {self.max_tokens_per_run}, and a run holds at least one token")
        self.graph = {tensor.name: GRAPH_TYPES[tensor.type] for tensor in self.session.get_inputs()}
        self.tokenizer = self._tokenizer(folder / "tokenizer" / "tokenizer.json", parameters)
        self._check_names()

    def _tokenizer(self, path, parameters):
        if not path.is_file() or self.inputs.get(TEXT, {}).get("data_type") != "BYTES":
            return None
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        most, own = parameters.get("max_tokens"), tokenizer.truncation or {}
        if most or not own:
            how = {name: own[name] for name in ("stride", "strategy", "direction") if name in own}
            tokenizer.enable_truncation(max_length=int(most or DEFAULT_MAX_TOKENS), **how)
        padding = tokenizer.padding or {}
        token = padding.get("pad_token", "[PAD]")
        self.pad_id = padding.get("pad_id", tokenizer.token_to_id(token) or 0)
        self.pad_type_id, self.pads_left = padding.get("pad_type_id", 0), padding.get("direction") == "left"
        self.pad_least, self.pad_multiple = padding.get("length") or 1, padding.get("pad_to_multiple_of") or 1
        tokenizer.no_padding()  # a run pads to the longest text in it, and no text is encoded twice
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
        made_by_graph = {tensor.name: tensor for tensor in self.session.get_outputs()}
        types = {name: GRAPH_TYPES.get(tensor.type) for name, tensor in made_by_graph.items()}
        for name, wanted in self.outputs.items():
            if name not in types:
                raise ValueError(f"the release declares the output {name!r}, but the graph has {sorted(types)}")
            if types[name] is None or not np.can_cast(types[name], wanted, casting="same_kind"):
                raise ValueError(
                    f"the graph's output {name!r} is {types[name]}, which cannot become {np.dtype(wanted)} as the release declares"
                )
        # what grows with the text has one shape in one run only: such requests stay alone
        self.joins = self.batches and (
            self.tokenizer is None or all(_is_fixed(made_by_graph[name].shape) for name in self.outputs)
        )

    def execute(self, requests):
        answers = [None] * len(requests)
        ready = {}  # what may be joined: one list for each set of shapes
        for i, request in enumerate(requests):
            if request.is_cancelled():
                answers[i] = _error("its caller waits no longer", pb_utils.TritonError.CANCELLED)
                continue
            try:
                one = self._read(i, request)
                ready.setdefault(self._signature(one), []).append(one)
            except Exception as error:
                answers[i] = _refused(error)
        for members in ready.values():
            self._run_together(members, answers)
        return answers

    def _read(self, place, request):
        tensors = {}
        for name, declared in self.inputs.items():
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise BadRequest(f"the input {name!r} is missing")
            value = tensor.as_numpy()
            dims = value.shape[1:] if self.batches else value.shape
            # Triton has no tensor of rank 0: one number is sent as [1], or with a batch axis reshaped to [n] already
            wanted = declared["dims"] or [1] * len(dims[:1])
            if len(dims) != len(wanted) or any(d not in (-1, n) for d, n in zip(wanted, dims, strict=True)):
                raise BadRequest(f"the input {name!r} has the shape {list(dims)}, not {declared['dims']}")
            value = value.reshape(value.shape[:1] if self.batches else ()) if not declared["dims"] else value
            tensors[name] = value if self.tokenizer and name == TEXT else _decoded(name, value)
        if self.batches and len({len(value) for value in tensors.values()}) != 1:
            raise BadRequest("the inputs do not have one batch size")
        size = len(next(iter(tensors.values()))) if self.batches else 1
        if not size:
            raise BadRequest("the batch is empty")
        encodings = self.tokenizer.encode_batch(self._texts(tensors.pop(TEXT))) if self.tokenizer else []
        return Asked(place, tensors, size, encodings)

    def _texts(self, value):
        rows = value.reshape(len(value), -1) if self.batches else value.reshape(-1, 1)
        if rows.shape[1:] != (1,):
            raise BadRequest(f"the input {TEXT!r} takes one text for each item, not {rows.shape[1:]}")
        try:
            return [row[0].decode("utf-8") if isinstance(row[0], bytes) else str(row[0]) for row in rows]
        except UnicodeDecodeError as error:
            raise BadRequest(f"the input {TEXT!r} is not UTF-8: {error.reason} at byte {error.start}") from None

    def _signature(self, one):
        """Requests with equal signatures can share runs."""
        if not self.joins:
            return one.place
        return tuple((name, value.shape[1:]) for name, value in one.tensors.items())

    def _run_together(self, members, answers):
        try:
            outputs = self._infer(members)
        except Exception as error:
            if len(members) == 1:
                answers[members[0].place] = _failed(error)
                return
            for member in members:  # one of them is at fault: find out which, so that the others get their answers
                self._run_together([member], answers)
            return
        start = 0
        for member in members:
            part = slice(start, start + member.size) if self.batches else slice(None)
            answers[member.place] = pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, np.ascontiguousarray(value[part])) for name, value in outputs.items()]
            )
            start += member.size

    def _infer(self, members):
        """{output: the rows of all members in their order}, whichever runs of the graph they were in."""
        tensors = members[0].tensors
        if len(members) > 1:
            tensors = {name: np.concatenate([one.tensors[name] for one in members]) for name in tensors}
        encodings = [encoding for one in members for encoding in one.encodings]
        size = sum(one.size for one in members)
        if not (encodings and self.joins):
            return self._run(tensors, encodings, size)
        outputs = {}
        for run in cut([len(encoding) for encoding in encodings], self.max_tokens_per_run):
            part = {name: value[run] for name, value in tensors.items()}
            for name, value in self._run(part, [encodings[at] for at in run], len(run)).items():
                outputs.setdefault(name, np.empty((size, *value.shape[1:]), value.dtype))[run] = value
        return outputs

    def _run(self, tensors, encodings, size):
        """{output: its rows} of one run of the graph."""
        if self.tokenizer:
            tensors = tensors | self._padded(encodings)
        feed = {name: tensors[name].astype(dtype, copy=False) for name, dtype in self.graph.items()}
        values = dict(zip(self.outputs, self.session.run(list(self.outputs), feed), strict=True))
        for name, value in values.items():
            if self.batches and value.shape[:1] != (size,):
                raise ValueError(f"the output {name!r} has the shape {list(value.shape)} for a batch of {size}")
        return {name: np.atleast_1d(value).astype(self.outputs[name], copy=False) for name, value in values.items()}

    def _padded(self, encodings):
        """The texts of a run, as long as its longest, filled up as tokenizer.json states: side, ids, length and multiple."""
        longest = max(self.pad_least, *(len(one) for one in encodings))
        shape = (len(encodings), -(-longest // self.pad_multiple) * self.pad_multiple)
        ids, mask = np.full(shape, self.pad_id, np.int64), np.zeros(shape, np.int64)
        types = np.full(shape, self.pad_type_id, np.int64)
        for row, one in enumerate(encodings):
            place = slice(shape[1] - len(one), None) if self.pads_left else slice(len(one))
            ids[row, place], mask[row, place], types[row, place] = one.ids, one.attention_mask, one.type_ids
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def _decoded(name, value):
    """Texts as text: ONNX Runtime takes `str()` of everything else, which of bytes is Python's spelling of them."""
    if value.dtype != np.object_:
        return value
    try:
        texts = [one.decode("utf-8") if isinstance(one, bytes) else str(one) for one in value.reshape(-1)]
    except UnicodeDecodeError as error:
        raise BadRequest(f"the input {name!r} is not UTF-8: {error.reason} at byte {error.start}") from None
    decoded = np.empty(len(texts), np.object_)
    decoded[:] = texts
    return decoded.reshape(value.shape)


def _is_fixed(shape):
    """Whether a graph's output has one size for every row, independent of the texts' length."""
    return len(shape) > 0 and all(isinstance(dim, int) for dim in shape[1:])


def _refused(error):
    kind = pb_utils.TritonError.INVALID_ARG if isinstance(error, BadRequest) else pb_utils.TritonError.INTERNAL
    return _error(str(error), kind)


def _error(says, kind):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(says, kind))


def _failed(error):
    """ONNX Runtime's InvalidArgument means that the sender's shape or value does not fit the graph."""
    is_senders = isinstance(error, BadRequest) or type(error).__name__ == "InvalidArgument"
    return _error(str(error), pb_utils.TritonError.INVALID_ARG if is_senders else pb_utils.TritonError.INTERNAL)
