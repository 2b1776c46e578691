"""A model's gate policy with nothing left open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.models import ServedModel
from serving.traffic.queries.time_limits import default_limits
from validators.core.policy import Policy, parse_policy


def policy_of(model: ServedModel, stated: Mapping[str, Any] | None = None) -> Policy:
    """The model's gate policy, or `stated` in its place. Missing time limits come from the model's objectives, and then
    from the installation's limits.

    Raises Invalid where it cannot be read.
    """
    return parse_policy(model.gate_policy if stated is None else stated, model.objectives, default_limits())
