"""A mirrored request as arrays: Open Inference Protocol v2 over HTTP (JSON, binary tensors) and gRPC.

Source: Triton's documentation of the protocol and its binary tensor data extension; gRPC over HTTP/2 (message framing).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
HTTP_PATH = re.compile(r"^/v2/models/[^/]+(/versions/[^/]+)?/infer$")
#: Larger requests are not compared.
MAX_BODY_BYTES = 8 * 2**20
_SEQUENCE = {"sequence_id", "sequence_start", "sequence_end"}
_INFLATE = {"gzip": 31, "deflate": 15}
#: Open Inference Protocol type → the field of a gRPC tensor's typed contents.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class Unusable(Exception):
    """A request that is not compared. `reason` is stable for code: no_inference, sequence, shared_memory, too_large,
    unsupported, malformed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Question:
    """A request. `outputs` are the requested ones, or none for all; `digest` identifies the inputs, which are not kept."""

    inputs: dict[str, npt.NDArray[Any]]
    outputs: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """sha256:<64 hex> over names, types, shapes and values."""
        total = hashlib.sha256()
        for name, array in sorted(self.inputs.items()):
            total.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
            values = array.ravel().tolist() if array.dtype.kind == "O" else [array.tobytes()]
            for value in values:
                total.update(len(value).to_bytes(8, "little") + value)
        return f"sha256:{total.hexdigest()}"


def read_request(path: str, headers: Mapping[str, str], body: bytes) -> Question:
    """The question in a mirrored request; header names in lower case. Raises Unusable."""
    try:
        if path == GRPC_PATH:
            return _from_grpc(_message(headers, body))
        if HTTP_PATH.match(path):
            return _from_http(headers, _inflated(body, headers.get("content-encoding", "identity")))
    except Unusable:
        raise
    except Exception as error:  # untrusted bytes can fail in any way
        raise Unusable("malformed") from error
    raise Unusable("no_inference")


# -- gRPC ---------------------------------------------------------------------------------------------------------------


def _message(headers: Mapping[str, str], body: bytes) -> bytes:
    """The one message of a unary call: a byte for "compressed", four bytes of length, the message."""
    is_compressed, size = struct.unpack(">BI", body[:5])
    if len(body) != 5 + size:
        raise ValueError(f"a message of {size} bytes in a body of {len(body)}")
    return _inflated(body[5:], headers.get("grpc-encoding", "identity")) if is_compressed else body[5:]


def _from_grpc(message: bytes) -> Question:
    request = service_pb2.ModelInferRequest.FromString(message)
    if _SEQUENCE & set(request.parameters):
        raise Unusable("sequence")
    if any("shared_memory_region" in one.parameters for one in (*request.inputs, *request.outputs)):
        raise Unusable("shared_memory")
    raws = list(request.raw_input_contents)
    if raws and len(raws) != len(request.inputs):
        raise ValueError(f"{len(raws)} raw contents for {len(request.inputs)} inputs")
    inputs = {}
    for number, one in enumerate(request.inputs):
        if raws:
            inputs[one.name] = _of_raw(one.datatype, one.shape, raws[number])
        else:
            inputs[one.name] = _of_values(one.datatype, one.shape, _typed(one))
    return Question(inputs, tuple(one.name for one in request.outputs))


def _typed(tensor: Any) -> list[Any]:
    if tensor.datatype not in _CONTENTS:
        raise Unusable("unsupported")
    return list(getattr(tensor.contents, _CONTENTS[tensor.datatype]))


# -- HTTP ---------------------------------------------------------------------------------------------------------------


def _from_http(headers: Mapping[str, str], body: bytes) -> Question:
    size = int(headers.get("inference-header-content-length", len(body)))
    if not 0 <= size <= len(body):
        raise ValueError(f"a JSON part of {size} bytes in a body of {len(body)}")
    document, rest = json.loads(body[:size]), body[size:]
    if _SEQUENCE & set(document.get("parameters") or {}):
        raise Unusable("sequence")
    tensors = [*document["inputs"], *(document.get("outputs") or ())]
    if any("shared_memory_region" in (one.get("parameters") or {}) for one in tensors):
        raise Unusable("shared_memory")
    inputs, at = {}, 0
    for one in document["inputs"]:
        raw_size = (one.get("parameters") or {}).get("binary_data_size")
        if raw_size is None:
            inputs[str(one["name"])] = _of_values(one["datatype"], one["shape"], _flat(one["data"]))
        else:
            raw, at = rest[at : at + int(raw_size)], at + int(raw_size)
            inputs[str(one["name"])] = _of_raw(one["datatype"], one["shape"], raw)
    return Question(inputs, tuple(str(one["name"]) for one in document.get("outputs") or ()))


def _flat(data: Any) -> list[Any]:
    """A tensor's values in row-major order, from a flat or a nested list."""
    while data and isinstance(data[0], list):
        data = [value for row in data for value in row]
    return list(data)


# -- arrays -------------------------------------------------------------------------------------------------------------


def _of_raw(data_type: str, shape: Any, raw: bytes) -> npt.NDArray[Any]:
    kind = _numpy_type(data_type)
    array = deserialize_bytes_tensor(raw) if data_type == "BYTES" else np.frombuffer(raw, dtype=kind)
    return array.reshape(_dims(shape))


def _of_values(data_type: str, shape: Any, values: list[Any]) -> npt.NDArray[Any]:
    kind = _numpy_type(data_type)
    if data_type != "BYTES":
        return np.array(values, dtype=kind).reshape(_dims(shape))
    array = np.empty(len(values), dtype=object)
    array[:] = [value if isinstance(value, bytes) else str.encode(value) for value in values]
    return array.reshape(_dims(shape))


def _numpy_type(data_type: str) -> Any:
    kind = triton_to_np_dtype(data_type) if data_type != "BF16" else None
    if kind is None:
        raise Unusable("unsupported")  # numpy has no BF16, so it cannot be asked again as it was
    return kind


def _dims(shape: Any) -> tuple[int, ...]:
    dims = tuple(int(d) for d in shape)
    if any(d < 0 for d in dims) or math.prod(dims) > MAX_BODY_BYTES:
        raise ValueError(f"the shape {dims}")
    return dims


def _inflated(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding not in _INFLATE:
        raise Unusable("unsupported")
    inflater = zlib.decompressobj(_INFLATE[encoding])
    whole = inflater.decompress(body, MAX_BODY_BYTES)
    if inflater.unconsumed_tail:
        raise Unusable("too_large")
    return whole
