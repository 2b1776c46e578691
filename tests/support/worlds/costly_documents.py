"""Documents that cost as much to read as the limits on their size allow, for each door of the API."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from itertools import islice
from typing import Any

CHECK = "/api/v1/models/sentiment/releases:check"
MODEL = "/api/v1/models/sentiment"


def keys(count: int, value: str = "1") -> str:
    return "".join(f"k{i}: {value}\n" for i in range(count))


def head(path: str, data: bytes) -> dict[str, Any]:
    return {"path": path, "size_bytes": len(data), "head": base64.b64encode(data).decode()}


OPSETS = b"\x42\x02\x10\x11"
METADATA = json.dumps({"__metadata__": {f"k{i:06}": "v" for i in range(70_000)}}).encode()
SAFETENSORS = struct.pack("<Q", len(METADATA)) + METADATA
FILES = [{"path": f"artifact/{i}.json", "size_bytes": 1, "sha256": "0" * 64} for i in range(17_000)]
BIG = {f"k{i}": i for i in range(140_000)}
BODIES: dict[str, tuple[str, str, Any]] = {
    "unknown keys": ("POST", CHECK, {"document": keys(20_000)}),
    "unknown keys, allowed": ("POST", CHECK, {"document": keys(9_900)}),
    "unknown keys of JSON": ("POST", CHECK, {"document": BIG}),
    "unknown members": ("POST", CHECK, BIG),
    "bad inputs": ("POST", CHECK, {"document": {"serving": {"inputs": [{"data_type": "FP3"}] * 1000}}}),
    "aliases": ("POST", CHECK, {"document": f"a: &a [{'x,' * 900}]\n" + keys(100, "*a")}),
    "merges": ("POST", CHECK, {"document": f"a: &a {{{'k: 1,' * 900}}}\n" + keys(100, "{<<: *a}")}),
    "long text": ("POST", CHECK, {"document": f"a: '{'x' * 250_000}'"}),
    "one list": ("POST", CHECK, {"document": f"a: [{'1,' * 100_000}]"}),
    "nested": ("POST", CHECK, {"document": "[" * 200_000}),
    "opsets in a head": ("POST", CHECK, {"document": "", "files": [head("artifact/m.onnx", OPSETS * 380_000)]}),
    "metadata in a head": ("POST", CHECK, {"document": "", "files": [head("artifact/w.safetensors", SAFETENSORS)]}),
    "files": ("POST", CHECK, {"document": "", "files": FILES}),
    "pbtxt": ("POST", CHECK, {"document": "", "files": [head("artifact/config.pbtxt", b"input{}\n" * 8_000)]}),
    "gate policy": ("PATCH", MODEL, {"gate_policy": BIG}),
    "rollout policy": ("PATCH", MODEL, {"rollout_policy": BIG}),
    "guards": ("PATCH", MODEL, {"rollout_policy": {"guards": [{"indicator": "x"}] * 40_000}}),
    "contract": ("PATCH", MODEL, {"contract": {"inputs": [BIG]}}),
    "objectives": ("PATCH", MODEL, {"objectives": BIG}),
    "new model": ("POST", "/api/v1/models", BIG),
    "webhook": (
        "POST",
        "/api/v1/webhooks",
        {"team": "nlp", "kind": "webhook", "target": "https://x.y/" + "a" * 1_000_000, "verbs": ["a"] * 100_000},
    ),
    "comment": ("POST", f"{MODEL}/releases/r1/comments", {"section": "files", "text": "x" * 2_000_000}),
    "token exchange": ("POST", "/api/v1/tokens:exchange", {"token": "a." * 1_000_000}),
    "claims": (
        "POST",
        "/api/v1/tokens:exchange",
        {
            "token": f"e30.{base64.urlsafe_b64encode(json.dumps(dict(islice(BIG.items(), 2_000))).encode()).decode()}.e30"
        },
    ),
    "big number": ("POST", CHECK, {"document": f"a: {'9' * 200_000}"}),
    "base 60": ("POST", CHECK, {"document": "a: 1" + ":1" * 100_000}),
    "draft": ("POST", f"{MODEL}/releases", {"spec": BIG, "files": FILES[:9_000]}),
}
RAW: dict[str, tuple[str, bytes]] = {
    "golden set": (
        "golden-sets:check",
        b"\n".join(
            b'{"id":"%d","inputs":{"text":"words of an example"},"label":%d}' % (i, i % 2) for i in range(150_000)
        ),
    ),
    "golden set of mistakes": ("golden-sets:check", b"{}\n" * 1_000_000),
    "new golden set": (
        "golden-sets",
        b"\n".join(b'{"id":"%d","inputs":{"text":"x"},"label":1,"slice":"%d"}' % (i, i) for i in range(150_000)),
    ),
}


def safetensors(header: dict[str, Any], size: int) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def many_tensors(count: int) -> dict[str, Any]:
    return {f"t{i:06}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i in range(count)}


VOCABULARY = ",".join(f'"{i}":{i}' for i in range(400_000))
FILES_OF: dict[str, tuple[str, Callable[[], bytes]]] = {
    "operator sets": ("artifact/m.onnx", lambda: OPSETS * 1_000_000),
    "metadata": (
        "artifact/w.safetensors",
        lambda: safetensors({"__metadata__": {f"k{i:06}": "v" for i in range(600_000)}}, 0),
    ),
    "tensors": ("artifact/w.safetensors", lambda: safetensors(many_tensors(90_000), 360_000)),
    "vocabulary": (
        "tokenizer/tokenizer.json",
        lambda: f'{{"model":{{"type":"BPE","vocab":{{{VOCABULARY}}},"merges":[]}}}}'.encode(),
    ),
    "escapes": ("artifact/a.yaml", lambda: b"%41" * 3_000_000),
    "lists": ("artifact/a.json", lambda: b"[" + b",".join([b"[]"] * 900_000) + b"]"),
    "source": ("artifact/a.py", lambda: b"x=1\n" * 3_000_000),
}
