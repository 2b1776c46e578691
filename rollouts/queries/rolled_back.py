"""Which releases were taken back after they had traffic: what people should know before they roll one out again."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db.models import OuterRef, Q, Subquery, Window
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
    last = DecisionRecord.objects.filter(rollout=OuterRef("pk"), action__in=_BACK).order_by("-pk")
    back = Q(state=S.ROLLED_BACK, stable__isnull=False) | Q(state=S.REVERTED)
    ended = Rollout.objects.filter(back | Q(state=S.PROMOTED), candidate__in=list(releases))
    ended = ended.filter(environment=environment) if environment is not None else ended
    age = Window(RowNumber(), partition_by=["candidate", "environment"], order_by="-pk")
    rows = Rollout.objects.filter(pk__in=ended.annotate(age=age).filter(age__lte=MOST_TOLD).values("pk")).order_by(
        "-pk"
    )
    found: dict[UUID, list[RolledBack]] = {}
    made_up: set[tuple[UUID, int]] = set()
    columns = ("pk", "state", "candidate_id", "environment_id", "environment__slug", "reason", "ended_at")
    told = rows.annotate(back_at=Subquery(last.values("at")[:1]), back_why=Subquery(last.values("reason")[:1]))
    for pk, state, candidate, place, slug, reason, ended_at, at, why in told.values_list(
        *columns, "back_at", "back_why"
    ):
        if state == S.PROMOTED:
            made_up.add((candidate, place))
        elif (candidate, place) not in made_up:
            found.setdefault(candidate, []).append(RolledBack(pk, slug, at or ended_at, why or reason))
    return found


def rolled_back_before(release: Release, environment: Environment | None = None) -> list[RolledBack]:
    """The same for one release."""
    return rolled_back([release.pk], environment).get(release.pk, [])
