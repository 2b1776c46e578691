"""Named reads of rollouts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from django.db.models import Exists, Max, OuterRef, QuerySet

from accounts.core.access import Actor, Verb, may
from ledger.core.errors import NotFound
from registry.models import ServedModel
from registry.queries.reviews import with_comments
from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.models import Rollout
from rollouts.queries.undo_window import aborted_take_overs, ending_undo_windows
from serving.traffic.queries.endpoints import answering

_WHOLE = ("model__team", "environment", "candidate__author", "stable", "displaced", "report", "requested_by")


def get_rollout(actor: Actor, rollout_id: int) -> Rollout:
    """The rollout, with the comments on its candidate as `with_comments` reads them.

    Raises NotFound, also where the actor may not read the model's team.
    """
    rollout = with_comments(Rollout.objects.select_related(*_WHOLE).filter(pk=rollout_id), "candidate").first()
    if rollout is None or not may(actor, Verb.READ, rollout.model.team.slug, rollout.model.slug):
        raise NotFound(
            "no_such_rollout",
            f"There is no rollout {rollout_id} that you may see. List the rollouts to see their numbers.",
            rollout=rollout_id,
        )
    return rollout


def rollout_end(rollout_id: int) -> tuple[int, datetime | None] | None:
    """(its number, when it ended: None while it goes on), or None if there is no such rollout."""
    return Rollout.objects.filter(pk=rollout_id).values_list("pk", "ended_at").first()


def find_rollout(actor: Actor, rollout_id: int) -> Rollout | None:
    """The same, or None."""
    try:
        return get_rollout(actor, rollout_id)
    except NotFound:
        return None


def rollouts_of(models: Iterable[ServedModel]) -> QuerySet[Rollout]:
    """The rollouts of these models, newest first, with the columns of a list."""
    return Rollout.objects.filter(model__in=models).select_related(
        "model", "environment", "candidate", "stable", "displaced"
    )


def newest_of(model: ServedModel, most: int) -> list[Rollout]:
    """So many rollouts of the model, the newest first, with the columns that a row of `rollouts/_rows.html` shows and no others."""
    rows = (
        Rollout.objects.filter(model=model)
        .select_related("model", "environment", "candidate", "stable")
        .only(
            "state",
            "weight_bp",
            "reason",
            "created_at",
            "model__slug",
            "environment__title",
            "candidate__number",
            "stable__number",
        )
        .order_by("-pk")
    )
    return list(rows[:most])


def policy_by_digest(model: ServedModel, digest: str) -> dict[str, Any] | None:
    """A policy of a rollout of the model, or None."""
    row = (
        Rollout.objects.filter(model=model, policy_digest=digest)
        .order_by("-pk")
        .values_list("policy", flat=True)
        .first()
    )
    return None if row is None else dict(row)


def active_rows() -> dict[int, tuple[str, int, int, int]]:
    """(state, version, tick, fence) of every rollout that the engine has something to do for, by rollout, the oldest first.

    Read every turn, so kept small: every operator command changes the version too.
    """
    states = sorted(state.value for state in ACTIVE - {RolloutState.AWAITING_APPROVAL})
    rows = Rollout.objects.filter(state__in=states).order_by("pk")
    return {row[0]: row[1:] for row in rows.values_list("pk", "state", "version", "tick", "fence")}


def active_ticks() -> QuerySet[Rollout, tuple[int, str, int]]:
    """(rollout, model's slug, tick) of every active rollout: which of them the engine has looked at since one last asked."""
    return Rollout.objects.filter(state__in=sorted(ACTIVE)).order_by("pk").values_list("pk", "model__slug", "tick")


def ended_to_settle(now: datetime, most: int = 100) -> list[Rollout]:
    """Ended rollouts with remaining work: a kept release can stop, or traffic can go back to a displaced release.

    `most` of each kind.
    """
    over = ending_undo_windows(now).order_by("undo_until")
    back = answering().filter(release=OuterRef("displaced"), environment=OuterRef("environment"))
    aborted = aborted_take_overs().filter(Exists(back)).order_by("pk")
    arms = ("model__team", "environment", "candidate", "stable", "displaced")
    return [one for rows in (over, aborted) for one in rows.select_related(*arms)[:most]]


def active_rollouts(rollout_ids: Collection[int]) -> list[Rollout]:
    """These rollouts whole, with all that the engine needs to know of them, the oldest first."""
    whole = Rollout.objects.select_related("model__team", "environment", "candidate", "stable", "displaced", "report")
    return list(whole.filter(pk__in=rollout_ids).order_by("pk"))


def tick_ages() -> list[tuple[int, datetime | None]]:
    """(rollout, time of the engine's last observation) of every rollout with work for the engine."""
    states = sorted(state.value for state in ACTIVE - {RolloutState.AWAITING_APPROVAL})
    rows = Rollout.objects.filter(state__in=states).annotate(looked_at=Max("observations__at")).order_by("pk")
    return list(rows.values_list("pk", "looked_at"))
