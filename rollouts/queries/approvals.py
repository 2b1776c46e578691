"""Named reads of approvals: which of them count now, which do not and why, and who may still give one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import BooleanField, Case, Exists, ExpressionWrapper, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce, JSONObject
from django.utils import timezone

from accounts.core.access import MAY, Verb
from accounts.models import User
from accounts.queries import active_users, memberships_with
from registry.models import ServedModel
from rollouts.core import approvals as core
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Policy
from rollouts.models import Approval, Rollout
from validators.queries import reports_of

#: As many names as a page can hold.
MOST_NAMES = 20
_ROLES = sorted(role.value for role, verbs in MAY.items() if Verb.APPROVE_ROLLOUT in verbs)


@dataclass(frozen=True)
class Given:
    """An approval with the reason why it does not count, if any."""

    row: Approval
    void: core.Void | None


def approvals_of(rollouts: Iterable[Rollout], *, now: datetime | None = None) -> dict[int, dict[str, int]]:
    """Number of different people with a valid approval, by rollout and stage. One query; none if no policy requires approvals."""
    asking = {rollout.pk: rollout for rollout in rollouts if rollout.policy.get("approvals")}
    if not asking:
        return {}
    now = now or timezone.now()
    given: dict[int, list[core.ApprovalFacts]] = {}
    newest: dict[int, str] = {}
    for pk, newest_report, *columns in _judgeable().filter(rollout__in=list(asking)).values_list(*_COLUMNS):
        given.setdefault(pk, []).append(_approval(*columns))
        newest[pk] = newest_report
    found = {}
    for pk, approvals in given.items():
        people = core.valid(approvals, now=now, **_facts_of(asking[pk], newest[pk]))
        found[pk] = {stage: len(who) for stage, who in people.items()}
    return found


def given_to(rollout: Rollout, *, now: datetime | None = None) -> list[Given]:
    """Every approval of the rollout, the oldest first, with why it does not count now, if so. One query."""
    now, found = now or timezone.now(), []
    for row in _judgeable().filter(rollout=rollout).select_related("approver"):
        _, newest_report, *columns = (getattr(row, name) for name in _COLUMNS)
        void = core.void_because(_approval(*columns), now=now, **_facts_of(rollout, newest_report))
        found.append(Given(row, void))
    return found


def people_by_stage(given: Iterable[Given]) -> dict[str, list[str]]:
    """Names of the people with a valid approval, by stage."""
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
    """Digest of the release's newest report under the pinned gate policy, or an empty string.

    A rollout that pinned none, because its environment needs none, counts the reports that came after it was asked for.
    """
    reports = reports_of(rollout.candidate_id)
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
    return list(able_to_approve(model, excluded).values_list("username", flat=True)[:MOST_NAMES])


def able_to_approve(model: ServedModel, excluded: Collection[int]) -> QuerySet[User]:
    """Those who may approve rollouts of the model, without the excluded, by name."""
    holders = memberships_with(_ROLES, model.team_id).values("user")
    return active_users().filter(Q(is_superuser=True) | Q(pk__in=holders)).exclude(pk__in=excluded)


#: What an approval is judged by; the first two are the rollout's.
_COLUMNS = (
    "rollout_id", "newest_report", "approver_id", "stage", "at", "expires_at", "may_approve", "manifest_digest", "report_digest",
    "policy_digest",
)  # fmt: skip


def _approval(
    approver: int,
    stage: str,
    at: datetime,
    expires_at: datetime | None,
    may_approve: bool,
    manifest: str,
    report: str,
    policy: str,
) -> core.ApprovalFacts:
    return core.ApprovalFacts(approver, stage, core.Digests(manifest, report, policy), at, expires_at, may_approve)


def _facts_of(rollout: Rollout, newest_report: str, pinned: core.Digests | None = None) -> dict[str, Any]:
    """What every approval of the rollout is held against. `pinned`: None if it is not known yet."""
    crossed_at = datetime.fromisoformat(rollout.crossings[-1]["decided_at"]) if rollout.crossings else None
    return {
        "pinned": pinned or pinned_by(rollout),
        "newest_report": newest_report,
        "excluded": excluded_from(rollout),
        "crossed_at": crossed_at,
    }


def _judgeable() -> QuerySet[Approval]:
    """Approvals with the two facts that lie elsewhere: whether the giver still may, and which report is the newest."""
    return _with_may_approve(OuterRef("rollout__model__team")).annotate(newest_report=_newest_report("rollout__"))


def _with_may_approve(team: OuterRef) -> QuerySet[Approval]:
    """Approvals, the oldest first, with whether the giver may still approve for the team, named as a subquery of theirs names it."""
    roles = memberships_with(_ROLES, team).filter(user=OuterRef("approver"))
    still_may = Q(approver__is_active=True) & (Q(approver__is_superuser=True) | Exists(roles))
    return Approval.objects.annotate(may_approve=ExpressionWrapper(still_may, output_field=BooleanField())).order_by(
        "pk"
    )


def _newest_report(rollout: str = "") -> Coalesce:
    """`newest_report` within a query; `rollout` is the way from its rows to the rollout's columns."""
    of_release = reports_of(OuterRef(f"{rollout}candidate"))
    under_it = of_release.filter(
        manifest_digest=OuterRef(f"{rollout}candidate__digest"),
        policy_digest=OuterRef(f"{rollout}report__policy_digest"),
    )
    since = of_release.filter(created_at__gt=OuterRef(f"{rollout}created_at"))
    newest = Case(
        When(**{f"{rollout}report__isnull": True}, then=Subquery(since.values("digest")[:1])),
        default=Subquery(under_it.values("digest")[:1]),
    )
    return Coalesce(newest, Value(""))


# --- many rollouts at once --------------------------------------------------------------------------------------------


def with_approvals(rollouts: QuerySet[Rollout]) -> QuerySet[Rollout]:
    """The rollouts, each with `newest_report` and with its approvals as `given`: what `people_of_row` reads. No further query."""
    fact = JSONObject(name="approver__username", **{column: column for column in _COLUMNS[2:]})
    approvals = _with_may_approve(OuterRef(OuterRef("model__team"))).filter(rollout=OuterRef("pk"))
    given = ArraySubquery(approvals.values(fact=fact))
    return rollouts.annotate(newest_report=_newest_report(), given=given)


def people_of_row(
    rollout: Rollout, pinned: core.Digests, newest_report: str, given: Iterable[Mapping[str, Any]], now: datetime
) -> dict[str, list[str]]:
    """Names of the people with a valid approval, by stage, from a row of `with_approvals`."""
    found: dict[str, dict[str, None]] = {}
    for row in given:
        expires = datetime.fromisoformat(row["expires_at"]) if row["expires_at"] else None
        digests = (row["manifest_digest"], row["report_digest"], row["policy_digest"])
        at = datetime.fromisoformat(row["at"])
        one = _approval(row["approver_id"], row["stage"], at, expires, row["may_approve"], *digests)
        if core.void_because(one, now=now, **_facts_of(rollout, newest_report, pinned)) is None:
            found.setdefault(one.stage, {})[row["name"]] = None
    return {stage: list(names) for stage, names in found.items()}
