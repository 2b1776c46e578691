"""Named reads of approvals: which of them count now, which do not and why, and who may still give one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import BooleanField, Case, Exists, ExpressionWrapper, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from accounts.core.access import MAY, Verb
from accounts.models import Membership, User
from registry.models import ServedModel
from rollouts.core import approvals as core
from rollouts.core.lifecycle import RolloutState
from rollouts.core.plan import Policy
from rollouts.models import Approval, Rollout
from validators.models import Report

#: As many names as a page can hold.
MOST_NAMES = 20
_ROLES = sorted(role.value for role, verbs in MAY.items() if Verb.APPROVE_ROLLOUT in verbs)


@dataclass(frozen=True)
class Given:
    """An approval and, where it does not count, why."""

    row: Approval
    void: core.Void | None


def approvals_of(rollouts: Iterable[Rollout], *, now: datetime | None = None) -> dict[int, dict[str, int]]:
    """How many different people's approvals count now, by rollout and stage. One query, none where no policy asks for any."""
    asking = {rollout.pk: rollout for rollout in rollouts if rollout.policy.get("approvals")}
    now = now or timezone.now()
    found: dict[int, dict[str, int]] = {}
    for pk, rows in _rows_of(asking).items():
        people = core.valid([_judged(row) for row in rows], now=now, **_facts_of(asking[pk], rows[0]))
        found[pk] = {stage: len(who) for stage, who in people.items()}
    return found


def given_to(rollout: Rollout, *, now: datetime | None = None) -> list[Given]:
    """Every approval of the rollout, the oldest first, with why it does not count now, if so. One query."""
    now = now or timezone.now()
    rows = _rows_of([rollout.pk]).get(rollout.pk, [])
    return [Given(row, core.void_because(_judged(row), now=now, **_facts_of(rollout, row))) for row in rows]


def people_by_stage(given: Iterable[Given]) -> dict[str, list[str]]:
    """The names of those whose approval counts, by stage, each once."""
    found: dict[str, dict[str, None]] = {}
    for one in given:
        if one.void is None:
            found.setdefault(one.row.stage, {})[one.row.approver.username] = None
    return {stage: list(names) for stage, names in found.items()}


def ahead_of(rollout: Rollout, plan: Policy) -> tuple[str, ...]:
    """The stages that the rollout has yet to enter."""
    paused_in = RolloutState(rollout.resume_state or RolloutState.SHIFTING)
    return core.stages_ahead(plan, RolloutState(rollout.state), rollout.step_index, paused_in)


def newest_report(rollout: Rollout) -> str:
    """The digest of the release's newest report under the gate policy of the pinned one; empty where there is none.

    A rollout that pinned none, because its environment needs none, counts the reports that came after it was asked for.
    """
    reports = Report.objects.filter(release=rollout.candidate_id).order_by("-pk")
    if rollout.report is None:
        reports = reports.filter(created_at__gt=rollout.created_at)
    else:
        reports = reports.filter(
            manifest_digest=rollout.candidate.digest or "", policy_digest=rollout.report.policy_digest
        )
    return reports.values_list("digest", flat=True).first() or ""


def excluded_from(rollout: Rollout) -> frozenset[int]:
    """Nobody approves a release that they made or asked for."""
    return frozenset(pk for pk in (rollout.candidate.author_id, rollout.requested_by_id) if pk is not None)


def pinned_by(rollout: Rollout) -> core.Digests:
    """What an approval of this rollout is bound to."""
    report = rollout.report.digest if rollout.report else ""
    return core.Digests(rollout.candidate.digest or "", report, rollout.policy_digest)


def who_may_approve(rollout: Rollout) -> list[str]:
    """The names of those who may approve this rollout, at most MOST_NAMES of them."""
    return approvers_of(rollout.model, excluded_from(rollout))


def approvers_of(model: ServedModel, excluded: Collection[int]) -> list[str]:
    """The names of those who may approve rollouts of the model, without the excluded, at most MOST_NAMES of them."""
    return list(
        User.objects.filter(is_active=True)
        .filter(Q(is_superuser=True) | Q(pk__in=_holders(model.team_id)))
        .exclude(pk__in=excluded)
        .order_by("username")
        .values_list("username", flat=True)[:MOST_NAMES]
    )


def _holders(team_id: int) -> QuerySet[Membership, int]:
    return Membership.objects.filter(team_id=team_id, role__in=_ROLES).values_list("user_id", flat=True)


def _rows_of(rollout_ids: Iterable[int]) -> dict[int, list[Approval]]:
    """By rollout, the oldest first; only rollouts that have any. One query, none for no rollout."""
    wanted = list(rollout_ids)
    found: dict[int, list[Approval]] = {}
    for row in _judgeable().filter(rollout__in=wanted) if wanted else ():
        found.setdefault(row.rollout_id, []).append(row)
    return found


def _judged(row: Approval) -> core.Approval:
    digests = core.Digests(row.manifest_digest, row.report_digest, row.policy_digest)
    may_approve: bool = row.may_approve  # type: ignore[attr-defined]  # annotated
    return core.Approval(row.approver_id, row.stage, digests, row.expires_at, may_approve)


def _facts_of(rollout: Rollout, row: Approval) -> dict[str, Any]:
    """What every approval of the rollout is held against."""
    newest: str = row.newest_report  # type: ignore[attr-defined]  # annotated, the same for all of them
    return {"pinned": pinned_by(rollout), "newest_report": newest, "excluded": excluded_from(rollout)}


def _judgeable() -> QuerySet[Approval]:
    """Approvals with the two facts that lie elsewhere: whether the giver still may, and which report is the newest."""
    roles = Membership.objects.filter(user=OuterRef("approver"), team=OuterRef("rollout__model__team"), role__in=_ROLES)
    of_release = Report.objects.filter(release=OuterRef("rollout__candidate")).order_by("-pk")
    under_it = of_release.filter(
        manifest_digest=OuterRef("rollout__candidate__digest"),
        policy_digest=OuterRef("rollout__report__policy_digest"),
    )
    since = of_release.filter(created_at__gt=OuterRef("rollout__created_at"))
    newest = Case(
        When(rollout__report__isnull=True, then=Subquery(since.values("digest")[:1])),
        default=Subquery(under_it.values("digest")[:1]),
    )
    still_may = Q(approver__is_active=True) & (Q(approver__is_superuser=True) | Exists(roles))
    return (
        Approval.objects.select_related("approver")
        .annotate(
            may_approve=ExpressionWrapper(still_may, output_field=BooleanField()),
            newest_report=Coalesce(newest, Value("")),
        )
        .order_by("pk")
    )
