"""Whether stable is worse than its control: the release before, which keeps a small share of the traffic after a promotion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollouts.core.evidence import Side, Sums, Tolerance, Window, increments, onset_mixed, onset_step
from rollouts.core.policy import Policy

#: Stable is proven to be worse in no fewer bins than these: the evidence of one bin is capped, so that a clump convicts nobody.
BINS_TO_CONVICT = 6


def bar_of(policy: Policy, objectives: int) -> float:
    """The evidence that convicts, as a logarithm. The chance to roll back a release that is no worse is `alpha_roll_back` for all
    objectives together, for however long the window stays open. Source: Ville's inequality, union bound."""
    return math.log(objectives / policy.alpha_roll_back)


@dataclass(frozen=True)
class Comparison:
    """Counts of both since the promotion; `log_m`: the evidence for each alternative (`rollouts.core.evidence.onset_step`)."""

    ticks: int = 0
    log_m: Sums = ()
    bad: int = 0
    attempts: int = 0
    control_bad: int = 0
    control_attempts: int = 0

    def after(self, stable: tuple[int, int], control: tuple[int, int], tolerance: Tolerance, bar: float) -> Comparison:
        """With one more bin: (bad, attempts) of each, counted in the same time by the same gateways."""
        cap = bar / BINS_TO_CONVICT
        more = tuple(min(cap, one) for one in increments(Window(*stable, *control), tolerance, Side.WORSE))
        return Comparison(
            self.ticks + 1,
            onset_step(self.log_m, more, self.ticks + 1),
            self.bad + stable[0],
            self.attempts + stable[1],
            self.control_bad + control[0],
            self.control_attempts + control[1],
        )

    @property
    def log_e(self) -> float:
        return onset_mixed(self.log_m, self.ticks)

    def to_json(self) -> dict[str, Any]:
        log_m = [float(f"{one:.6g}") for one in self.log_m]
        return {**{name: getattr(self, name) for name in _PLAIN}, "log_m": log_m}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Comparison:
        return cls(**{name: value[name] for name in _PLAIN}, log_m=tuple(value["log_m"]))


_PLAIN = ("ticks", "bad", "attempts", "control_bad", "control_attempts")
