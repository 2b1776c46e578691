"""Whether stable is worse than its control: the release before, which keeps a small share of the traffic after a promotion.

With a small share the control has emptier servers, so a fault of both (a slow dependency) shows on stable alone: its queue grows. So
evidence at the small share only begins a *look*, in which both have half of the traffic; evidence of the look convicts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollouts.core.evidence import Side, Sums, Tolerance, Window, increments, onset_mixed, onset_step
from rollouts.core.policy import FULL_BP, Policy

#: Stable is proven to be worse in no fewer bins than these: the evidence of one bin is capped, so that a clump alone proves nothing.
BINS_TO_CONVICT = 6
#: The control's share in a look, in basis points.
EVEN_BP = FULL_BP // 2
#: In bins of 10 s: the beginning of a look, in which queues from before it empty; the shortest time between a look without a conviction
#: and the next.
SETTLING, BETWEEN = 3, 180
#: A look lasts no longer than this, in seconds, however little was counted in it.
LOOK_S = 180.0


def bar_of(policy: Policy, objectives: int, looks: int) -> float:
    """The evidence that convicts in the look of this number, as a logarithm; that begins a first look for 0.

    Look k has the share 2^-k of `alpha_roll_back`. So the chance to roll back a release that is no worse is at most `alpha_roll_back`,
    for all objectives and looks together. Source: Ville's inequality, union bound.
    """
    return math.log(objectives / policy.alpha_roll_back) + looks * math.log(2)


@dataclass(frozen=True)
class Comparison:
    """Counts of both while the control has `share_bp`; `log_m`: the evidence for each alternative
    (`rollouts.core.evidence.onset_step`); `ticks`: bins; `looks`: how many were begun so far."""

    share_bp: int = 0
    looks: int = 0
    ticks: int = 0
    log_m: Sums = ()
    bad: int = 0
    attempts: int = 0
    control_bad: int = 0
    control_attempts: int = 0

    def after(self, stable: tuple[int, int], control: tuple[int, int], tolerance: Tolerance, bar: float) -> Comparison:
        """With one more bin: (bad, attempts) of each, counted in the same time by the same gateways."""
        if self.is_look and self.ticks < SETTLING:
            return replace(self, ticks=self.ticks + 1)
        cap = bar / BINS_TO_CONVICT
        more = tuple(min(cap, one) for one in increments(Window(*stable, *control), tolerance, Side.WORSE))
        counted = self.ticks + 1 - (SETTLING if self.is_look else 0)
        return replace(
            self,
            ticks=self.ticks + 1,
            log_m=onset_step(self.log_m, more, counted),
            bad=self.bad + stable[0],
            attempts=self.attempts + stable[1],
            control_bad=self.control_bad + control[0],
            control_attempts=self.control_attempts + control[1],
        )

    def at(self, share_bp: int) -> Comparison:
        """Returns the comparison at this share: a new object after a change of the share."""
        if share_bp == self.share_bp:
            return self
        return Comparison(share_bp, self.looks + (share_bp == EVEN_BP))

    @property
    def is_look(self) -> bool:
        return self.share_bp == EVEN_BP

    @property
    def may_look(self) -> bool:
        return not self.is_look and (not self.looks or self.ticks >= BETWEEN)

    @property
    def log_e(self) -> float:
        return onset_mixed(self.log_m, self.ticks - (SETTLING if self.is_look else 0))

    def to_json(self) -> dict[str, Any]:
        log_m = [float(f"{one:.6g}") for one in self.log_m]
        return {**{name: getattr(self, name) for name in _PLAIN}, "log_m": log_m}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Comparison:
        return cls(**{name: value[name] for name in _PLAIN}, log_m=tuple(value["log_m"]))


_PLAIN = ("share_bp", "looks", "ticks", "bad", "attempts", "control_bad", "control_attempts")
