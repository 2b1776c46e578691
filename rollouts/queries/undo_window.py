"""Named reads of the way back after a rollout's end: the undo window of a promotion, and an aborted take-over."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from ledger.queries import events
from registry.models import Release, ServedModel
from rollouts.core.lifecycle import RolloutState
from rollouts.models import Rollout
from serving.models import Environment, Route
from serving.traffic.queries.endpoints import answers, is_gone, is_lost_stable
from serving.traffic.queries.routes import route_of


def last_promoted(model: ServedModel, environment: Environment) -> Rollout | None:
    """The newest rollout of the model there that was promoted, also where it was reverted since.

    A reverted one hides those before it, so that a second rollback does not go back one release further.
    """
    return (
        Rollout.objects.select_related("candidate", "stable", "model__team", "environment")
        .filter(environment=environment, model=model, state__in=[RolloutState.PROMOTED, RolloutState.REVERTED])
        .order_by("-pk")
        .first()
    )


def aborted_take_overs() -> QuerySet[Rollout]:
    """Ended rollouts whose candidate keeps the traffic that it took over, because the displaced release did not answer.

    The displaced release stays wanted, and the traffic goes back to it, until a later rollout is promoted.
    """
    promoted = Rollout.objects.filter(
        environment=OuterRef("environment"), model=OuterRef("model"), pk__gt=OuterRef("pk"),
        state__in=[RolloutState.PROMOTED, RolloutState.REVERTED],
    )  # fmt: skip
    ended = Rollout.objects.filter(state=RolloutState.ROLLED_BACK, stable=None, displaced__isnull=False)
    return ended.filter(~Exists(promoted))


#: A window that is to stay open is prolonged so long before it would end, in seconds.
AHEAD_S = 10.0


def ending_undo_windows(now: datetime) -> QuerySet[Rollout]:
    """Promoted rollouts whose undo window is over or nearly so, and keep the release before warm for it.

    Without those whose candidate serves and has no server that answers: the release before is then the only target.
    """
    until = now + timedelta(seconds=AHEAD_S)
    return Rollout.objects.filter(~is_lost_stable("candidate"), state=RolloutState.PROMOTED, undo_until__lte=until)


def last_to_undo(model: ServedModel, environment: Environment) -> Rollout | None:
    """The newest aborted take-over of the model there, else the newest promoted rollout; see `last_promoted`."""
    related = aborted_take_overs().select_related("candidate", "displaced", "model__team", "environment")
    aborted = related.filter(environment=environment, model=model).order_by("-pk").first()
    return aborted or last_promoted(model, environment)


def release_before(rollout: Rollout) -> Release | None:
    """The release that gets the traffic of an ended rollout: the displaced release of an aborted take-over, else stable."""
    return rollout.displaced if _is_aborted(rollout) else rollout.stable


def _is_aborted(rollout: Rollout) -> bool:
    return rollout.state == RolloutState.ROLLED_BACK and rollout.stable_id is None


def serves(rollout: Rollout, route: Route | None = None) -> bool:
    """Whether the rollout's candidate is the stable release there now. `route`: the route there, if known."""
    route = route or route_of(rollout.model_id, rollout.environment_id)
    return route is not None and route.stable_id == rollout.candidate_id


def is_open(rollout: Rollout, route: Route | None = None) -> bool:
    """Whether this rollout can be undone at once: it was promoted, it serves, and the release before is kept warm and answers.

    A window that is over stays open while the promoted release has no server. An aborted take-over has no window.
    """
    before = release_before(rollout)
    if before is None or not serves(rollout, route):
        return False
    if not _is_aborted(rollout):
        if rollout.state != RolloutState.PROMOTED or rollout.undo_until is None:
            return False
        if rollout.undo_until <= timezone.now() and not is_gone(rollout.candidate_id, rollout.environment_id):
            return False
    return answers(before.pk, rollout.environment_id)


def why_undo_closed(rollout: Rollout) -> str:
    """The sentence of the event; empty if there is none."""
    closed = events().filter(verb="rollout.undo_closed", subject_type="rollout", subject_id=str(rollout.pk))
    return closed.order_by("-seq").values_list("reason", flat=True).first() or ""


def is_closed(rollout: Rollout, route: Route | None = None, *, known_open: bool | None = None) -> bool:
    """Whether it can no longer be undone at once, though it serves: going back takes a rollout of the release before.

    `known_open`: result of `is_open`, if known.
    """
    is_candidate = rollout.state == RolloutState.PROMOTED and rollout.stable is not None and serves(rollout, route)
    return is_candidate and not (is_open(rollout, route) if known_open is None else known_open)
