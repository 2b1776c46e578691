"""The header of a GGUF file: what it says of itself, and its tensors' names, types and shapes.

Source: ggml docs/gguf.md. Version 1 counted in 32 bits; version 3 may be big-endian.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from registry.core.formats.findings import LARGEST, MOST_TENSORS, Malformed, checked_tensors, elements_of, shown
from registry.core.formats.window import Window

_FIX: Final = "Convert it again with a current llama.cpp, or send the whole file."
MOST_KEYS: Final = 1000
MOST_ITEMS: Final = 2_000_000
LONGEST_NAME: Final = 1000
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _LIST = 8, 9
#: ggml_type → name, elements of a block, bytes of a block. Source: ggml.h and ggml-common.h, as gguf-py states them.
_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip


class _Header:
    def __init__(self, window: Window) -> None:
        self.window = window
        self.order, self.version = "<", window.number("<I")
        if self.version >> 16:  # big-endian files say so by their version only
            self.order, self.version = ">", int.from_bytes(self.version.to_bytes(4, "little"), "big")
        if not 1 <= self.version <= 3:
            raise Malformed(f"its version is {self.version}, and 1 to 3 are known", _FIX)

    def whole(self, form: str) -> int:
        return self.window.number(self.order + form)

    def size(self) -> int:
        return self.whole("I" if self.version == 1 else "Q")

    def text(self, most: int) -> str:
        """A text, cut after `most` bytes."""
        length = self.size()
        if length > self.window.size:
            raise Malformed(f"a text of {length} bytes is named in a file of {self.window.size}", _FIX)
        end = self.window.at + length
        data = self.window.read(min(length, most))
        self.window.at = end
        return data.decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """A number, a text of at most 200 bytes, or {"items": how many} of a list."""
        if kind in _SCALARS:
            found: Any = self.window.number(self.order + _SCALARS[kind])
            return found
        if kind == _TEXT:
            return self.text(200)
        if kind != _LIST:
            raise Malformed(f"a value has the unknown type {kind}", _FIX)
        inner, count = self.whole("I"), self.size()
        if count > MOST_ITEMS or inner == _LIST:
            raise Malformed(f"a list holds {count} items, or lists, which is more than is read", _FIX)
        if inner == _TEXT:
            for _ in range(count):
                self.text(0)
        elif inner in _SIZES:
            self.window.at += count * _SIZES[inner]
        else:
            raise Malformed(f"a list holds the unknown type {inner}", _FIX)
        return {"items": count}


def read(window: Window) -> dict[str, Any]:
    """{"tensors", "metadata", "version"}; a shape is in the file's order, the fastest dimension first. Raises Malformed."""
    if window.read(4) != b"GGUF":
        raise Malformed("it does not begin with GGUF", _FIX)
    header = _Header(window)
    count, keys = header.size(), header.size()
    if count > MOST_TENSORS or keys > MOST_KEYS:
        raise Malformed(f"it claims {count} tensors and {keys} keys, more than are read", _FIX)
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        name = header.text(LONGEST_NAME)
        value = header.value(header.whole("I"))
        is_plain = isinstance(value, (bool, str)) or (isinstance(value, int) and abs(value) <= LARGEST)
        metadata[name] = value if is_plain or isinstance(value, dict) else str(value)
    found: dict[str, tuple[str, list[int]]] = {}
    ends = 0
    for _ in range(count):
        name, data_type, shape, end = _tensor(header)
        if name in found:
            raise Malformed(f"two of its tensors are called {shown(name)}", _FIX)
        found[name] = (data_type, shape)
        ends = max(ends, end)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
        raise Malformed("its general.alignment is no size", _FIX)
    start = -(-window.at // alignment) * alignment
    if count and start + ends > window.size:
        raise Malformed(
            f"its tensors reach to byte {start + ends}, and it ends at byte {window.size}", "Send the whole file."
        )
    return {"tensors": checked_tensors(found), "metadata": metadata, "version": header.version}


def bytes_of(tensors: Sequence[Sequence[Any]]) -> int | None:
    """Bytes of the tensors that `read` listed; None if the size of a type is unknown."""
    blocks = {name: (block, size) for name, block, size in _TYPES.values()}
    if any(data_type not in blocks for _, data_type, _ in tensors):
        return None
    return sum(elements_of(shape) // blocks[kind][0] * blocks[kind][1] for _, kind, shape in tensors)


def attention_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that `transformer.facts_of` returns for a config.json, from the keys of a GGUF file.

    Source: ggml docs/gguf.md, "LLM". A number for each layer is no number here.
    """
    own = {
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "hidden_size": "embedding_length",
        "head_dim": "attention.key_length",
    }
    architecture = metadata.get("general.architecture", "")
    return {name: metadata[key] for name, last in own.items() if (key := f"{architecture}.{last}") in metadata}


def _tensor(header: _Header) -> tuple[str, str, list[int], int]:
    name = header.text(LONGEST_NAME)
    dims = header.whole("I")
    if dims > 8:
        raise Malformed(f"{shown(name)} has {dims} dimensions", _FIX)
    shape = [header.size() for _ in range(dims)]
    kind, offset = header.whole("I"), header.whole("Q")
    elements = elements_of(shape)
    if elements > LARGEST or offset > LARGEST:
        raise Malformed(f"{shown(name)} has a shape or offset that is no size", _FIX)
    data_type, block, size = _TYPES.get(kind, (f"TYPE_{kind}", 1, 0))
    if elements % block:
        raise Malformed(f"{shown(name)} has {elements} elements, and {data_type} packs {block} in a block", _FIX)
    return name, data_type, shape, offset + elements // block * size
