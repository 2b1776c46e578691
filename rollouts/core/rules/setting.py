"""A field of the rollout policy for a single rule."""

from __future__ import annotations

from dataclasses import dataclass

from registry.core.schema import Integer, Number
from rollouts.core.policy import Policy


@dataclass(frozen=True)
class Setting:
    """`default`: of a policy that states none, unless its preset does. It is not stored, so digests of policies stay."""

    name: str
    schema: Integer | Number
    default: float = 0

    def of(self, policy: Policy) -> float:
        """Returns the policy's own value."""
        return float(policy.document.get(self.name, self.default))
