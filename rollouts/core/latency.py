"""How fast both arms answered, as counts between fixed edges: for people to look at, never judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Upper edges of the classes in µs, some of those that gateways count by (`serving.traffic.core.buckets`). One more class lies
#: above the last.
EDGES_US: tuple[int, ...] = (
    1_000, 2_000, 3_000, 5_000, 7_500, 10_000, 15_000, 20_000, 30_000, 50_000, 75_000, 100_000, 150_000, 250_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000, 30_000_000,
)  # fmt: skip
CLASSES = len(EDGES_US) + 1
#: A window is so long while a rollout is young, and a share of its age later: some hundred windows tell a month.
SHORTEST_S, OF_AGE = 5.0, 1 / 60

#: First attempts by class: below the first edge, between the first and the second, …, above the last.
Classes = tuple[int, ...]
NOTHING: Classes = (0,) * CLASSES


def classes_of(under: Mapping[int, int], timed: int) -> Classes:
    """From cumulative counts under edges, and of all, to counts by class. Nothing counted → zeros."""
    counts, before = [], 0
    for edge in EDGES_US:
        now = max(before, under.get(edge, before))
        counts.append(now - before)
        before = now
    return (*counts, max(0, timed - before))


def added(first: Sequence[int], then: Sequence[int]) -> Classes:
    return tuple(one + other for one, other in zip(first, then, strict=True))


def since(before: Classes, now: Classes) -> Classes:
    """Added counts; empty if a class fell, since a counter that restarts loses them."""
    found = tuple(one - other for one, other in zip(now, before, strict=True))
    return NOTHING if min(found) < 0 else found


def window_s(age_s: float) -> float:
    """How long the present window of a rollout of this age is, in seconds."""
    return max(SHORTEST_S, age_s * OF_AGE)


@dataclass(frozen=True)
class Seen:
    """What one gateway had counted of both arms, since its `epoch` began."""

    epoch: str
    candidate: Classes
    stable: Classes


@dataclass(frozen=True)
class OpenWindow:
    """The window that is being filled. `seen` are the last readings by gateway; instants are seconds since the epoch (UTC)."""

    from_at: float
    at: float
    candidate: Classes = NOTHING
    stable: Classes = NOTHING
    seen: Mapping[str, Seen] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(self.candidate) and not any(self.stable)

    def after(self, gateway: str, now: Seen, at: float) -> OpenWindow:
        """With one more reading in it. A gateway that was never read brings nothing: its past is not this window's."""
        last, candidate, stable = self.seen.get(gateway), self.candidate, self.stable
        if last is not None:
            base = (last.candidate, last.stable) if last.epoch == now.epoch else (NOTHING, NOTHING)
            candidate = added(candidate, since(base[0], now.candidate))
            stable = added(stable, since(base[1], now.stable))
        return OpenWindow(self.from_at, max(self.at, at), candidate, stable, {**self.seen, gateway: now})

    def begun_anew(self) -> OpenWindow:
        """The next window, which goes on from the same readings."""
        return OpenWindow(self.at, self.at, seen=self.seen)
