"""The header of a safetensors file: the tensors' names, data types, shapes and places.

Source: the safetensors format: 8 bytes of little-endian header length, a JSON header that begins with `{`, then the
tensors' bytes, which the offsets must cover wholly, without holes or overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from registry.core.formats import jsons
from registry.core.formats.findings import LARGEST, MOST_TENSORS, Malformed, checked_tensors, elements_of, shown
from registry.core.formats.window import Window

#: The format allows 100 MB; the largest headers of published files have a few.
LONGEST_HEADER: Final = 32 << 20
#: Entries of the metadata that are kept, in the order of the file. Training tools write about a hundred.
MOST_METADATA: Final = 1000
_FIX: Final = "Write it again with a safetensors library, or send the whole file."
#: Data type → bits of one element.
BITS: Final[dict[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8"), 8),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}


def read(window: Window) -> dict[str, Any]:
    """{"tensors", "metadata"}; metadata has the short entries, at most MOST_METADATA. Raises Malformed."""
    length = window.number("<Q")
    if length > LONGEST_HEADER or length > window.size - 8:
        raise Malformed(f"its header claims {length} bytes of a file of {window.size}", _FIX)
    text = window.read(length)
    if not text.startswith(b"{"):
        raise Malformed("its header does not begin with {", _FIX)
    header = jsons.parse(text, "its header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Malformed("__metadata__ is not an object of texts", _FIX)
    if len(header) > MOST_TENSORS:
        raise Malformed(f"it names {len(header)} tensors, more than {MOST_TENSORS}", "Split the file.")
    found, places = {}, []
    for name, entry in header.items():
        data_type, shape, start, end = _entry(name, entry)
        found[name] = (data_type, shape)
        places.append((start, end, name))
    _covered(sorted(places), window.size - 8 - length)
    short = {name: text for name, text in metadata.items() if len(name) <= 200 and len(text) <= 200}
    return {"tensors": checked_tensors(found), "metadata": dict(islice(short.items(), MOST_METADATA))}


def bytes_of(tensors: Sequence[Sequence[Any]]) -> int:
    """Bytes of the tensors that `read` listed."""
    return sum((elements_of(shape) * BITS[data_type] + 7) // 8 for _, data_type, shape in tensors)


def _entry(name: str, entry: Any) -> tuple[str, list[int], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Malformed(f"{shown(name)} does not have dtype, shape and data_offsets", _FIX)
    data_type, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if data_type not in BITS if isinstance(data_type, str) else True:
        raise Malformed(f"{shown(name)} has the unknown data type {shown(str(data_type))}", _FIX)
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2 or len(shape) > 32:
        raise Malformed(f"{shown(name)} has a shape or data_offsets that are not sizes", _FIX)
    start, end = offsets
    if (end - start) * 8 != elements_of(shape) * BITS[data_type]:
        raise Malformed(
            f"{shown(name)} is {data_type} {shape}, which is not the {end - start} bytes of its data_offsets", _FIX
        )
    return data_type, shape, start, end


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and 0 <= one <= LARGEST for one in value)


def _covered(places: list[tuple[int, int, str]], size: int) -> None:
    at = 0
    for start, end, name in places:
        if start != at:
            what = "overlaps the one before it" if start < at else f"leaves a hole before byte {start}"
            raise Malformed(f"{shown(name)} {what}", _FIX)
        at = end
    if at != size:
        raise Malformed(f"its tensors take {at} bytes, and {size} follow the header", _FIX)
