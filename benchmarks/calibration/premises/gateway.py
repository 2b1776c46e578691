"""One simulated gateway: it follows weights late, requests end some time after they began, and counts are kept by weight.

Every request carries the slot of the weight under which it began: the number of the change, modulo `SLOTS`. Requests are counted
when they end. What a mesh would count, every attempt for the release that got it whatever the weight, is kept beside.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from benchmarks.calibration.premises.scenario import Answers
from benchmarks.calibration.premises.world import CANDIDATE, STABLE, Begun
from benchmarks.calibration.traffic import EDGES_MS, ERRORS, SLOW
from rollouts.core.counter_deltas import COMMON, SAVED, SHED, SLOTS, TIMED, Counts, Reading
from serving.traffic.core.buckets import EDGES_US

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

LONGEST_S = 240
#: Counted by slot and arm: requests that ended, those whose first attempt failed, those of them that failed on stable too, first
#: attempts that ended, these over each edge; then what a mesh counts: attempts and failed ones.
ENDED, FAILED, AGAIN, FIRST, OVER, ATTEMPTS, ERRED = 0, 1, 2, 3, 4, 4 + len(EDGES_MS), 5 + len(EDGES_MS)
KINDS = ERRED + 1
#: Of fewer first attempts of a release nobody knows how long they usually take; its longest usual answer is longer than those
#: of this share. As rollouts.observe has it.
LEAST_TIMED, USUAL_FRAC = 100, 0.99


class Gateway:
    """`weight`, `slot`: what it follows now."""

    def __init__(
        self, answers: Answers, late_s: float, rng: np.random.Generator, *, is_timed: bool, is_retrying: bool
    ) -> None:
        self.rng, self.late_s, self.is_timed, self.is_retrying = rng, late_s, is_timed, is_retrying
        self.weight, self.slot = 0.0, 0
        times = (answers.candidate_times, 1.0)
        self._ok = tuple(delays(answers.ok_s * one, answers.sigma) for one in times)
        self._usual_s = tuple(usual_s(answers.ok_s * one, answers.sigma) for one in times)
        self._failed_s = answers.failed_s
        self._rings = np.zeros((LONGEST_S + 1, SLOTS, 2, KINDS), dtype=np.int64)
        self._total = np.zeros((SLOTS, 2, KINDS), dtype=np.int64)
        self._coming: list[tuple[float, float, int]] = []

    @property
    def longest_s(self) -> int:
        """The longest time that an answer of either arm may take."""
        return max(map(len, self._ok))

    def told(self, at: float, weight: float, change: int) -> None:
        """A new weight was written at this instant; it is followed `late_s` later."""
        self._coming.append((at + self.late_s, weight, change % SLOTS))

    def follows(self, at: float) -> bool:
        """Whether no weight is awaited any more, once those that are due have been taken."""
        while self._coming and self._coming[0][0] <= at:
            _, self.weight, self.slot = self._coming.pop(0)
        return not self._coming

    def begin(self, at: int, arm: int, begun: Begun, again: int) -> None:
        """Takes in what begins in the second that ends at `at`; `again`: failures that fail on stable too, if retried."""
        ok = np.zeros(KINDS, dtype=np.int64)
        ok[[ENDED, FIRST, ATTEMPTS]] = 1
        ring = self._rings[:, self.slot]
        if begun.ok:
            self._spread(ring, at, arm, ok, begun.ok, self._ok[arm])
            # Slow ones are among the answered ones; they are spread alike.
            for i, over in enumerate(begun.over):
                one = np.zeros(KINDS, dtype=np.int64)
                one[OVER + i] = 1
                self._spread(ring, at, arm, one, over, self._ok[arm])
        failed = begun.own + begun.poison
        if failed:
            self._fail(ring, at, arm, failed, again)

    def _fail(self, ring: Whole, at: int, arm: int, failed: int, again: int) -> None:
        soon = (at + round(self._failed_s)) % len(ring)
        ring[soon, arm, [FIRST, ATTEMPTS, ERRED]] += failed
        if not self.is_retrying:
            ring[soon, arm, [ENDED, FAILED]] += failed
            return
        later = (at + round(2 * self._failed_s)) % len(ring)
        ring[later, arm, [ENDED, FAILED, AGAIN]] += again
        ring[later, STABLE, [ATTEMPTS, ERRED]] += again
        for i, count in self._parts(failed - again, self._ok[STABLE]):
            then = (at + round(self._failed_s) + i) % len(ring)
            ring[then, arm, [ENDED, FAILED]] += count
            ring[then, STABLE, ATTEMPTS] += count

    def _spread(self, ring: Whole, at: int, arm: int, kind: Whole, count: int, shares: Floats) -> None:
        for i, part in self._parts(count, shares):
            ring[(at + i) % len(ring), arm] += kind * part

    def _parts(self, count: int, shares: Floats) -> list[tuple[int, int]]:
        """How many of them end so many seconds later."""
        only = int(shares.argmax())
        if shares[only] == 1.0:
            return [(only, count)] if count else []
        parts = self.rng.multinomial(count, shares)
        return [(int(i), int(parts[i])) for i in np.flatnonzero(parts)]

    def end(self, at: int) -> None:
        """Counts what ends in the second that ends at `at`."""
        row = self._rings[at % len(self._rings)]
        self._total += row
        row[:] = 0

    def ended(self, slot: int, arm: int) -> Whole:
        """What has been counted for the weights with this slot, by kind."""
        return self._total[slot % SLOTS, arm]

    def reading(self, at: float) -> Reading:
        """What this gateway says at `at`, in the shape that the engine's core reads."""
        by_slot = {
            slot: (self._counts(self.ended(slot, CANDIDATE)), self._counts(self.ended(slot, STABLE)))
            for slot in range(SLOTS)
        }
        here = by_slot.pop(self.slot)
        return Reading("one", at, *here, slot=self.slot, others=by_slot, answer_s=self.answer_s())

    def answer_s(self) -> float:
        """The longest usual answer of either release, as far as enough of its answers were seen."""
        seen = self._total[:, :, FIRST].sum(axis=0)
        return max(longest if seen[arm] >= LEAST_TIMED else 0.0 for arm, longest in enumerate(self._usual_s))

    def mesh(self) -> tuple[int, int, int, int]:
        """The candidate's bad and all attempts, stable's bad and all, since the beginning, whatever the weight."""
        total, bad = self._total.sum(axis=0), OVER + len(EDGES_MS) - 1 if self.is_timed else ERRED
        xc, nc, xb, nb = total[CANDIDATE, bad], total[CANDIDATE, ATTEMPTS], total[STABLE, bad], total[STABLE, ATTEMPTS]
        return int(xc), int(nc), int(xb), int(nb)

    def _slow(self, row: Whole) -> dict[str, int]:
        return dict(zip(SLOW, row[OVER : OVER + len(EDGES_MS)].tolist(), strict=True)) if self.is_timed else {}

    def _counts(self, row: Whole) -> Counts:
        ended, failed, again, first = row[: FIRST + 1].tolist()
        saved = failed - again if self.is_retrying else 0
        bad = {ERRORS: failed, COMMON: again, SAVED: saved, SHED: 0, TIMED: first, **self._slow(row)}
        return Counts(ended, ended, bad)


@cache
def delays(median_s: float, sigma: float) -> Floats:
    """The share of attempts that end in the same second as they began, in the next one, and so on. They begin at any moment
    of their second, so one of half a second ends in the next one half the time.
    """
    parts = (np.arange(400) + 0.5) / 400
    times = np.array([median_s]) if not sigma else median_s * np.exp(sigma * _normal(parts))
    ends = np.minimum(LONGEST_S - 1, np.floor(parts[:, None] + times[None, :])).astype(int)
    counts = np.bincount(ends.ravel(), minlength=1)
    return np.asarray(counts / counts.sum(), dtype=np.float64)


def _normal(parts: Floats) -> Floats:
    return np.array([NormalDist().inv_cdf(float(part)) for part in parts])


@cache
def usual_s(median_s: float, sigma: float) -> float:
    """The edge under which the usual share of answers ends."""
    longest_s = median_s * math.exp(sigma * NormalDist().inv_cdf(USUAL_FRAC))
    return next((edge for edge in EDGES_US if edge > 1e6 * longest_s), EDGES_US[-1]) / 1e6
