"""What a model's gate policy demands, before anything is run."""

from __future__ import annotations

from registry.models import ServedModel
from validators.core.explain import Demand, explain
from validators.core.policy import Policy
from validators.queries.gate_runs import golden_sets_of
from validators.queries.model_policy import policy_of


def demands_of(model: ServedModel) -> tuple[Policy, list[Demand]]:
    """(the model's gate policy with nothing left open, its demands). A golden set that is not there counts as without rows.

    Raises Invalid where the policy cannot be read.
    """
    policy = policy_of(model)
    named = golden_sets_of(model).filter(digest=policy.golden_set or "").first()
    found = explain(policy, items=named.items if named else 0, slices=named.slices if named else {})
    return policy, found
