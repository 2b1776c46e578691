"""Named reads of the undo window: the time after a promotion in which the release before stays warm."""

from __future__ import annotations

from django.utils import timezone

from ledger.queries.statements import Statement
from registry.models import ServedModel
from rollouts.core.lifecycle import RolloutState
from rollouts.models import Rollout
from serving.models import Environment, Route
from serving.queries import ready_server
from serving.queries.answering import is_gone
from serving.queries.routes import route_of


def last_promoted(model: ServedModel, environment: Environment) -> Rollout | None:
    """The newest rollout of the model there that was promoted, also where it was reverted since.

    A reverted one hides those before it, so that a second rollback does not go back one release further.
    """
    return next(iter(_LAST_PROMOTED.rows(model=model.pk, environment=environment.pk)), None)


_LAST_PROMOTED = Statement(
    lambda model, environment: (
        Rollout.objects.select_related("candidate", "stable", "model__team", "environment")
        .filter(environment=environment, model=model, state__in=[RolloutState.PROMOTED, RolloutState.REVERTED])
        .order_by("-pk")[:1]
    )
)


def serves(rollout: Rollout, route: Route | None = None) -> bool:
    """Whether the rollout's candidate is the stable release there now. `route`: the one there, where it is known."""
    route = route or route_of(rollout.model_id, rollout.environment_id)
    return route is not None and route.stable_id == rollout.candidate_id


def is_open(rollout: Rollout, route: Route | None = None) -> bool:
    """Whether this rollout can be undone at once: it was promoted, it serves, and the release before is kept warm and answers.

    A window that is over stays open while the promoted release has no server.
    """
    if rollout.state != RolloutState.PROMOTED or rollout.stable is None or rollout.undo_until is None:
        return False
    if not serves(rollout, route):
        return False
    if rollout.undo_until <= timezone.now() and not is_gone(rollout.candidate_id, rollout.environment_id):
        return False
    return ready_server(rollout.stable, rollout.environment) is not None


def is_closed(rollout: Rollout, route: Route | None = None, *, known_open: bool | None = None) -> bool:
    """Whether it can no longer be undone at once, though it serves: going back takes a rollout of the release before.

    `known_open`: what `is_open` said, where it was asked.
    """
    is_candidate = rollout.state == RolloutState.PROMOTED and rollout.stable is not None and serves(rollout, route)
    return is_candidate and not (is_open(rollout, route) if known_open is None else known_open)
