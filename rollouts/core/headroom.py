"""What the servers of both arms can take: how many answer, how many are wanted, and what one of them is proven for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import FULL_BP, Policy
from serving.environments.core.replicas import share_of


@dataclass(frozen=True)
class Headroom:
    """Servers that answer, by arm. As it is by default nothing is known, and nothing is checked.

    `wanted`: what stable is to have, and so the candidate at the whole weight; of a first release what itself is to have.
    `proven_*`: requests a second that one server is proven for. None is unknown. `why`: a sentence, why no more of the
    candidate come; it decides nothing.
    """

    wanted: int | None = None
    candidate: int = 0
    stable: int = 0
    proven_candidate: float | None = None
    proven_stable: float | None = None
    why: str = ""

    def needed_at(self, weight_bp: int) -> int:
        """Servers of the candidate that this weight takes, at least one."""
        return share_of(self.wanted or 1, weight_bp)

    def as_json(self) -> dict[str, Any]:
        """What a decision may rest on; empty where nothing would be checked."""
        if (self.wanted or 1) == 1 and self.proven_candidate is None and self.proven_stable is None:
            return {}
        return {name: value for name, value in asdict(self).items() if name != "why"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Headroom:
        return cls(**value)


UNKNOWN_HEADROOM = Headroom()


def weight_ahead(policy: Policy, state: RolloutState, step_index: int) -> int:
    """The candidate's weight after the stage that is under way, in basis points; 0 where none follows, or only copies do."""
    if state is RolloutState.PREPARING:
        return 0 if policy.shadow is not None else policy.steps[0].weight_bp
    if state is RolloutState.SHADOWING:
        return policy.steps[0].weight_bp
    if state is RolloutState.SHIFTING:
        after = policy.steps[step_index + 1 :]
        return after[0].weight_bp if after else policy.bake.weight_bp
    return FULL_BP if state is RolloutState.BAKING else 0
