"""How fast a policy would find a fault at a model's own traffic, for a curve: many shares of failures, every stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.models import ServedModel
from rollouts.core.policy import Policy
from rollouts.core.policy_schema import parse_policy, stored_policy
from rollouts.core.preview import detections
from rollouts.queries.traffic import Traffic, supposed, traffic_of
from serving.models import Environment
from serving.queries.routes import has_stable

#: Shares of failing attempts: close together where the time to find them changes most.
SHARES = (0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.35, 0.6, 1.0)


def detection_of(
    model: ServedModel,
    environment: Environment,
    policy: Mapping[str, Any] | None = None,
    *,
    rate_per_s: float | None = None,
) -> dict[str, Any]:
    """The curve of a policy (the model's own without one), as JSON. Writes nothing.

    `rate_per_s`: what somebody supposes instead of what was counted. `{"rate_per_s", "source", "stages": [{"stage", "weight_bp",
    "found": [{"fail_frac", "seconds", "bad_requests"}]}]}`; seconds None: not found in 30 days; no stages where no rate is known.
    Raises Invalid (the policy cannot be read).
    """
    plan = (
        stored_policy(model.rollout_policy, model.objectives)
        if policy is None
        else parse_policy(policy, model.objectives)
    )
    return curve_of(
        plan, traffic_of(model, environment), has_stable=has_stable(model.pk, environment.pk), rate_per_s=rate_per_s
    )


def curve_of(plan: Policy, traffic: Traffic, *, has_stable: bool, rate_per_s: float | None = None) -> dict[str, Any]:
    """As `detection_of`, of a policy that was read already."""
    traffic = supposed(traffic, rate_per_s)
    found = detections(
        plan,
        rate_per_s=traffic.rate_per_s,
        error_frac=traffic.error_frac or 0.0,
        has_stable=has_stable,
        failures=SHARES,
    )
    stages: dict[str, dict[str, Any]] = {}
    for one in found:
        stage = stages.setdefault(one.stage, {"stage": one.stage, "weight_bp": one.weight_bp, "found": []})
        stage["found"].append({"fail_frac": one.fail_frac, "seconds": one.seconds, "bad_requests": one.bad_requests})
    return {"rate_per_s": traffic.rate_per_s, "source": traffic.source, "stages": list(stages.values())}
