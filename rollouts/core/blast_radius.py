"""Cost of a candidate: bad attempts beyond the policy's tolerance beside stable at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rollouts.core.evidence import Tolerance


class ExcessFailures(NamedTuple):
    """One guard's counts of both arms since the candidate was last within its tolerance, in this stage.

    A stretch in which it was better than tolerated is no credit: it begins anew, and so does every stage. Bad attempts may be
    fractions, where only a share of them is held against an arm. `worst`: the most bad attempts of the candidate in one tick.
    """

    bad_candidate: float = 0
    candidate: int = 0
    bad_stable: float = 0
    stable: int = 0
    worst: float = 0

    def after(self, more: ExcessFailures, tolerated: Tolerance) -> ExcessFailures:
        """With one tick's counts in it; nothing once the candidate is within its tolerance."""
        both = ExcessFailures(
            self.bad_candidate + more.bad_candidate,
            self.candidate + more.candidate,
            self.bad_stable + more.bad_stable,
            self.stable + more.stable,
            max(self.worst, more.bad_candidate),
        )
        return ExcessFailures() if both.candidate and both.stable and both.excess(tolerated) <= 0 else both

    def excess(self, tolerated: Tolerance) -> float:
        """Bad attempts of the candidate beyond its tolerance of stable's share."""
        if not self.candidate or not self.stable:
            return 0.0
        return self.bad_candidate - self.candidate * tolerated.of(self.bad_stable / self.stable)

    def lasting(self, tolerated: Tolerance) -> float:
        """Returns the excess without the worst tick, at least 0. Failures that end at one instant are one event.

        Source: docs/lab/slow-tails-and-bursts.md.
        """
        return max(0.0, self.excess(tolerated) - self.worst)

    def variance(self, tolerated: Tolerance) -> float:
        """The variance of that number for independent attempts."""
        if not self.candidate or not self.stable:
            return 0.0
        pooled = (self.bad_candidate + self.bad_stable) / (self.candidate + self.stable)
        return pooled * (1 - pooled) * self.candidate * (1 + tolerated.ratio**2 * self.candidate / self.stable)

    def to_json(self) -> list[float]:
        return [round(one, 6) for one in (self if self.worst else self[:-1])]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> ExcessFailures:
        return cls(*value)
