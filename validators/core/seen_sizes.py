"""How large users' requests were, and which examples stand for them: shares of sizes alone, nothing of what was asked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isqrt

import numpy as np

from serving.traffic.core.buckets import SIZE_EDGES

#: Fewer requests do not tell what users send.
LEAST_SEEN = 1000


@dataclass(frozen=True)
class SeenSizes:
    """Requests by size of body: `counts` up to each of `SIZE_EDGES`, the last larger than all; when and where they came."""

    counts: tuple[int, ...]
    since_at: datetime
    until_at: datetime
    environment: str = ""

    @property
    def requests(self) -> int:
        return sum(self.counts)


def class_of(size_bytes: int) -> int:
    """The place among `SeenSizes.counts` of a body of so many bytes."""
    return bisect_left(SIZE_EDGES, size_bytes)


def aim_of(place: int) -> int:
    """Bytes in the middle of a class, by ratio; twice the last edge for what is larger than all."""
    edges = (SIZE_EDGES[0] // 4, *SIZE_EDGES, 4 * SIZE_EDGES[-1])
    return isqrt(edges[place] * edges[place + 1])


def allotted(counts: Sequence[int], places: int) -> list[int]:
    """`places` dealt out in the shares of `counts`, the sum of which is more than 0, by largest remainder."""
    whole = [divmod(count * places, sum(counts)) for count in counts]
    rest = places - sum(quotient for quotient, _ in whole)
    first = sorted(range(len(counts)), key=lambda at: (-whole[at][1], at))[:rest]
    return [quotient + (at in first) for at, (quotient, _) in enumerate(whole)]


def drawn(
    classes: Sequence[int], counts: Sequence[int], places: int, *, taken: Sequence[int] = (), seed: int
) -> list[int]:
    """Which examples to send, by place in `classes`, so that their classes have the shares of `counts`.

    `taken`: the classes of what is sent besides, which counts towards the shares. Examples of a class come in an order of
    chance, each as often as any other but for one time. Nothing is drawn where no example is of a class that is wanted.
    """
    shares = [count if at in {*classes, *taken} else 0 for at, count in enumerate(counts)]
    wanted = allotted(shares, places + len(taken)) if sum(shares) else shares
    left = [max(0, one - taken.count(at)) if at in classes else 0 for at, one in enumerate(wanted)]
    if not sum(left):
        return []
    random, chosen = np.random.default_rng(seed), list[int]()
    for place, count in enumerate(allotted(left, places)):
        order = random.permutation([at for at, own in enumerate(classes) if own == place]).tolist()
        chosen += [order[at % len(order)] for at in range(count)]
    return chosen


def unseen_frac(classes: Sequence[int], counts: Sequence[int]) -> float:
    """The share of the counted requests that are of a class without an example, 0 to 1."""
    return sum(count for at, count in enumerate(counts) if at not in classes) / sum(counts)
