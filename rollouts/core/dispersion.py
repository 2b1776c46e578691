"""How much more bad attempts scatter than independent ones would: what log evidence has to be divided by.

A poisoned batch fails eight attempts at one instant; a busy server makes a row of them slow. Taken for independent they
would prove a fault that is none. Counts are laid into blocks of time, and each block is compared with the one before:
independent counts x of mean m differ by (x - x')^2 / 2 = m on average, clumped ones by more. The ratio is the Fano factor,
and because only neighbours are compared, a share that changes for good (an incident, a fault) is no clump.

The unit that clumps is a server's second. Servers are independent, so their variances add up as their means do: the Fano
factor of a release's counts is that of its servers, and counts by release and second are enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

#: What exceeds chance counts so many times. Source: with 1.5 times a measured dispersion false alarms stay below nominal
#: (decision 6), with the measured one alone they do not always.
SAFETY = 1.5
#: A dispersion shows when it exceeds 1 by this many standard deviations of independent counts, sqrt(3 / blocks), and by
#: what a chance pair or two would add to so few bad attempts. A candidate's first seconds get no more than this for chance.
SIGMAS, MOST_BY_CHANCE, PAIRS = 2.0, 1.0, 3.5
#: Fewer of stable's seconds, fewer of its longer blocks, or less than this left of what was bad long ago, say nothing.
LEAST_BLOCKS, LEAST_LONG_BLOCKS, LEAST_BAD = 3.0, 6.0, 0.5
#: The memory: an hour ago weighs a fiftieth of now.
MEMORY_S = 900.0
#: Blocks of one second show what one instant breaks; longer ones, of so many times `window_s`, what goes on for some seconds.
LONG_WINDOWS = (1, 4, 12)
#: What was counted before a rollout weighs no more than so many bad attempts, and scatters by no more than this, whatever it
#: was: a burst or two of yesterday tell little of now, and stable's own next seconds soon tell more.
HISTORY_BAD, HISTORY_PHI = 30.0, 8.0
#: An incident of all servers is no clump, but its beginning and its end are. In longer blocks the two largest differences
#: are left out for that; in seconds a difference counts as at most what so many average seconds bring, or a clump of 50.
MOST_SECONDS, LONE_CLUMP = 250.0, 50.0


def factor(squares: float, bad: float, blocks: float, most_by_chance: float = math.inf) -> float:
    """The factor, at least 1, to divide log evidence by; 1 while the scatter is what chance alone would show.

    `squares` is the sum of half the squared differences of neighbouring blocks, `bad` what these blocks counted.
    Source of the standard deviation: for Poisson counts of mean m, half the squared differences less the counts have the
    variance 3 m^2 for each block.
    """
    if bad < LEAST_BAD or squares <= bad:
        return 1.0
    by_chance = min(most_by_chance, SIGMAS * math.sqrt(3 / max(1.0, blocks))) + PAIRS / bad
    excess = squares / bad - 1
    return 1 + SAFETY * excess if excess > by_chance else 1.0


Counter = tuple[float, float, int, int, float, float]


class Series(NamedTuple):
    """One arm's attempts in blocks of `width_s` seconds, and for each counter its bad ones.

    `counters` are (squares, bad, bad in the block before, bad in the open block, the largest square, the next): the two largest
    are not in `squares`. Sums are over compared blocks, the older weighing less. `before` and `open` are attempts; -1 before
    the first block that can be compared with. A tuple, since a tick makes dozens of them.
    """

    block: int = -1
    blocks: float = 0.0
    attempts: float = 0.0
    before: int = -1
    open: int = 0
    counters: tuple[Counter, ...] = ()

    def after(self, at: float, width_s: float, attempts: int, bad: Sequence[int]) -> Series:
        """With the counts that were read at `at` (seconds)."""
        block, old = int(at // width_s), self.counters
        if block == self.block:
            grown = tuple([(s, x, x0, x1 + more, t, u) for (s, x, x0, x1, t, u), more in zip(old, bad, strict=True)])
            return Series(self.block, self.blocks, self.attempts, self.before, self.open + attempts, grown)
        if self.block < 0:
            known = old or tuple([(0.0, 0.0, 0, 0, 0.0, 0.0)] * len(bad))
            begun = tuple([(s, x, 0, x1, t, u) for (s, x, _, _, t, u), x1 in zip(known, bad, strict=True)])
            return self._replace(block=block, open=attempts, counters=begun)
        if self.before < 0:
            moved = tuple([(s, x, x1, more, t, u) for (s, x, _, x1, t, u), more in zip(old, bad, strict=True)])
            return Series(block, self.blocks, self.attempts, self.open, attempts, moved)
        kept = 1 - width_s / MEMORY_S
        closed = tuple([self._closed(one, more, kept, is_long=width_s > 1) for one, more in zip(old, bad, strict=True)])
        return Series(block, self.blocks * kept + 1, self.attempts * kept + self.open, self.open, attempts, closed)

    def _closed(self, counter: Counter, more: int, kept: float, *, is_long: bool) -> Counter:
        squares, bad, before, now, top, second = counter
        new = self._half_square(bad, before, now)
        if not is_long:
            return squares * kept + min(new, self._most(bad, before)), bad * kept + now, now, more, 0.0, 0.0
        least, second, top = sorted((new, top * kept, second * kept))
        return squares * kept + least, bad * kept + now, now, more, top, second

    def _half_square(self, bad: float, before: int, now: int) -> float:
        """Half the squared difference of two neighbours, less what their loads explain."""
        seen = self.attempts + self.before
        share = (bad + before) / seen if seen > 0 else 0.0
        return 0.5 * (now - before - share * (self.open - self.before)) ** 2

    def _most(self, bad: float, before: int) -> float:
        return max(LONE_CLUMP**2 / 2, MOST_SECONDS * (bad + before) / (self.blocks + 1))

    def as_history(self) -> Series:
        """With what was counted until now weighing no more than history may.

        Blocks weigh as little as bad attempts, so that the first seconds of the rollout are not taken to be better known than
        they are.
        """
        share = min([1.0, *(HISTORY_BAD / bad for _, bad, *_ in self.counters if bad > 0)])
        counters = [
            (min(HISTORY_PHI, squares / max(bad, 1e-9)) * share * bad, share * bad, 0, 0, 0.0, 0.0)
            for squares, bad, *_ in self.counters
        ]
        blocks = max(share * self.blocks, min(self.blocks, LEAST_LONG_BLOCKS))
        return Series(-1, blocks, share * self.attempts, -1, 0, tuple(counters))

    def phi(self, counter: int) -> float:
        """The dispersion over finished seconds."""
        squares, bad, *_ = self.counters[counter]
        return factor(squares, bad, self.blocks) if self.blocks >= LEAST_BLOCKS else 1.0

    def phi_long(self, counter: int) -> float:
        """The dispersion over finished longer blocks."""
        squares, bad, *_ = self.counters[counter]
        if self.blocks < LEAST_LONG_BLOCKS:
            return 1.0
        rest = 1 - 2 / self.blocks  # without the two largest
        return factor(squares, bad * rest, self.blocks * rest)

    def phi_now(self, counter: int) -> float:
        """The dispersion over seconds, the open one as if it ended now: so a clump is known in the tick that brings it.

        A second that brings many times the usual attempts is one caller's burst, and may count for as much more.
        """
        squares, bad, before, now, *_ = self.counters[counter]
        usual = self.attempts / self.blocks if self.blocks >= LEAST_BLOCKS else 0.0
        surge = max(1.0, self.open / usual) if usual else 1.0
        new = min(self._half_square(bad, before, now), self._most(bad, before) * surge**2)
        return factor(squares + new, bad + now, self.blocks + 1, MOST_BY_CHANCE)

    def to_json(self) -> list[Any]:
        head = [self.block, _short(self.blocks), _short(self.attempts), self.before, self.open]
        return head + [_short(number) for counter in self.counters for number in counter]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Series:
        block, blocks, attempts, before, now, *rest = value
        counters = tuple((s, x, int(x0), int(x1), t, u) for s, x, x0, x1, t, u in batched(rest))
        return cls(block, blocks, attempts, before, now, counters)


def batched(numbers: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Six at a time: a counter."""
    return (numbers[i : i + 6] for i in range(0, len(numbers), 6))


def _short(value: float) -> float:
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short


@dataclass(frozen=True)
class Dispersion:
    """The dispersion of one guard's counters in each arm, the largest over the lengths of block.

    Stable shows what is usual, at all lengths, for the candidate too. Of the candidate itself only single seconds count: the
    clump that nobody has seen before tempers itself, while a fault that stays is soon no clump any more.
    """

    names: tuple[str, ...] = ()
    candidate: Series = field(default_factory=lambda: Series(before=0))
    stable: tuple[Series, ...] = (Series(),) * (1 + len(LONG_WINDOWS))

    def after(
        self, at: float, bad: Mapping[str, tuple[int, int]], candidate: int, stable: int, *, window_s: float
    ) -> Dispersion:
        """With counts read at `at` (seconds): by name the bad attempts of both arms, and all of them."""
        names = tuple(bad)
        if names != self.names and self.names:
            return Dispersion().after(at, bad, candidate, stable, window_s=window_s)
        of_stable = [xb for _, xb in bad.values()]
        return Dispersion(
            names,
            self.candidate.after(at, 1.0, candidate, [xc for xc, _ in bad.values()]),
            tuple(
                [
                    one.after(at, width, stable, of_stable)
                    for one, width in zip(self.stable, widths_s(window_s), strict=True)
                ]
            ),
        )

    def as_history(self) -> Dispersion:
        """For a new rollout: earlier counts weigh little."""
        return replace(self.without_candidate(), stable=tuple([one.as_history() for one in self.stable]))

    def without_candidate(self) -> Dispersion:
        """With nothing known of the candidate."""
        return replace(self, candidate=Series(before=0, counters=((0.0, 0.0, 0, 0, 0.0, 0.0),) * len(self.names)))

    @cached_property
    def phis(self) -> dict[str, tuple[float, float]]:
        """By counter, what to divide the candidate's counts and stable's by."""
        seconds, *longer = self.stable
        found = {}
        for i, name in enumerate(self.names):
            usual = max(seconds.phi(i), *[one.phi_long(i) for one in longer])
            found[name] = (max(self.candidate.phi_now(i), usual), usual)
        return found

    def phi(self, name: str) -> float:
        """One counter's factor over both arms; 1 where it was never counted."""
        return self.phis.get(name, (1.0, 1.0))[0]

    def phi_stable(self, name: str) -> float:
        """Stable's own."""
        return self.phis.get(name, (1.0, 1.0))[1]

    def to_json(self) -> list[Any]:
        return [list(self.names), self.candidate.to_json(), *[one.to_json() for one in self.stable]]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Dispersion:
        """Nothing known for a state of another shape."""
        if len(value) != 3 + len(LONG_WINDOWS) or not isinstance(value[0], list):
            return cls()
        names, candidate, *stable = value
        return cls(tuple(names), Series.from_json(candidate), tuple(Series.from_json(one) for one in stable))


@cache
def widths_s(window_s: float) -> tuple[float, ...]:
    """The lengths of stable's blocks."""
    return (1.0, *(times * max(1.0, window_s) for times in LONG_WINDOWS))
