"""Requests that show whether an engine plan computes what its graph computes, at every corner of its optimization profile.

Engines pick other kernels for other batches, so each item is asked alone, in batches of the usual and of the largest size,
among other neighbours, and as every row of one batch. Known faults that this finds: an FP32 engine whose identical rows differ,
and one that loses accuracy at another batch than it was tuned for (NVIDIA/TensorRT issues 4796 and 4813).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from registry.core.engine_profile import InputProfile
from serving.core.made_up import NUMPY_TYPES
from validators.core.contract import Tensor
from validators.core.inputs import Arrays, same_shapes, stack

#: Items that are asked alone too, of each pool.
ALONE: Final = 4


@dataclass(frozen=True)
class PlanRequest:
    """`pool` and `items` say which item each row is, so that the same item is found again in other requests."""

    name: str
    pool: int
    items: tuple[int, ...]
    inputs: Arrays

    @property
    def is_alone(self) -> bool:
        return len(self.items) == 1


def plan_requests(
    tensors: Sequence[Tensor],
    profile: Sequence[InputProfile],
    *,
    has_batch_axis: bool,
    seed: int,
    examples: Sequence[Arrays] = (),
) -> Iterator[PlanRequest]:
    """The requests, those of one item first in each pool. A pool is items of equal shapes: the `examples` (without a batch axis),
    or where there are none, made-up ones at the profile's usual, largest and least dims.
    """
    batches = [min(one.opt[0] for one in profile), min(one.max[0] for one in profile)] if has_batch_axis else [1, 1]
    random = np.random.default_rng(seed)
    if examples:
        pools = [("of the examples", pool) for pool in _by_shapes(examples)]
    else:
        pools = list(_made_up(tensors, profile, max(ALONE, batches[1]), random, has_batch_axis=has_batch_axis))
    for at, (where, items) in enumerate(pools):
        for name, chosen in _choices(len(items), batches, random):
            inputs = stack([items[one] for one in chosen], has_batch_axis=has_batch_axis)
            yield PlanRequest(f"{name} {where}", at, chosen, inputs)


def outside_of(profile: Sequence[InputProfile], example: Arrays, *, has_batch_axis: bool) -> str:
    """Why an example (without a batch axis) does not fit the profile; empty where it does."""
    for one in profile:
        least, most = (one.min[1:], one.max[1:]) if has_batch_axis else (one.min, one.max)
        shape = example[one.input].shape
        if len(shape) != len(most) or any(not a <= b <= c for a, b, c in zip(least, shape, most, strict=True)):
            return f"{one.input} has the shape {list(shape)}, and the plan takes {list(least)} to {list(most)}"
    return ""


def _choices(count: int, batches: list[int], random: np.random.Generator) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(what is asked, in words; which items) for a pool of `count` items."""
    usual, largest = batches
    for at in range(min(count, ALONE)):
        yield f"item {at + 1} alone,", (at,)
    if largest == 1:
        return
    for size in sorted({usual, largest} - {1}):
        yield f"a batch of {size},", tuple(at % count for at in range(size))
    mixed = tuple(int(at) % count for at in random.permutation(largest))
    yield f"a batch of {largest} in another order,", mixed
    yield f"a batch of {largest} equal rows,", (0,) * largest


def _by_shapes(items: Sequence[Arrays]) -> list[list[Arrays]]:
    pools: list[list[Arrays]] = []
    for item in items:
        fitting = next((pool for pool in pools if same_shapes(pool[0], item)), None)
        if fitting is None:
            pools.append([item])
        else:
            fitting.append(item)
    return pools


def _made_up(
    tensors: Sequence[Tensor],
    profile: Sequence[InputProfile],
    count: int,
    random: np.random.Generator,
    *,
    has_batch_axis: bool,
) -> Iterator[tuple[str, list[Arrays]]]:
    known: list[Mapping[str, tuple[int, ...]]] = []
    for name, which in (("usual", "opt"), ("largest", "max"), ("least", "min")):
        dims = {one.input: getattr(one, which)[1 if has_batch_axis else 0 :] for one in profile}
        if dims not in known:
            known.append(dims)
            items = [
                {one.name: _values(one.data_type, dims[one.name], random) for one in tensors} for _ in range(count)
            ]
            yield f"at the {name} dims", items


def _values(data_type: str, shape: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[Any]:
    """Numbers around 0; of integers 0 and 1, which are token numbers, masks and indices to nearly every graph, not all 0."""
    kind = NUMPY_TYPES[data_type]
    if kind.startswith("float"):
        return random.normal(0.0, 1.0, shape).astype(kind)
    values = random.integers(0, 2, shape)
    values.reshape(-1)[:1] = 1
    return values.astype(kind)
