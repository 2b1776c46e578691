"""Decisions that wait for people: stages of rollouts without approvals, and releases with code without a waiver."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import JSONObject
from django.utils import timezone

from accounts.core.access import Actor, Verb, may, teams_where
from accounts.models import User
from accounts.queries import user_row
from ledger.core.errors import Invalid
from registry.core.change_summary import summary_of
from registry.core.file_rules import waivers_needed as waivers_for
from registry.models import Release
from registry.queries import manifests_of
from registry.queries.releases import LARGE, sight_of, within_sight
from registry.queries.reviews import CommentCount, comment_counts
from registry.queries.waivers import code_bearing
from rollouts.core import approvals as core
from rollouts.core.decision import Code
from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.core.policy import Policy
from rollouts.core.policy_schema import stored_policy
from rollouts.core.policy_weakening import weaker_approvals
from rollouts.models import Alarm, DecisionRecord, Rollout
from rollouts.queries.alarms import LIVE_ALARMS
from rollouts.queries.approvals import (
    able_to_approve,
    ahead_of,
    excluded_from,
    people_of_row,
    pinned_by,
    with_approvals,
)
from rollouts.queries.gateway_reads import READ_WITHIN, lost_or_unread
from rollouts.queries.target import RollbackTarget, missing_targets
from serving.environments.queries.reporting import reports_since

S = RolloutState
#: What another policy loosens if the model's own, which was saved earlier, cannot be read today.
UNREADABLE = "the own policy cannot be read, so its approvals are unknown"
_NOBODY = Actor.system("inbox")
#: A release with unwaived code is looked for in the inbox this long after it was sealed; its own page offers the waiver for ever.
WAIVERS_WITHIN = timedelta(days=30)
#: As many as one page shows; the count is whole.
MOST_SHOWN = 50
_STATES = sorted(state.value for state in ACTIVE - {S.ROLLING_BACK, S.STUCK})
_ASKS = Q(policy__has_key="approvals") & ~Q(policy__approvals={})


@dataclass(frozen=True)
class WaitingApproval:
    """A stage of a rollout that lacks approvals. `why_not`: why this person cannot approve, or empty.

    `is_held`: the rollout stands still until then; else the approval is given beforehand. `changes`: three sentences.
    `comments`: reviewers' comments on the candidate's comparisons, or None.
    """

    rollout: Rollout
    stage: str
    needed: int
    by: tuple[str, ...]
    is_held: bool
    since: datetime
    valid_s: float
    digests: core.Digests
    will: str
    plan: str
    why_not: str = ""
    changes: tuple[str, ...] = ()
    comments: CommentCount | None = None
    target: RollbackTarget | None = None  # if the rollback target has no server
    weaker: tuple[str, ...] = ()  # what its policy asks for less than the model's own of today

    @property
    def missing(self) -> int:
        return self.needed - len(self.by)


@dataclass(frozen=True)
class WaitingWaiver:
    """A sealed release that carries code which no release manager has waived. `kinds` are those still missing."""

    release: Release
    kinds: tuple[str, ...]
    paths: tuple[str, ...]
    will: str
    why_not: str = ""


# --- approvals --------------------------------------------------------------------------------------------------------


def waiting_approvals(actor: Actor, *, now: datetime | None = None, most: int = MOST_SHOWN) -> list[WaitingApproval]:
    """Those of the models that the actor may read: what waits for the actor first, what waits longest first. One query.

    `with_changes` adds what each changes.
    """
    now = now or timezone.now()
    found = []
    for rollout in _asking().filter(within_sight(*sight_of(actor), of="model__")).order_by("pk"):
        plan = rollout.effective_policy
        people = people_of_row(rollout, pinned_by(rollout), rollout.newest_report, rollout.given, now)
        stage = _lacking(rollout, plan, people)
        if stage:
            found.append((rollout, plan, stage, tuple(people.get(stage, ()))))
    told = [_waiting(actor, *one) for one in found]
    told.sort(key=lambda one: (bool(one.why_not), not one.is_held, one.since, one.rollout.pk))
    return told[:most]


def approval_need(rollout_id: int, *, now: datetime | None = None) -> tuple[WaitingApproval, list[User]] | None:
    """The stage of the rollout that lacks approvals, and its possible approvers; None if an approval is impossible."""
    now = now or timezone.now()
    rollout = _asking().filter(pk=rollout_id).first()
    if rollout is None or rollout.newest_report != pinned_by(rollout).report:
        return None
    plan = rollout.effective_policy
    people = people_of_row(rollout, pinned_by(rollout), rollout.newest_report, rollout.given, now)
    stage = _lacking(rollout, plan, people)
    if not stage:
        return None
    by = tuple(people.get(stage, ()))
    (need,) = with_changes([_waiting(_NOBODY, rollout, plan, stage, by)])
    return need, list(able_to_approve(rollout.model, excluded_from(rollout)).exclude(username__in=by))


def _asking() -> QuerySet[Any, Any]:
    """The active rollouts whose policy requires approvals, with the approvals and the start of the wait."""
    held = DecisionRecord.objects.filter(rollout=OuterRef("pk"), code=Code.AWAITING_APPROVAL).order_by("-pk")
    asking = with_approvals(Rollout.objects.filter(_ASKS, state__in=_STATES))
    related = asking.annotate(held_at=Subquery(held.values("at")[:1])).select_related(
        "model__team", "environment", "candidate", "stable", "displaced", "report", "requested_by"
    )
    return related.defer(*(f"{arm}__{column}" for arm in ("candidate", "stable", "displaced") for column in LARGE))


def _lacking(rollout: Rollout, plan: Policy, people: Mapping[str, Sequence[str]]) -> str:
    """The next stage that lacks approvals, or an empty string."""
    given = {stage: len(who) for stage, who in people.items()}
    return next(iter(core.missing(plan.approvals, given, ahead_of(rollout, plan))), "")


def _waiting(actor: Actor, rollout: Rollout, plan: Policy, stage: str, by: tuple[str, ...]) -> WaitingApproval:
    is_asleep = rollout.state == S.AWAITING_APPROVAL
    is_held = is_asleep or str(rollout.engine_state.get("said", "")).startswith(f"hold:{Code.AWAITING_APPROVAL}")
    held_at: datetime | None = rollout.held_at  # type: ignore[attr-defined]
    return WaitingApproval(
        rollout=rollout, stage=stage, needed=plan.approvals[stage], by=by, is_held=is_held,
        since=held_at if is_held and held_at and not is_asleep else rollout.created_at,
        valid_s=plan.approval_valid_s, digests=pinned_by(rollout),
        will=what_follows(rollout, plan, stage, missing=plan.approvals[stage] - len(by)), plan=plan_in_words(plan),
        why_not=_why_not(actor, rollout, stage, by, rollout.newest_report),  # type: ignore[attr-defined]
        weaker=tuple(weakened(rollout, plan)),
    )  # fmt: skip


def weakened(rollout: Rollout, plan: Policy) -> list[str]:
    """Requirements of the model's present policy that the rollout's plan weakens; see `weaker_approvals`."""
    try:
        return weaker_approvals(stored_policy(rollout.model.rollout_policy, rollout.model.objectives), plan)
    except Invalid:
        return [UNREADABLE]


def awaited_of(release: Release) -> tuple[Rollout, dict[str, Any]] | None:
    """The newest rollout of the release as a candidate that has not ended and asks for approvals, with its stable release whole;
    and of its view (`view_of`) the facts of its buttons. One query."""
    asking = with_approvals(Rollout.objects.filter(_ASKS, candidate=release, state__in=sorted(ACTIVE)))
    related = ("model__team", "environment", "candidate__author", "stable__author", "report", "requested_by")
    rollout: Any = asking.select_related(*related).order_by("-pk").first()
    if rollout is None:
        return None
    plan, newest, now = rollout.effective_policy, rollout.newest_report, timezone.now()
    if not any(plan.approvals.values()):
        return None
    people = people_of_row(rollout, pinned_by(rollout), newest, rollout.given, now)
    ahead = ahead_of(rollout, plan)
    stages = [
        {"stage": stage, "needed": needed, "by": people.get(stage, []), "is_ahead": stage in ahead}
        for stage, needed in plan.approvals.items()
    ]
    is_old = newest != pinned_by(rollout).report
    superseded = {"code": "report_superseded", "message": _superseded(rollout)} if is_old else None
    told = {"approval_stages": stages, "next_approval": _lacking(rollout, plan, people) or None}
    return rollout, {**told, "blocked": superseded, "will_stop": None}


def _superseded(rollout: Rollout) -> str:
    return (
        f"{rollout.candidate.name} has a newer report than this rollout uses, so no further stage can be "
        "approved. End it, and start it again."
    )


def with_changes(told: Sequence[WaitingApproval]) -> list[WaitingApproval]:
    """Each with what its candidate changes against stable, and how many comments that has, and its target if that has no server. Three
    queries."""
    ids = {pk for one in told for pk in (one.rollout.candidate_id, one.rollout.stable_id) if pk is not None}
    manifests = {pk: json.loads(text or "{}") for pk, text in manifests_of(ids).items()}

    def before(one: WaitingApproval) -> dict[str, Any] | None:
        stable = one.rollout.stable_id
        return manifests[stable] if stable is not None else None

    targets = missing_targets(one.rollout for one in told)
    said = comment_counts({one.rollout.candidate_id for one in told})
    return [
        replace(
            one,
            changes=summary_of(before(one), manifests[one.rollout.candidate_id]),
            comments=said.get(one.rollout.candidate_id),
            target=targets.get(one.rollout.pk),
        )
        for one in told
    ]


def _why_not(actor: Actor, rollout: Rollout, stage: str, by: Sequence[str], newest: str) -> str:
    """Reason why the actor cannot approve this stage, as a sentence; empty for an approver."""
    if not may(actor, Verb.APPROVE_ROLLOUT, rollout.model.team.slug):
        return f"It takes the role release_manager in team {rollout.model.team.slug}."
    if actor.user_id is None:
        return "An approval takes a person; sign in as one."
    if actor.user_id == rollout.candidate.author_id:
        return f"You made {rollout.candidate.name}; someone else must approve it."
    if actor.user_id in excluded_from(rollout):
        return "You asked for this rollout; someone else must approve it."
    if actor.name in by:
        return f"You have approved {stage}; it takes other people for the rest."
    if newest != pinned_by(rollout).report:
        return _superseded(rollout)
    return ""


def what_follows(rollout: Rollout, plan: Policy, stage: str, *, missing: int) -> str:
    """What an approval of this stage leads to, as a sentence that a confirmation repeats."""
    if missing > 1:
        more = missing - 1
        return f"After yours, {stage} still needs {more} more approval{'s' * (more > 1)}."
    name, place = rollout.candidate.name, rollout.environment.title
    if stage == core.START:
        after = "its first copied requests" if plan.shadow else f"{_percent(plan.steps[0].weight_bp)} of the traffic"
        return f"{name} is loaded and warmed in {place}; then it gets {after}."
    if stage == core.BAKE:
        return f"Once its evidence is there, {name} gets {_percent(plan.bake.weight_bp)} of the traffic in {place}."
    if stage == core.PROMOTE:
        return f"Once it has baked, {name} becomes the stable release of {place}."
    index = next((i for i in range(len(plan.steps)) if plan.stage_name(i) == stage), 0)
    return f"Once its evidence is there, {name} gets {_percent(plan.steps[index].weight_bp)} of the traffic in {place}."


def plan_in_words(plan: Policy) -> str:
    """`25 % → 50 % → bake at 100 %`."""
    steps = " → ".join(_percent(step.weight_bp) for step in plan.steps)
    return f"{'shadowing → ' if plan.shadow else ''}{steps} → bake at {_percent(plan.bake.weight_bp)}"


def _percent(weight_bp: int) -> str:
    return f"{weight_bp / 100:g} %"


# --- waivers ----------------------------------------------------------------------------------------------------------


def waiting_waivers(actor: Actor, *, now: datetime | None = None) -> list[WaitingWaiver]:
    """Releases of the actor's teams, sealed within WAIVERS_WITHIN, that no gate and no server may run yet. One query."""
    since = (now or timezone.now()) - WAIVERS_WITHIN
    found = []
    releases = code_bearing(within_sight(*sight_of(actor), of="model__"), since).select_related("model__team", "author")
    for release in releases.order_by("sealed_at", "number"):
        kinds = _kinds_missing(release.paths, release.given)
        if kinds:
            risky = tuple(path for path in sorted(release.paths) if waivers_for([path]))
            will = f"Its gates and servers may then run the {' and '.join(kinds)} of {release.name}, and of no other release."
            found.append(WaitingWaiver(release, kinds, risky, will, _why_no_waiver(actor, release)))
    return sorted(found, key=lambda one: bool(one.why_not))


def _kinds_missing(paths: Iterable[str], given: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted((waivers_for(paths) or frozenset({"code"})) - set(given)))


def _why_no_waiver(actor: Actor, release: Release) -> str:
    if not may(actor, Verb.WAIVE_CODE, release.model.team.slug):
        return f"It takes the role release_manager in team {release.model.team.slug}."
    if release.author_id is not None and release.author_id == actor.user_id:
        return f"You pushed {release.name}; another release manager must waive its code."
    return ""


# --- how many ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """Numbers of the navigation: things that wait for this very person, and of the models that the person may see those without a server
    that is known to answer or with unread gateways (`rollouts.queries.gateway_reads`), each environment for itself, and live alarms."""

    waiting: int = 0
    lost: int = 0
    alarms: int = 0


def counted_for(actor: Actor, *, now: datetime | None = None) -> Counted:
    """One query, by the indexes of active rollouts, of releases with code and of routes."""
    if actor.user_id is None:
        return Counted()
    teams, now = teams_where(actor, Verb.APPROVE_ROLLOUT), now or timezone.now()
    rows = list(_counting(teams, *sight_of(actor), user=actor.user_id, since=now - WAIVERS_WITHIN, **_since(now)))
    rollouts, releases, *numbers = next(iter(rows), ([], []))
    waivers = sum(bool(_kinds_missing(row["paths"], row["given"])) for row in releases or [])
    return Counted(
        waivers + sum(_waits_for(actor, row, now) for row in rollouts or []), *(len(one or []) for one in numbers)
    )


def _counting(
    teams: frozenset[str] | None,
    seen: frozenset[str] | None,
    pattern: str | None,
    user: int,
    since: datetime,
    reports: datetime,
    reads: datetime,
) -> QuerySet[Any, tuple[Any, ...]]:
    """(rollouts, releases) that may wait for the user, None if the user approves nowhere; routes without a serving server, and live
    alarms. Lists in one row."""
    theirs, theirs_to_see = within_sight(teams, of="model__"), within_sight(seen, pattern, of="model__")
    asking = with_approvals(Rollout.objects.filter(_ASKS, theirs, state__in=_STATES))
    asking = asking.exclude(candidate__author=user).exclude(requested_by=user)
    code = code_bearing(theirs, since).exclude(author=user)
    return user_row(user).values_list(
        ArraySubquery(asking.values(row=JSONObject(**_COUNTED))),
        ArraySubquery(code.values(row=JSONObject(paths="paths", given="given"))),
        ArraySubquery(lost_or_unread(reports, reads).filter(theirs_to_see).values("pk")),
        ArraySubquery(Alarm.objects.filter(LIVE_ALARMS, theirs_to_see).values("pk")),
    )


def _since(now: datetime) -> dict[str, Any]:
    return {"reports": reports_since(now), "reads": now - READ_WITHIN}


#: What `_waits_for` reads of a rollout.
_COUNTED = {
    **{name: name for name in ("policy", "policy_digest", "state", "resume_state", "step_index", "stable_id")},
    **{name: name for name in ("newest_report", "given", "requested_by_id")},
    "author": "candidate__author_id", "manifest": "candidate__digest", "report": "report__digest",
}  # fmt: skip


def _waits_for(actor: Actor, row: Mapping[str, Any], now: datetime) -> bool:
    """Whether the actor, who is neither author nor requester, may approve the next stage that lacks approvals."""
    columns = ("policy", "policy_digest", "state", "resume_state", "step_index", "stable_id", "requested_by_id")
    rollout = Rollout(**{name: row[name] for name in columns}, candidate=Release(author_id=row["author"]))
    pinned = core.Digests(row["manifest"] or "", row["report"] or "", row["policy_digest"])
    people = people_of_row(rollout, pinned, row["newest_report"], row["given"], now)
    stage = _lacking(rollout, rollout.effective_policy, people)
    return bool(stage) and actor.name not in people.get(stage, ()) and row["newest_report"] == pinned.report
