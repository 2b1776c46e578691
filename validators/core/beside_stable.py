"""Whether a release that missed its objective is to blame, or the machine: the stable release, asked in turn on the same one.

Both answer the same requests in alternating blocks of seconds, each with the machine to itself, so that whatever slows the
machine for longer than a block slows both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from validators.core.beta import incomplete
from validators.core.load import LoadSummary
from validators.core.slo import dispersion
from validators.core.verdict import Judgement, Verdict

BLOCKS, BLOCK_S = 4, 4.0


@dataclass(frozen=True)
class Arm:
    """Requests `over` the objective, of those that were `sent`, by window of all blocks."""

    over: tuple[int, ...]
    sent: tuple[int, ...]

    def with_block(self, block: LoadSummary) -> Arm:
        return Arm(self.over + block.over_per_window, self.sent + block.sent_per_window)

    def as_evidence(self) -> dict[str, int]:
        return {"over": sum(self.over), "requests": sum(self.sent)}


def no_worse_chance(candidate: Arm, stable: Arm, *, phi: float) -> float:
    """The chance of the candidate's share over, or a larger one, if it is no worse than stable; 1 where nothing was over.

    Source: given how many were over in both, those of the candidate are binomial with its share of the requests, so the tail is
    the incomplete beta function; counts are divided by `phi` first, which is a temper and no theorem.
    """
    over, both = sum(candidate.over) / phi, (sum(candidate.over) + sum(stable.over)) / phi
    requests = sum(candidate.sent) + sum(stable.sent)
    if over == 0 or requests == 0:
        return 1.0
    return incomplete(sum(candidate.sent) / requests, over, both - over + 1)


def judge_beside(found: Judgement, name: str, candidate: Arm, stable: Arm, policy: Mapping[str, Any]) -> Judgement:
    """`found`, which failed, where the candidate is proven worse than the stable release `name`; undecided where it is not."""
    phi = max(float(policy["least_dispersion"]), dispersion(candidate.over), dispersion(stable.over))
    chance = no_worse_chance(candidate, stable, phi=phi)
    told = {
        "stable": name,
        "candidate_over": candidate.as_evidence(),
        "stable_over": stable.as_evidence(),
        "phi": round(phi, 3),
        "no_worse_chance": round(chance, 6),
    }
    evidence = {**found.evidence, "beside_stable": told}
    counted = f"{sum(stable.over)} of {sum(stable.sent)}, and of its own {sum(candidate.over)} of {sum(candidate.sent)}"
    asked = f"Of {name}, asked in turn with it on the same machine, {counted}"
    if chance <= 1 - float(policy["confidence"]):
        return Judgement(found.verdict, f"{found.reason} {asked}: it is slower.", evidence)
    return Judgement(Verdict.UNDECIDED, f"{found.reason} {asked}: the machine may be to blame.", evidence)
