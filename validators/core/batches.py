"""Which items share a request: in the set's order, in batches that are full, and in ones of random size and company.

A batch is a tuple of positions. Only items of equal shapes share one; `shapes` has something that is equal for those, by position.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

Batch = tuple[int, ...]


def in_order(shapes: Sequence[Hashable], size: int) -> list[Batch]:
    """Runs of at most `size` neighbours."""
    batches: list[Batch] = []
    start = 0
    for at in range(1, len(shapes) + 1):
        if at == len(shapes) or at - start == size or shapes[at] != shapes[start]:
            batches.append(tuple(range(start, at)))
            start = at
    return batches


def full(positions: Sequence[int], shapes: Sequence[Hashable], size: int) -> list[Batch]:
    """Batches of just `size`. Where there are too few items they come again, so that none is asked in a smaller one."""
    batches: list[Batch] = []
    for group in _alike(positions, shapes):
        for start in range(0, len(group), size):
            batches.append(tuple(group[(start + step) % len(group)] for step in range(size)))
    return batches


def at_random(positions: Sequence[int], shapes: Sequence[Hashable], size: int, *, seed: int) -> list[Batch]:
    """Each item once, in an order and in batches of sizes that chance draws, up to `size` and to a half of them."""
    random = np.random.default_rng(seed)
    batches: list[Batch] = []
    for group in _alike(positions, shapes):
        left = [group[int(at)] for at in random.permutation(len(group))]
        most = max(1, min(size, -(-len(group) // 2)))
        while left:
            count = int(random.integers(1, most + 1))
            batches.append(tuple(left[:count]))
            left = left[count:]
    return batches


def _alike(positions: Sequence[int], shapes: Sequence[Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for at in positions:
        groups.setdefault(shapes[at], []).append(at)
    return list(groups.values())
