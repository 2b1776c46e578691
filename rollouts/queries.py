"""Named reads of rollouts."""

from __future__ import annotations

from accounts.core.access import Actor, Verb, may
from accounts.core.errors import NotFound
from registry.models import ServedModel
from rollouts.approvals import approvals_of
from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.live import decision_row, live_view, summary
from rollouts.models import Rollout
from serving.models import Environment

__all__ = [
    "active_rollout",
    "active_rollouts",
    "approvals_of",
    "decision_row",
    "get_rollout",
    "live_view",
    "summary",
]
_WHOLE = ("model__team", "environment", "candidate__author", "stable", "report", "requested_by")


def get_rollout(actor: Actor, rollout_id: int) -> Rollout:
    """Raises NotFound, also where the actor may not read the model's team."""
    rollout = Rollout.objects.select_related(*_WHOLE).filter(pk=rollout_id).first()
    if rollout is None or not may(actor, Verb.READ, rollout.model.team.slug):
        raise NotFound(
            "no_such_rollout",
            f"There is no rollout {rollout_id} that you may see. List the rollouts to see their numbers.",
            rollout=rollout_id,
        )
    return rollout


def active_rollout(environment: Environment, model: ServedModel) -> Rollout | None:
    """The one that has not ended, if any."""
    states = sorted(state.value for state in ACTIVE)
    return (
        Rollout.objects.select_related(*_WHOLE).filter(environment=environment, model=model, state__in=states).first()
    )


def active_rollouts() -> list[Rollout]:
    """Every rollout that the engine has something to do for, the oldest first, with its gateways."""
    states = sorted(state.value for state in ACTIVE - {RolloutState.REQUESTED, RolloutState.AWAITING_APPROVAL})
    return list(
        Rollout.objects.select_related(*_WHOLE)
        .prefetch_related("environment__gateways")
        .filter(state__in=states)
        .order_by("pk")
    )
