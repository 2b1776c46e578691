"""Requests that are meant to harm: each with what its caller is told. Over HTTP as bytes, over gRPC as messages or raw frames.

Every one that kills or starves a Triton 2.51 when it gets there was tried on one.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc import service_pb2

#: What a good request asks: the model doubles it.
VALUES = [1.0, 2.0, 3.0, 4.0]
X: dict[str, Any] = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": VALUES}
GOOD = json.dumps({"inputs": [X]}).encode()
REFUSED = frozenset({400})
TOO_LARGE = frozenset({413})


@dataclass(frozen=True)
class OverHttp:
    """`told`: the statuses that its caller may get. `is_stopped`: no server may hear of it. `call`: behind the model's name."""

    body: bytes
    told: frozenset[int] = REFUSED
    headers: Mapping[str, str] = field(default_factory=dict)
    call: str = "infer"
    is_stopped: bool = True


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * depth + closing * depth


def tensor(**changes: Any) -> bytes:
    return json.dumps({"inputs": [{**X, **changes}]}).encode()


def shaped(shape: bytes, name: bytes = b'"shape"', data: bytes = b"[1.0]") -> bytes:
    """A request whose shape is written just so."""
    return b'{"inputs":[{"name":"x","datatype":"FP32",' + name + b":" + shape + b',"data":' + data + b"}]}"


def with_header(length: str, body: bytes = GOOD) -> OverHttp:
    return OverHttp(body, headers={"inference-header-content-length": length})


def _binary(shape: list[int], raw: bytes) -> tuple[bytes, dict[str, str]]:
    one = {"name": "x", "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [one]}).encode()
    return head + raw, {"inference-header-content-length": str(len(head))}


_MANY_NAMES = json.dumps({"parameters": {f"p{i}": 1 for i in range(40_000)}, "inputs": [X]}).encode()
_DEEP_DATA = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":' + nested(42_000) + b"}]}"
_BOMB = gzip.compress(b" " * (16 * 2**20))
_MANY_INPUTS = b'{"inputs":[' + b",".join([json.dumps({**X, "shape": [1000]}).encode()] * 250) + b"]}"
_SOME_INPUTS = b'{"inputs":[' + b",".join([json.dumps({**X, "shape": [100]}).encode()] * 40) + b"]}"

OVER_HTTP: dict[str, OverHttp] = {
    # depth
    "84 kB of nested data": OverHttp(_DEEP_DATA),
    "230 kB of brackets": OverHttp(nested(115_000)),
    "brackets that never close": OverHttp(b"[" * 200_000),
    "700 kB of nested objects": OverHttp(nested(115_000, b'{"a":', b"}")),
    "nested parameters": OverHttp(b'{"inputs":[],"parameters":{"a":' + nested(50_000) + b"}}"),
    "nested outputs": OverHttp(b'{"outputs":' + nested(50_000) + b"}"),
    "depth behind a text full of brackets": OverHttp(b'{"id":"]]]]}}}}\\"]]","inputs":' + nested(50_000) + b"}"),
    "depth that is closed and opened again": OverHttp(b"[" + b"[]," * 1000 + nested(100_000) + b"]"),
    "nested generate": OverHttp(b'{"x":' + nested(120_000) + b"}", call="generate"),
    "nested generate_stream": OverHttp(b'{"x":' + nested(120_000) + b"}", call="generate_stream"),
    # A length that Triton heeds for `infer` alone.
    **{
        f"nested {call} behind a length of {length}": OverHttp(
            b'{"x":' + nested(120_000) + b"}", headers={"inference-header-content-length": length}, call=call
        )
        for call in ("generate", "generate_stream", "versions/1/generate", "generate?a=/infer")
        for length in ("0", "5")
    },
    "nested in a question": OverHttp(nested(120_000), call="config"),
    "nested, said to be gRPC": OverHttp(_DEEP_DATA, headers={"content-type": "application/grpc"}),
    "nested, for a version": OverHttp(_DEEP_DATA, call="versions/1/infer"),
    "just deeper than allowed": OverHttp(nested(65)),
    # shapes
    "88 bytes with a huge shape": OverHttp(shaped(b"[1099511627776]")),
    "a huge shape behind spaces": OverHttp(shaped(b" \n\t [ 1099511627776 ]")),
    "a huge shape with an escaped name": OverHttp(shaped(b"[1099511627776]", b'"sh\\u0061pe"')),
    "a huge shape, all of its name escaped": OverHttp(shaped(b"[1099511627776]", b'"\\u0073\\u0068\\u0061\\u0070\\u0065"')),
    "a second shape that is huge": OverHttp(shaped(b'[1,4],"shape":[1099511627776]')),
    "a huge shape, then a small one": OverHttp(shaped(b'[1099511627776],"shape":[1,4]')),
    "a product that overflows to nothing": OverHttp(shaped(b"[4294967296,4294967296]")),
    "a product that overflows to eight": OverHttp(shaped(b"[2305843009213693953,8]")),
    "2^61 elements": OverHttp(shaped(b"[2305843009213693952]")),
    "a billion times a billion": OverHttp(shaped(b"[1000000000,1000000000]")),
    "a huge dimension beside a zero": OverHttp(shaped(b"[0,4611686018427387904]", data=b"[]")),
    "dimensions that overflow beside a zero": OverHttp(shaped(b"[0,2000000000,2000000000,2000000000]", data=b"[]")),
    "500 million elements": OverHttp(shaped(b"[500000000]")),
    "a shape in hexadecimal": OverHttp(shaped(b"[0x10000000000]")),
    "a shape of 1e30": OverHttp(shaped(b"[1e30]")),
    "a shape of 1e999": OverHttp(shaped(b"[1e999]")),
    "a shape of NaN": OverHttp(shaped(b"[NaN]")),
    "a shape of Infinity": OverHttp(shaped(b"[Infinity]")),
    "a shape that is negative": OverHttp(shaped(b"[-1]")),
    "a shape that is no list": OverHttp(shaped(b"1099511627776")),
    "a shape within a list": OverHttp(shaped(b"[[1099511627776]]")),
    "a shape of a million dimensions": OverHttp(shaped(b"[" + b"1," * 1_000_000 + b"1]")),
    "a shape behind two kilobytes of spaces": OverHttp(shaped(b" " * 2048 + b"[1099511627776]")),
    "small shapes that are huge together": OverHttp(_MANY_INPUTS),
    "small shapes in a short body that claim too much together": OverHttp(_SOME_INPUTS),
    "a huge shape whose name begins with another's quote": OverHttp(shaped(b'[1,4],"x"shape"shape":[1099511627776]')),
    "a huge shape in the second inputs": OverHttp(GOOD[:-1] + b"," + shaped(b"[1099511627776]")[1:]),
    "a huge shape with binary data": OverHttp(*(lambda body, head: (body, REFUSED, head))(*_binary([2**40], b"0" * 16))),
    # names and parameters
    "40,000 parameters": OverHttp(_MANY_NAMES),
    "40,000 parameters of an input": OverHttp(tensor(parameters={f"p{i}": 1 for i in range(40_000)})),
    # lengths
    "a header length that is no number": with_header("abc"),
    "a negative header length": with_header("-1"),
    "a header length with a sign": with_header("+10"),
    "a header length in hexadecimal": with_header("0x10"),
    "a header length with a fraction": with_header("10.5"),
    "a header length beyond the body": with_header("99999"),
    "a header length beyond 2^64": with_header("99999999999999999999"),
    "two header lengths": with_header("10, 20"),
    "an empty header length": with_header(" "),
    "brackets under a header length that is no number": with_header("abc", nested(120_000)),
    "a body above what the model takes": OverHttp(b"[" + b"0," * 9_000_000 + b"0]", TOO_LARGE),
    "JSON above what is read": OverHttp(b'{"inputs":[],"id":"' + b"x" * 5_000_000 + b'"}', TOO_LARGE),
    # encodings
    "a gzip bomb": OverHttp(_BOMB, frozenset({415}), {"content-encoding": "gzip"}),
    "a deflate bomb": OverHttp(_BOMB, frozenset({415}), {"content-encoding": "deflate"}),
    "brotli": OverHttp(GOOD, frozenset({415}), {"content-encoding": "br"}),
    "identity": OverHttp(GOOD, frozenset({415}), {"content-encoding": "identity"}),
    "gzip twice": OverHttp(_BOMB, frozenset({415}), {"content-encoding": "gzip, gzip"}),
    # what only starves, and what is merely wrong
    "a head of 64 kB": OverHttp(GOOD, frozenset({431}), {"x-large": "a" * 65_536}),
    "500 lines of head": OverHttp(GOOD, frozenset({431}), {f"x-{i}": "a" for i in range(500)}),
    "no JSON": OverHttp(b"\0\xff\xfe", is_stopped=False),
    "a comment": OverHttp(b"/* [ */" + GOOD, is_stopped=False),
    "a text that never ends": OverHttp(b'{"inputs":"' + b"[" * 100_000, is_stopped=False),
    "a lone surrogate": OverHttp(tensor(name="\ud800"), is_stopped=False),
    "a number of a million digits": OverHttp(tensor(data=[1, 2, 3, 4]).replace(b"4]}", b"4" * 1_000_000 + b"]}"), is_stopped=False),
    "a megabyte for a name": OverHttp(tensor(name="x" * 1_000_000), is_stopped=False),
    "a million numbers too many": OverHttp(tensor(data=[0] * 1_000_000), is_stopped=False),
    "shared memory of nobody": OverHttp(
        tensor(parameters={"shared_memory_region": "sg", "shared_memory_byte_size": 2**62}), is_stopped=False
    ),
}  # fmt: skip


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value % 128 | 128)
        value //= 128
    return bytes([*out, value])


def field_of(number: int, data: bytes) -> bytes:
    """A field of bytes, or a message in one."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def message(model: str, *parts: bytes, name: bytes = b"x", datatype: bytes = b"FP32") -> bytes:
    """A ModelInferRequest whose one input has these further parts."""
    return field_of(1, model.encode()) + field_of(5, field_of(1, name) + field_of(2, datatype) + b"".join(parts))


def packed(*sizes: int) -> bytes:
    return field_of(3, b"".join(map(varint, sizes)))


def unpacked(*sizes: int) -> bytes:
    return b"".join(varint(3 << 3) + varint(size) for size in sizes)


def raw(data: bytes) -> bytes:
    return field_of(7, data)


FOUR = struct.pack("<4f", *VALUES)


def good_message(model: str) -> bytes:
    return message(model, packed(1, 4)) + raw(FOUR)


def over_grpc(model: str) -> dict[str, bytes]:
    """Messages of ModelInfer, none of which a server may hear of; all are INVALID_ARGUMENT or RESOURCE_EXHAUSTED."""
    many = service_pb2.ModelInferRequest(model_name=model)
    for i in range(3000):
        many.parameters[f"p{i}"].int64_param = i
    return {
        "30 bytes that end the model's process": message(model, packed(2**62)) + raw(b""),
        "the same, unpacked": message(model, unpacked(2**62)) + raw(b""),
        "the same with a batch": message(model, packed(1, 2**62)) + raw(b""),
        "the same, a batch packed and the rest not": message(model, packed(1), unpacked(2**62)) + raw(b""),
        "packed in two parts": message(model, packed(2**31 - 1), packed(2**31 - 1)) + raw(b""),
        "a product that overflows to nothing": message(model, packed(2**32, 2**32)) + raw(b""),
        "a product that overflows, each size small": message(model, packed(*[65_536] * 4)) + raw(b""),
        "2^31 elements": message(model, packed(2**31)) + raw(FOUR),
        "500 million elements": message(model, packed(1, 500_000_000)) + raw(FOUR),
        "a negative size": message(model, packed(1, 2**64 - 4)) + raw(FOUR),
        "a size beyond 64 bits": message(model, field_of(3, b"\xff" * 9 + b"\x7f")) + raw(FOUR),
        "a size that never ends": message(model, field_of(3, b"\xff" * 11)) + raw(FOUR),
        "a huge dimension beside a zero": message(model, packed(0, 2**62)) + raw(b""),
        "dimensions that overflow beside a zero": message(model, packed(0, 2**30, 2**30, 2**30)) + raw(b""),
        "a shape of a thousand dimensions": message(model, packed(*[1] * 1000)) + raw(FOUR),
        "a hundred inputs that are huge together": field_of(1, model.encode())
        + field_of(5, field_of(1, b"x") + field_of(2, b"FP32") + packed(1, 4000)) * 100,
        "sizes of two bytes that are huge together": message(model, packed(2**13, 2**13)) + raw(FOUR),
        "ten inputs that claim too much together": field_of(1, model.encode())
        + field_of(5, field_of(1, b"x") + field_of(2, b"FP32") + packed(1, 100)) * 10,
        "a huge second input": message(model, packed(1, 4)) + message(model, packed(2**62)) + raw(FOUR) + raw(b""),
        "a shape behind the contents": message(model, field_of(5, field_of(6, FOUR)), packed(2**62)),
        "a huge shape behind raw contents": raw(b"") + message(model, packed(2**62)),
        "3,000 parameters": many.SerializeToString(),
        "10,000 inputs": field_of(1, model.encode()) + field_of(5, field_of(1, b"x")) * 10_000,
        "10,000 raw contents": good_message(model) + raw(b"") * 10_000,
        "a tag cut to 32 bits": good_message(model) + varint((1 << 35) | (5 << 3 | 2)) + varint(4) + b"\x1a\x02\x80\x01",
        "a group": good_message(model) + varint(9 << 3 | 3) * 1000,
        "field zero": b"\x02\x00" + good_message(model),
        "a length beyond the message": good_message(model) + varint(7 << 3 | 2) + varint(2**31),
        "a length beyond 2^64": good_message(model) + varint(7 << 3 | 2) + b"\xff" * 9 + b"\x7f",
        "cut": good_message(model)[:-3],
        "garbage": b"\xff\xff\xff\xff",
        "20 MB": message(model, packed(1, 5_000_000)) + raw(b"\0" * 20_000_000),
    }  # fmt: skip
