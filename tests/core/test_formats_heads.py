"""Parts of a file in the place of the whole, and graphs that are large: the same facts, by a bounded number of reads."""

from __future__ import annotations

import io

import pytest
from onnx import TensorProto, helper

from registry.core.formats import inspect
from registry.core.formats.heads import FileParts, inspect_head, joined
from registry.core.formats.window import JUMP_BYTES, MOST_FETCHES

X, Y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y"))
PATH = "artifact/model.onnx"


def graph_of(nodes: int, weights: int = 0, floats: int = 0) -> bytes:
    made = [
        helper.make_node("Add", [f"h{i}", f"w{i}"], [f"h{i + 1}"], name=f"/layer.{i}/Add", axis=1) for i in range(nodes)
    ]
    tensors = [
        helper.make_tensor(f"w{i}", TensorProto.FLOAT, [floats], bytes(4 * floats), raw=True) for i in range(weights)
    ]
    graph = helper.make_graph(made, "g", [X], [Y], initializer=tensors)
    return helper.make_model(graph).SerializeToString()


def test_a_graph_of_many_nodes_is_read_from_its_first_bytes_too() -> None:
    """12,000 nodes: with one read for each byte of a head, 20,000 reads were over after 5,000."""
    data = graph_of(12_000)
    found = inspect_head(PATH, data, len(data))
    assert found is not None and found == inspect(PATH, io.BytesIO(data), len(data))
    assert found.problems == () and found.facts["nodes"] == 12_000


class Counted(io.BytesIO):
    """A file that counts the bytes that were read of it."""

    count = fetches = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count, self.fetches = self.count + len(data), self.fetches + 1
        return data


def test_large_weights_cost_a_short_read_each() -> None:
    """A chunk of 64 KiB for each would end the inspection at 4,096 of them."""
    data = graph_of(1, weights=300, floats=50_000)
    file = Counted(data)
    found = inspect(PATH, file, len(data))
    assert found.problems == () and len(found.facts["tensors"]) == 300
    assert file.fetches < 320 < MOST_FETCHES and file.count < 320 * JUMP_BYTES + (1 << 17)


def test_a_graph_is_read_from_everything_but_its_weights() -> None:
    size = 400_000
    data = graph_of(40, weights=3, floats=size // 4)
    ranges, at = [(0, 1 << 16)], 1 << 16  # the first bytes are always there
    while (zeros := data.find(bytes(size // 2), at)) >= 0:
        ranges.append((at, max(at, zeros)))
        at = next(i for i in range(zeros, len(data)) if data[i])
    pieces = [(start, data[start:end]) for start, end in [*ranges, (at, len(data))]]
    parts = joined(pieces)
    assert parts is not None and parts.size_bytes < 100_000 < len(data)
    assert inspect_head(PATH, parts, len(data)) == inspect(PATH, io.BytesIO(data), len(data))
    assert inspect_head(PATH, FileParts(parts.pieces[:1]), len(data)) is None  # a missing part is no mistake


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        ([(4, b"ef"), (0, b"abcd")], ((0, b"abcdef"),)),
        ([(0, b"ab"), (4, b"ef")], ((0, b"ab"), (4, b"ef"))),
        ([(0, b"abc"), (2, b"cd")], None),
        ([(0, b""), (3, b"d")], ((3, b"d"),)),
    ],
)
def test_neighbours_are_joined_and_what_overlaps_is_refused(
    pieces: list[tuple[int, bytes]], wanted: tuple[tuple[int, bytes], ...] | None
) -> None:
    made = joined(pieces)
    assert (made and made.pieces) == wanted
