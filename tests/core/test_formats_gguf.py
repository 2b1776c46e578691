"""GGUF headers, byte by byte: every kind of value, every block of ggml, and each limit at its edge."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest

from registry.core.formats import inspect

#: ggml_type → name, elements of a block, and the bytes of its parts as the structs of ggml-common.h list them.
BLOCKS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
    28: ("F64", 1, 8), 30: ("BF16", 1, 2),
    # scale, minimum or high bits, then the packed numbers of 32
    2: ("Q4_0", 32, 2 + 16), 3: ("Q4_1", 32, 2 + 2 + 16), 6: ("Q5_0", 32, 2 + 4 + 16), 7: ("Q5_1", 32, 2 + 2 + 4 + 16),
    8: ("Q8_0", 32, 2 + 32), 20: ("IQ4_NL", 32, 2 + 16), 39: ("MXFP4", 32, 1 + 16),
    # the same of 256: scales of sub-blocks, high bits, low bits, scale of the whole
    10: ("Q2_K", 256, 16 + 64 + 2 + 2), 11: ("Q3_K", 256, 32 + 64 + 12 + 2), 12: ("Q4_K", 256, 2 + 2 + 12 + 128),
    13: ("Q5_K", 256, 2 + 2 + 12 + 32 + 128), 14: ("Q6_K", 256, 128 + 64 + 16 + 2), 15: ("Q8_K", 256, 4 + 256 + 32),
    16: ("IQ2_XXS", 256, 2 + 64), 17: ("IQ2_XS", 256, 2 + 64 + 8), 18: ("IQ3_XXS", 256, 2 + 64 + 32),
    19: ("IQ1_S", 256, 2 + 32 + 16), 21: ("IQ3_S", 256, 2 + 64 + 8 + 32 + 4), 22: ("IQ2_S", 256, 2 + 64 + 8 + 8),
    23: ("IQ4_XS", 256, 2 + 2 + 4 + 128), 29: ("IQ1_M", 256, 32 + 16 + 8), 34: ("TQ1_0", 256, 48 + 4 + 2),
    35: ("TQ2_0", 256, 64 + 2),
}  # fmt: skip


def text(value: str, size: str = "<Q") -> bytes:
    return struct.pack(size, len(value.encode())) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    dims = b"".join(struct.pack("<Q", size) for size in shape)
    return text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, offset)


def file(keys: list[bytes] = [], tensors: list[bytes] = [], data: int | None = None, align: int = 32) -> bytes:  # noqa: B006
    """A file of version 3 with so many bytes of data after its header, which ends at a multiple of `align`."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)
    return head if data is None else head + bytes(-len(head) % align) + bytes(data)


def facts(data: bytes) -> dict[str, Any]:
    found = inspect("artifact/m.gguf", io.BytesIO(data), len(data))
    assert found.problems == ()
    return found.facts


def refusal(data: bytes) -> str:
    (problem,) = inspect("artifact/m.gguf", io.BytesIO(data), len(data)).problems
    return problem.message


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_tensor_takes_the_bytes_of_its_blocks(kind: int) -> None:
    name, elements, size = BLOCKS[kind]
    assert facts(file([], [tensor("t", [elements, 2], kind)], 2 * size))["tensors"] == [["t", name, [elements, 2]]]
    assert "its tensors reach to byte" in refusal(file([], [tensor("t", [elements, 2], kind)], 2 * size - 1))
    if elements > 1:
        assert f"{elements + 1} elements, and {name} packs {elements}" in refusal(
            file([], [tensor("t", [elements + 1], kind)], 999)
        )


def test_a_type_of_tomorrow_is_named_by_its_number_and_takes_no_bytes() -> None:
    assert facts(file([], [tensor("t", [7], 99)], 0))["tensors"] == [["t", "TYPE_99", [7]]]


VALUES: list[tuple[int, bytes, Any]] = [
    (0, b"\xff", 255), (1, b"\xff", -1), (2, b"\xff\xff", 65535), (3, b"\xff\xff", -1), (4, b"\xff" * 4, 2**32 - 1),
    (5, b"\xff" * 4, -1), (6, struct.pack("<f", 0.5), "0.5"), (7, b"\x01", True), (8, text("llama"), "llama"),
    (10, struct.pack("<Q", 2**53 - 1), 2**53 - 1), (10, struct.pack("<Q", 2**53), str(2**53)),
    (11, struct.pack("<q", -5), -5), (12, struct.pack("<d", 0.25), "0.25"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "data", "value"), VALUES)
def test_a_value_of_each_kind_and_lists_of_it(kind: int, data: bytes, value: Any) -> None:
    listed = struct.pack("<IQ", kind, 3) + data * 3
    said = facts(file([key("a", kind, data), key("b", 9, listed), key("c", 4, b"\x07\0\0\0")]))["metadata"]
    assert said == {"a": value, "b": {"items": 3}, "c": 7}


def test_lists_of_lists_and_of_unknown_kinds_are_refused() -> None:
    assert "or lists" in refusal(file([key("a", 9, struct.pack("<IQ", 9, 0))]))
    assert "a list holds the unknown type 13" in refusal(file([key("a", 9, struct.pack("<IQ", 13, 0))]))
    assert "a value has the unknown type 13" in refusal(file([key("a", 13, b"")]))


def test_a_list_has_two_million_items_at_most() -> None:
    def listed(count: int) -> bytes:
        return file([key("a", 9, struct.pack("<IQ", 0, count) + bytes(count)), key("b", 7, b"\0")])

    assert facts(listed(2_000_000))["metadata"] == {"a": {"items": 2_000_000}, "b": False}
    assert "a list holds 2000001 items" in refusal(listed(2_000_001))


def test_versions_1_to_3_are_known_and_the_first_counts_in_32_bits() -> None:
    assert "version is 0" in refusal(b"GGUF" + struct.pack("<IQQ", 0, 0, 0))
    assert "version is 4" in refusal(b"GGUF" + struct.pack("<IQQ", 4, 0, 0))
    assert facts(b"GGUF" + struct.pack("<IQQ", 2, 0, 0))["version"] == 2
    first = b"GGUF" + struct.pack("<III", 1, 0, 1) + text("k", "<I") + struct.pack("<II", 4, 9)
    assert facts(first) == {"tensors": [], "metadata": {"k": 9}, "version": 1}
    assert facts(b"GGUF" + struct.pack(">IQQ", 1, 0, 0)[:12])["version"] == 1


def test_counts_are_believed_up_to_their_limits() -> None:
    def claims(tensors: int, keys: int) -> str:
        return refusal(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys))

    for tensors, keys in ((100_001, 0), (0, 1_001)):
        assert f"claims {tensors} tensors and {keys} keys" in claims(tensors, keys)
    for tensors, keys in ((100_000, 0), (0, 1_000)):
        assert "were to follow" in claims(tensors, keys)  # it is read, and ends too early


def test_long_names_and_values_are_cut_and_reading_goes_on_after_them() -> None:
    long = "n" * 1001
    said = facts(file([key(long, 8, text("v" * 201)), key("b", 7, b"\1")], [tensor(long, [1])], 4))
    assert said["metadata"] == {"n" * 1000: "v" * 200, "b": True} and said["tensors"][0][0] == "n" * 1000


def test_a_tensor_has_eight_dimensions_at_most_and_a_size() -> None:
    assert facts(file([], [tensor("t", [1] * 8)], 4))["tensors"] == [["t", "F32", [1] * 8]]
    assert "has 9 dimensions" in refusal(file([], [tensor("t", [1] * 9)], 4))
    for shape, offset in (([2**53], 0), ([2**52, 2], 0), ([0], 2**53)):
        assert "a shape or offset that is no size" in refusal(file([], [tensor("t", shape, 24, offset)], 0))
    for shape, offset in (([2**53 - 1], 0), ([1], 2**53 - 1)):
        assert "its tensors reach to byte" in refusal(file([], [tensor("t", shape, 24, offset)], 0))


def test_two_tensors_of_one_name_are_refused() -> None:
    assert "two of its tensors are called 't'" in refusal(file([], [tensor("t", [1]), tensor("t", [1])], 4))


def test_the_tensor_that_reaches_furthest_counts() -> None:
    pair = [tensor("far", [1], 0, 64), tensor("near", [1])]
    assert len(facts(file([], pair, 68))["tensors"]) == 2
    assert "its tensors reach to byte" in refusal(file([], pair, 67))


@pytest.mark.parametrize("align", [1, 32, 64, 4096])
def test_the_data_begins_where_its_alignment_says(align: int) -> None:
    keys = [] if align == 32 else [key("general.alignment", 4, struct.pack("<I", align))]
    whole = file(keys, [tensor("t", [1])], 4, align)
    assert facts(whole)["tensors"] == [["t", "F32", [1]]]
    assert f"reach to byte {len(whole)}, and it ends at byte {len(whole) - 1}" in refusal(whole[:-1])


def test_an_alignment_is_a_size_up_to_a_mebibyte() -> None:
    def aligned(kind: int, value: bytes) -> bytes:
        return file([key("general.alignment", kind, value)])

    assert facts(aligned(4, struct.pack("<I", 1 << 20)))
    for kind, value in ((4, struct.pack("<I", (1 << 20) + 1)), (4, bytes(4)), (8, text("32"))):
        assert "its general.alignment is no size" in refusal(aligned(kind, value))
