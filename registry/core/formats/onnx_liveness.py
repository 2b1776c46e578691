"""Memory that the tensors between an ONNX graph's nodes need while it runs, as a function of the graph's free dimensions.

A tensor lives from the node that makes it to the last node that reads it; inputs and outputs of the graph live throughout. Nodes
run in the order of the file, which must be topological (onnx docs/IR.md, "Graphs"). Buffers that a runtime reuses in place are
counted twice, so that the peak is high for element-wise nodes. A tensor without a stated shape is counted in `unsized` and adds
nothing: the peak is then a lower bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from registry.core.formats.findings import LARGEST

#: Names of one graph's nodes that are followed. Graphs of large language models have about 40,000.
MOST_NAMES: Final = 200_000
#: Distinct products of free dimensions, and peaks, that are kept of one graph.
MOST_TERMS: Final = 16
MOST_PEAKS: Final = 8
#: Inputs that are named for one free dimension.
MOST_PLACES: Final = 8
#: A dimension is a size, or the name of a free dimension ("" without a name).
Shape = Sequence[int | str]
#: The free dimensions of a tensor, sorted; () if its size is fixed.
_Term = tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """One node of the graph. `is_plain`: no other graph lies in its attributes."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    is_plain: bool = True
    is_constant: bool = False


class _Live:
    def __init__(self, shapes: Mapping[str, tuple[int, Shape]]) -> None:
        self._shapes = shapes
        self._terms: set[_Term] = set()
        self.live, self._alive = Counter[_Term](), dict[str, tuple[_Term, int]]()
        self.peaks: list[dict[_Term, int]] = []
        self.unsized = 0

    def begin(self, name: str) -> None:
        """A tensor comes to life."""
        if not name or name in self._alive:
            return
        size = self._size(name)
        if size is None:
            self.unsized += 1
            return
        self._alive[name] = size
        self.live[size[0]] += size[1]

    def end(self, name: str) -> None:
        if name in self._alive:
            term, bits = self._alive.pop(name)
            self.live[term] -= bits

    def record(self) -> None:
        """Keeps the live sizes of this moment, unless a kept peak is at least as large in every term."""
        now = {term: bits for term, bits in self.live.items() if bits}
        if any(all(bits <= peak.get(term, 0) for term, bits in now.items()) for peak in self.peaks):
            return
        self.peaks = [p for p in self.peaks if not all(bits <= now.get(term, 0) for term, bits in p.items())]
        if len(self.peaks) == MOST_PEAKS:
            other = self.peaks.pop()
            now = {term: max(now.get(term, 0), other.get(term, 0)) for term in {*now, *other}}
        self.peaks.append(now)

    def _size(self, name: str) -> tuple[_Term, int] | None:
        bits, shape = self._shapes.get(name, (-1, ()))
        for size in shape:
            bits *= size if isinstance(size, int) else 1
        term = tuple(sorted(size for size in shape if isinstance(size, str)))
        if not 0 <= bits <= LARGEST or "" in term:
            return None
        if len(self._terms | {term}) > MOST_TERMS:
            return None
        self._terms.add(term)
        return term, bits


def activations(
    inputs: Sequence[str], outputs: Sequence[str], shapes: Mapping[str, tuple[int, Shape]], nodes: Sequence[Node]
) -> dict[str, Any]:
    """{"peaks": [[[bytes, [free dimension, …]], …], …], "free": {name: [[input, axis], …]}, "tensors", "unsized"}.

    `shapes`: name → (bits of one element, shape); a name without an entry has no stated shape. The need is the largest of the peaks,
    each the sum of its bytes times its free dimensions.
    """
    graph, kept, last = _Live(shapes), {*inputs, *outputs}, dict[str, int]()
    for at, node in enumerate(nodes):
        last |= dict.fromkeys((*node.inputs, *node.outputs), at)
    made = [name for node in nodes if not node.is_constant for name in node.outputs if name]
    for name in inputs:
        graph.begin(name)
    graph.record()
    for at, node in enumerate(nodes):
        graph.unsized += not node.is_plain
        if not node.is_constant:
            for name in node.outputs:
                graph.begin(name)
            graph.record()
        for name in {*node.inputs, *node.outputs} - kept:
            if last[name] == at:
                graph.end(name)
    if any(bits > LARGEST for peak in graph.peaks for bits in peak.values()):
        return {"peaks": [], "free": {}, "tensors": len(made), "unsized": len(made)}
    return {
        "peaks": [[[-(-bits // 8), list(term)] for term, bits in sorted(peak.items())] for peak in graph.peaks],
        "free": _places(inputs, shapes, {name for peak in graph.peaks for term in peak for name in term}),
        "tensors": len(inputs) + len(made),
        "unsized": graph.unsized,
    }


def _places(
    inputs: Sequence[str], shapes: Mapping[str, tuple[int, Shape]], wanted: set[str]
) -> dict[str, list[list[Any]]]:
    """Free dimension → the inputs and axes that decide its size."""
    found: dict[str, list[list[Any]]] = {}
    for name in inputs:
        for axis, size in enumerate(shapes[name][1] if name in shapes else ()):
            if isinstance(size, str) and size in wanted and len(found.setdefault(size, [])) < MOST_PLACES:
                found[size].append([name, axis])
    return dict(sorted(found.items()))
