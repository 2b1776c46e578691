"""Small true files of every format, written byte by byte, to be spoilt by tests."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from typing import Any

Tensor = tuple[str, str, list[int]]
_ELEMENT = {
    "FP32": 1,
    "UINT8": 2,
    "INT8": 3,
    "INT32": 6,
    "INT64": 7,
    "BYTES": 8,
    "BOOL": 9,
    "FP16": 10,
    "FP64": 11,
    "BF16": 16,
}
_SIZE = {"FP32": 4, "UINT8": 1, "INT8": 1, "INT32": 4, "INT64": 8, "BOOL": 1, "FP16": 2, "FP64": 8}
_SAFE_SIZE = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I8": 1, "F64": 8, "BOOL": 1}


def onnx_file(
    note: bytes | str = "",
    *,
    inputs: list[Tensor] | None = None,
    outputs: list[Tensor] | None = None,
    weights: list[Tensor] | None = None,
    external: dict[str, str] | None = None,
) -> bytes:
    """An ONNX graph of no nodes. Without tensors it is `text` → `probabilities`, as the tests' model promises; -1 is free.

    `note` makes one graph other bytes than another. `external` is the external_data of every weight.
    """
    inputs = [("text", "BYTES", [-1, 1])] if inputs is None else inputs
    outputs = [("probabilities", "FP32", [-1, 2])] if outputs is None else outputs
    graph = _field(2, b"g")
    graph += b"".join(_field(5, _initializer(tensor, external)) for tensor in weights or [])
    graph += b"".join(_field(11, _value(tensor)) for tensor in inputs)
    graph += b"".join(_field(12, _value(tensor)) for tensor in outputs)
    doc = note.encode() if isinstance(note, str) else note
    return b"\x08\x09" + _field(6, doc) + _field(7, graph) + _field(8, b"\x10\x14")


def safetensors_file(tensors: list[Tensor], metadata: dict[str, str] | None = None, *, header: Any = None) -> bytes:
    """A safetensors file of zeros. `header` replaces the true header by any JSON value or text."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, data_type, shape in tensors:
        size = _SAFE_SIZE[data_type] * _product(shape)
        entries[name] = {"dtype": data_type, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = header if isinstance(header, bytes) else json.dumps(entries if header is None else header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def gguf_file(
    tensors: list[tuple[str, int, list[int]]], metadata: dict[str, str | int | list[str]] | None = None
) -> bytes:
    """A GGUF file, version 3, of zeros; a tensor's type is its number, of which 0 (F32) and 1 (F16) have data."""
    metadata = {"general.architecture": "llama"} if metadata is None else metadata
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for name, value in metadata.items():
        data += _text(name)
        if isinstance(value, str):
            data += struct.pack("<I", 8) + _text(value)
        elif isinstance(value, int):
            data += struct.pack("<II", 4, value)
        else:
            data += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(one) for one in value)
    at = 0
    for name, kind, shape in tensors:
        data += _text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", size) for size in shape)
        data += struct.pack("<IQ", kind, at)
        at += -(-_product(shape) * (4 if kind == 0 else 2) // 32) * 32
    return data + bytes(-len(data) % 32) + bytes(at)


def torchscript_file(*, code: bool = True) -> bytes:
    """A zip laid out as torch.jit.save does; without code it is a state_dict."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        if code:
            archive.writestr("model/code/__torch__.py", "class M(Module):\n  pass\n")
        archive.writestr("model/data.pkl", b"\x80\x02c__torch__\nM\n)\x81.")
        archive.writestr("model/version", "3\n")
    return out.getvalue()


def plan_file(
    note: bytes = b"", *, tensorrt: tuple[int, ...] = (10, 3, 0, 26), magic: bytes = b"ftrt", serialization: int = 0
) -> bytes:
    """The first bytes of a TensorRT plan, built by the TensorRT of that version."""
    return magic + serialization.to_bytes(4, "little") + bytes(16) + bytes(tensorrt) + bytes(4) + note


def rtx_plan_file(note: bytes = b"", *, tensorrt: tuple[int, ...] = (1, 7, 1, 116), bits: int = 0b1000) -> bytes:
    """A plan of TensorRT for RTX as far as its header goes: for 8.9, unless `bits` names others."""
    size = (64 + len(note)).to_bytes(8, "little")
    head = b"vtrt" + bytes(4) + b"\x02" + bytes(7) + size + bytes(tensorrt) + b"vtrt" + bits.to_bytes(4, "little")
    return head.ljust(64, b"\x00") + note


def tokenizer_file(vocabulary: dict[str, int], **changes: Any) -> bytes:
    """A tokenizer.json with a WordPiece model."""
    document: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": None, "decoder": {"type": "WordPiece"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocabulary},
    }  # fmt: skip
    return json.dumps(document | changes).encode()


def _initializer(tensor: Tensor, external: dict[str, str] | None) -> bytes:
    name, data_type, shape = tensor
    data = (
        b"".join(b"\x08" + _varint(size) for size in shape)
        + b"\x10"
        + _varint(_ELEMENT[data_type])
        + _field(8, name.encode())
    )
    if external is None:
        return data + _field(9, bytes(_SIZE[data_type] * _product(shape)))
    return data + b"".join(_field(13, _field(1, k.encode()) + _field(2, v.encode())) for k, v in external.items())


def _value(tensor: Tensor) -> bytes:
    name, data_type, shape = tensor
    dims = b"".join(_field(1, b"\x08" + _varint(size) if size >= 0 else _field(2, b"n")) for size in shape)
    return _field(1, name.encode()) + _field(2, _field(1, b"\x08" + _varint(_ELEMENT[data_type]) + _field(2, dims)))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _product(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
