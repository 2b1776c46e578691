"""Releases that were taken back after they had traffic, as a warning before a new rollout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Q, QuerySet, Subquery, Window
from django.db.models.functions import RowNumber

from registry.hooks.outcomes import RolledBack
from registry.models import Release
from rollouts.core.lifecycle import RolloutState
from rollouts.models import DecisionRecord, Rollout
from serving.models import Environment

S = RolloutState
#: The decisions that send the traffic back; whichever is the latest says why.
_BACK = ("roll_back", "reject")
#: Of one release in one environment.
MOST_TOLD = 20


def rolled_back(releases: Iterable[UUID], environment: Environment | None = None) -> dict[UUID, list[RolledBack]]:
    """By release id, the newest first and MOST_TOLD of each place at most, those of the environment, or of all. One query.

    A release that was promoted there afterwards, and not reverted, has made up for what was before. A first release has
    nothing to go back to and keeps its traffic, so ending its rollout takes nothing back.
    """
    place = {} if environment is None else {"environment": environment.pk}
    found: dict[UUID, list[RolledBack]] = {}
    made_up: set[tuple[UUID, int]] = set()
    told = _ended(releases, **place)
    for pk, state, candidate, at_place, slug, reason, ended_at, at, why in told:
        if state == S.PROMOTED:
            made_up.add((candidate, at_place))
        elif (candidate, at_place) not in made_up:
            found.setdefault(candidate, []).append(RolledBack(pk, slug, at or ended_at, why or reason))
    return found


def _ended(releases: Iterable[UUID], **place: int) -> QuerySet[Rollout, tuple[Any, ...]]:
    """The rollouts that took a release back or promoted it, newest first, at most MOST_TOLD of each place."""
    last = DecisionRecord.objects.filter(rollout=OuterRef("pk"), action__in=_BACK).order_by("-pk")
    back = Q(state=S.ROLLED_BACK, stable__isnull=False) | Q(state=S.REVERTED)
    ended = Rollout.objects.filter(back | Q(state=S.PROMOTED), candidate__in=list(releases), **place)
    age = Window(RowNumber(), partition_by=["candidate", "environment"], order_by="-pk")
    newest = Rollout.objects.filter(pk__in=ended.annotate(age=age).filter(age__lte=MOST_TOLD).values("pk"))
    told = newest.annotate(back_at=Subquery(last.values("at")[:1]), back_why=Subquery(last.values("reason")[:1]))
    return told.order_by("-pk").values_list(
        "pk",
        "state",
        "candidate_id",
        "environment_id",
        "environment__slug",
        "reason",
        "ended_at",
        "back_at",
        "back_why",
    )


def rolled_back_before(release: Release, environment: Environment | None = None) -> list[RolledBack]:
    """The same for one release."""
    return rolled_back([release.pk], environment).get(release.pk, [])


def last_tried(release: Release, environment: Environment) -> Rollout | None:
    """The release's newest rollout there that ended after it had traffic, or that a person rejected."""
    ended = (S.PROMOTED, S.REVERTED, S.ROLLED_BACK, S.REJECTED)
    return Rollout.objects.filter(candidate=release, environment=environment, state__in=ended).order_by("-pk").first()


def promoted_by(release: Release, environment: Environment) -> int | None:
    """The newest rollout that promoted the release there; None if it became stable otherwise."""
    rows = Rollout.objects.filter(candidate=release, environment=environment, state=S.PROMOTED)
    return rows.order_by("-pk").values_list("pk", flat=True).first()
