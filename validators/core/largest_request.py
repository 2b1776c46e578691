"""Requests of as many bytes as a release says that one may have, the envelope's `max_request_bytes`, of one less, and beyond.

Gateways refuse what is larger, and a server that is asked without one knows nothing of that limit. So the largest request that they
let through must be answered, where what else is declared allows it; one beyond may end either way, as everything beyond a limit.
Where texts and sizes are declared so small that none of them makes such a request, callers can send it all the same: it may end
either way, too. After each of them the server must answer as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from validators.core.contract import Tensor
from validators.core.edges import Edge, Expected, Outcome
from validators.core.inputs import Arrays, filled, longest_item, stack, text_input

#: Bytes of a request, as gateways count them.
SizeOf = Callable[[Arrays], int]
_WORD = b"the "


@dataclass(frozen=True)
class ByteEdges:
    """What to ask; and what is known without asking: an outcome that is wrong, or why there is nothing to ask."""

    edges: tuple[Edge, ...] = ()
    known: tuple[Outcome, ...] = ()
    why_none: str = ""


@dataclass(frozen=True)
class _Growing:
    """Requests that grow with a whole number. `declared` is the largest of them that the release declares, None for any number;
    `most` the largest that is made. `made` and `data_bytes`, about how many its data has, are by number and items."""

    made: Callable[[int, int], Arrays]
    data_bytes: Callable[[int, int], float]
    declared: int | None = None
    most: float = math.inf
    items: int = 1

    def at(self, number: int) -> Arrays:
        return self.made(number, self.items)

    def most_within(self, limit: int, size_of: SizeOf) -> int:
        """The number of the largest request of no more than `limit` bytes, or of nearly the largest; 0 where there is none."""
        besides = size_of(self.at(1)) - self.data_bytes(1, self.items)
        while number := self._most_data(limit - besides):
            needed = size_of(self.at(number)) - self.data_bytes(number, self.items)
            if needed <= besides:
                break
            besides = needed
        return number

    def _most_data(self, most: float) -> int:
        low, high = 0, int(min(self.most, max(most, 1.0))) + 1  # each number adds a byte at least
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.data_bytes(middle, self.items) <= most else (low, middle)
        return low


def byte_edges(
    tensors: Sequence[Tensor], example: Arrays, limits: Mapping[str, Any], *, max_batch_size: int, size_of: SizeOf
) -> ByteEdges:
    """At `max_request_bytes`, at one byte less and beyond; nothing where it is not declared. `example` is one item."""
    limit = limits.get("max_request_bytes")
    if limit is None:
        return ByteEdges()
    ordinary = stack([example], has_batch_axis=max_batch_size > 0)
    if (least := size_of(ordinary)) > limit:
        says = f"it has {least} bytes, and gateways let {limit} through, the envelope's max_request_bytes"
        return ByteEdges(known=(Outcome(Edge("an ordinary request", ordinary, Expected.ANSWERED), "rejected", says),))
    growing = _growing(tensors, example, limits, max_batch_size)
    if growing.most < math.inf and (largest := size_of(growing.at(int(growing.most)))) < limit - 1:
        return ByteEdges(
            why_none=f"a request of the declared inputs has {largest} bytes at most, and max_request_bytes is {limit}"
        )
    return ByteEdges(tuple(_edges(growing, limit, size_of)))


def _edges(growing: _Growing, limit: int, size_of: SizeOf) -> Iterator[Edge]:
    def edge(number: int, expected: Expected) -> Edge:
        request = growing.at(number)
        return Edge(
            f"a request of {size_of(request)} bytes, of which max_request_bytes allows {limit},", request, expected
        )

    numbers = sorted({growing.most_within(most, size_of) for most in (limit - 1, limit)} - {0})
    for number in numbers:
        is_promised = growing.declared is None or number <= growing.declared
        yield edge(number, Expected.ANSWERED if is_promised else Expected.EITHER)
    beyond = max(numbers, default=0) + 1
    while beyond <= growing.most and size_of(growing.at(beyond)) <= limit:
        beyond += 1
    if beyond <= growing.most:
        yield edge(beyond, Expected.EITHER)


def _growing(tensors: Sequence[Tensor], example: Arrays, limits: Mapping[str, Any], max_batch_size: int) -> _Growing:
    """By its text, where it is plain which input that is; by its sizes, where `max_input_dims` says how they fit each other; else by
    its items. As many items as the largest that are declared need to be so large, where a batch may have them; else one."""
    longest, used = longest_item(tensors, limits, example)
    text = text_input(tensors)
    if text and example[text].size == 1:
        made = _by_text(example, text, max_batch_size)
        declared = len(longest[text].item()) if "max_input_tokens" in used else None
    elif "max_input_dims" in used:
        sizes = {
            tensor.name: [longest[tensor.name].shape[at] for at, own in enumerate(tensor.dims) if own == -1]
            for tensor in tensors
        }
        declared = max(size for own in sizes.values() for size in own)
        made = _by_sizes(tensors, example, longest, declared, max_batch_size)
    else:
        return _by_items(example, max_batch_size)
    return _in_batches(replace(made, declared=declared), int(limits["max_request_bytes"]), max_batch_size)


def _by_text(example: Arrays, text: str, max_batch_size: int) -> _Growing:
    """By the bytes of the text."""

    def made(number: int, items: int) -> Arrays:
        words = (_WORD * (number // len(_WORD) + 1))[:number]
        item = {**example, text: np.full(example[text].shape, words, dtype=object)}
        return stack([item] * items, has_batch_axis=max_batch_size > 0)

    return _Growing(made, lambda number, items: number * items)


def _by_sizes(
    tensors: Sequence[Tensor], example: Arrays, longest: Arrays, declared: int, max_batch_size: int
) -> _Growing:
    """By the largest of its sizes; the others keep their proportion to it."""

    def sizes(number: int) -> dict[str, list[int]]:
        return {
            one.name: [
                max(1, round(number * most / declared)) if own == -1 else own
                for own, most in zip(one.dims, longest[one.name].shape, strict=True)
            ]
            for one in tensors
        }

    def made(number: int, items: int) -> Arrays:
        item = {name: filled(example[name], shape) for name, shape in sizes(number).items()}
        return stack([item] * items, has_batch_axis=max_batch_size > 0)

    each = {name: _bytes_of(array) / max(1, array.size) for name, array in example.items()}
    return _Growing(
        made, lambda number, items: items * sum(each[name] * math.prod(shape) for name, shape in sizes(number).items())
    )


def _by_items(example: Arrays, max_batch_size: int) -> _Growing:
    def made(number: int, items: int) -> Arrays:
        return stack([example] * number, has_batch_axis=max_batch_size > 0)

    most, each = max(1, max_batch_size), sum(map(_bytes_of, example.values()))
    return _Growing(made, lambda number, items: number * each, declared=most, most=most)


def _in_batches(growing: _Growing, limit: int, max_batch_size: int) -> _Growing:
    if growing.declared is None:
        return growing
    items = math.ceil(limit / growing.data_bytes(growing.declared, 1))
    return replace(growing, items=items) if 1 <= items <= max_batch_size else growing


def _bytes_of(array: npt.NDArray[Any]) -> int:
    """About as many as the protocol has of it: four before each text."""
    return sum(4 + len(text) for text in array.ravel()) if array.dtype == object else int(array.nbytes)
