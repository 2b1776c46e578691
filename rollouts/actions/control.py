"""The control of a promotion: the release before keeps a small share of the traffic while the undo window is open."""

from __future__ import annotations

from django.db import transaction

from accounts.core.access import Actor
from ledger.core.errors import StateChanged
from rollouts.core.lifecycle import ACTIVE, WITHOUT_TRAFFIC, RolloutState
from rollouts.core.policy import Control
from rollouts.models import Rollout
from serving.environments.actions.locks import lock_open
from serving.traffic.actions.routes import set_route
from serving.traffic.queries.endpoints import answers
from serving.traffic.queries.routes import acknowledged, route_of

_WITH_TRAFFIC = sorted(state.value for state in ACTIVE - WITHOUT_TRAFFIC)


def begin_control(rollout: Rollout, control: Control, *, actor: Actor, fence: int) -> None:
    """Gives the release before its share. For the transaction of the promotion, which holds the routes."""
    if not control.share_bp or rollout.stable is None:
        return
    set_route(
        actor=actor, environment=rollout.environment, model=rollout.model, stable=rollout.candidate, candidate=rollout.stable,
        candidate_bp=control.share_bp, fence=fence,
        reason=f"{rollout.stable.name} keeps {control.share_bp / 100:g} % as the control of {rollout.candidate.name}.",
    )  # fmt: skip


@transaction.atomic
def share_control(rollout: Rollout, share_bp: int, *, actor: Actor, reason: str) -> None:
    """Gives the control another share, while it is the control. A larger one only if it answers.

    Raises StateChanged("no_control").
    """
    lock_open(rollout.environment)
    route = route_of(rollout.model_id, rollout.environment_id)
    is_more = route is not None and share_bp > route.candidate_bp
    if (
        rollout.stable is None
        or not has_control(rollout)
        or (is_more and not answers(rollout.stable.pk, rollout.environment_id))
    ):
        raise StateChanged("no_control", f"Rollout {rollout.pk} has no control that answers.")
    set_route(
        actor=actor, environment=rollout.environment, model=rollout.model, stable=rollout.candidate, candidate=rollout.stable,
        candidate_bp=share_bp, reason=reason,
    )  # fmt: skip


def has_control(rollout: Rollout) -> bool:
    """Whether the release before is in the route as the control of this promoted rollout, and not as the candidate of another rollout."""
    route = route_of(rollout.model_id, rollout.environment_id)
    arms = (rollout.candidate_id, rollout.stable_id)
    if route is None or rollout.stable_id is None or (route.stable_id, route.candidate_id) != arms:
        return False
    others = Rollout.objects.filter(environment=rollout.environment_id, model=rollout.model_id, state__in=_WITH_TRAFFIC)
    is_open = Rollout.objects.filter(pk=rollout.pk, state=RolloutState.PROMOTED, undo_until__isnull=False)
    return is_open.exists() and not others.exists()


def end_control(rollout: Rollout, *, actor: Actor) -> None:
    """Takes the control's share away. Holding the routes. Those of a retired environment are history."""
    if rollout.environment.retired_at is None and has_control(rollout) and rollout.stable is not None:
        set_route(
            actor=actor, environment=rollout.environment, model=rollout.model, stable=rollout.candidate,
            reason=f"{rollout.stable.name} is the control of {rollout.candidate.name} no longer.",
        )  # fmt: skip


def is_followed(rollout: Rollout) -> bool:
    """Whether every gateway has acknowledged the route as it is."""
    route = route_of(rollout.model_id, rollout.environment_id)
    return route is None or acknowledged(route).all_acked
