"""Approvals and rejections of a rollout, or of a stage."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction

from accounts.core.access import Actor, Verb
from ledger.core.errors import Invalid, Refused, Stale, StateChanged
from ledger.queries import clock
from rollouts.actions.operator_commands import begin_rollback
from rollouts.actions.preconditions import lock_and_check, require_reason, transition_with_record
from rollouts.actions.start import close_undo_windows
from rollouts.actions.transitions import move, record
from rollouts.core.approvals import START, Digests, missing, stages_of
from rollouts.core.lifecycle import LIVE, WITHOUT_TRAFFIC, RolloutState
from rollouts.core.policy import Policy
from rollouts.models import Approval, Rollout
from rollouts.queries.approvals import ahead_of, excluded_from, given_to, people_by_stage, pinned_by
from rollouts.queries.obstacles import superseded_report

S = RolloutState
_APPROVABLE = WITHOUT_TRAFFIC | LIVE
_REJECTABLE = frozenset({S.AWAITING_APPROVAL}) | LIVE


@transaction.atomic
def approve(
    *,
    actor: Actor,
    rollout: Rollout,
    expected_version: int,
    reason: str = "",
    stage: str | None = None,
    seen: Digests | None = None,
) -> Rollout:
    """A person's yes to exactly the pinned manifest, report and policy before one stage: the next that lacks one, or `stage`.

    The last yes that the start lacks lets the rollout prepare, in this very transaction. Later stages may be approved
    beforehand; the engine enters one when it is approved and proven. `seen`: the digests that the person was shown.

    Raises:
        Refused: `forbidden`, `no_person`, `own_release` (author or requester), `report_superseded`.
        Stale: `other_digests`, where others were seen.
        StateChanged: `stage_passed`, `no_approval_needed`, `already_approved`. Invalid: `no_such_stage`.
    """
    rollout = lock_and_check(actor, Verb.APPROVE_ROLLOUT, rollout, expected_version, _APPROVABLE, "approve")
    approver = _person(actor, rollout)
    pinned = _still_newest(rollout)
    _refuse_other_digests(rollout, pinned, seen)
    plan = rollout.effective_policy
    given = people_by_stage(given_to(rollout))
    stage = _stage_to_approve(rollout, plan, given, stage)
    if actor.name in given.get(stage, []):
        raise StateChanged(
            "already_approved",
            f"{actor.name} has approved {stage} of rollout {rollout.pk} already; it takes other people for the rest.",
            stage=stage,
        )
    Approval.objects.create(
        rollout=rollout,
        approver_id=approver,
        manifest_digest=pinned.manifest,
        report_digest=pinned.report,
        policy_digest=pinned.policy,
        stage=stage,
        step_index=rollout.step_index,
        comment=reason,
        expires_at=clock.now() + timedelta(seconds=plan.approval_valid_s),
    )
    return _approved(rollout, actor, reason, stage, len(given.get(stage, [])) + 1, plan.approvals[stage], pinned)


def _person(actor: Actor, rollout: Rollout) -> int:
    """The approver. Raises Refused for a part of the system, and for the release's author and the rollout's requester."""
    if actor.user_id is None:
        raise Refused("no_person", "An approval takes a person; sign in as one.")
    if actor.user_id in excluded_from(rollout):
        raise Refused(
            "own_release",
            f"{actor.name} made {rollout.candidate.name} or asked for this rollout; someone else must approve it.",
        )
    return actor.user_id


def _refuse_other_digests(rollout: Rollout, pinned: Digests, seen: Digests | None) -> None:
    """Raises Stale if the person saw other digests than the rollout's: an approval covers the digests on the page."""
    if seen is not None and seen != pinned:
        raise Stale(
            "other_digests",
            f"Rollout {rollout.pk} rests on other digests than those that you were shown. Read it again, then decide.",
            **pinned.__dict__,
        )


def _still_newest(rollout: Rollout) -> Digests:
    """Digests of the approval. Raises Refused if the release has a newer report than the pinned report."""
    pinned, superseded = pinned_by(rollout), superseded_report(rollout)
    if superseded is None:
        return pinned
    newest, said = superseded
    raise Refused(
        "report_superseded",
        f"{said} Look at that report, end this rollout, and start it again.",
        pinned=pinned.report,
        newest=newest,
    )


def _stage_to_approve(rollout: Rollout, plan: Policy, given: dict[str, list[str]], asked: str | None) -> str:
    """The stage of the approval. Raises Invalid and StateChanged if no stage waits for an approval."""
    ahead = ahead_of(rollout, plan)
    if asked is not None and asked not in stages_of(plan):
        message, fix = f"there is no stage {asked!r}.", f"Name one of {', '.join(stages_of(plan))}."
        raise Invalid(
            "no_such_stage",
            f"Rollout {rollout.pk}: {message} {fix}",
            errors=[{"field": "stage", "message": message, "fix": fix}],
        )
    if asked is not None and asked not in ahead:
        raise StateChanged(
            "stage_passed",
            f"Rollout {rollout.pk} has entered {asked} already; there is nothing to approve.",
            stage=asked,
        )
    if asked is not None and plan.approvals.get(asked):
        return asked
    left = missing(plan.approvals, {stage: len(names) for stage, names in given.items()}, ahead)
    if asked is None and left:
        return next(iter(left))
    wanted = ", ".join(stage for stage in ahead if plan.approvals.get(stage))
    raise StateChanged(
        "no_approval_needed",
        f"{asked or f'Rollout {rollout.pk}'} needs no further approval"
        + (f"; those ahead that need one are {wanted}." if wanted else ": its policy asks for none."),
        stage=asked,
    )


def _approved(
    rollout: Rollout, actor: Actor, reason: str, stage: str, count: int, wanted: int, pinned: Digests
) -> Rollout:
    comment = f": {reason.strip().rstrip('.')}" if reason.strip() else ""
    said = f"{stage.capitalize()} approved by {actor.name}, {count} of {wanted}{comment}."
    facts = {"stage": stage, "given": count, "wanted": wanted, **pinned.__dict__}
    is_waiting = rollout.state == S.AWAITING_APPROVAL
    if is_waiting and stage == START and count >= wanted:
        said = f"{said} Getting {rollout.candidate.name} loaded and warm."
        close_undo_windows(rollout)
        move(
            rollout,
            S.PREPARING,
            actor=actor,
            reason=said,
            verb="rollout.approved",
            facts=facts,
            started_at=clock.now(),
        )
    else:
        said = f"{said} It takes {wanted - count} more." if count < wanted else said
        keeps = not (is_waiting and stage == START)
        move(
            rollout,
            S(rollout.state),
            actor=actor,
            reason=said,
            verb="rollout.approved",
            facts=facts,
            keeps_reason=keeps,
        )
    record(rollout, actor=actor, action="approve", reason=said, facts=facts)
    return rollout


@transaction.atomic
def reject(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """A person's final no: the rollout ends before any traffic, or is rolled back at once.

    Raises StateChanged("nothing_to_reject") for a live rollout of which no stage ahead needs an approval.
    """
    rollout = lock_and_check(actor, Verb.APPROVE_ROLLOUT, rollout, expected_version, _REJECTABLE, "reject")
    why = require_reason(reason)
    if rollout.state in WITHOUT_TRAFFIC:
        return transition_with_record(rollout, S.REJECTED, actor, "reject", f"Rejected by {actor.name}: {why}")
    plan = rollout.effective_policy
    gated = [stage for stage in ahead_of(rollout, plan) if plan.approvals.get(stage)]
    if not gated:
        raise StateChanged(
            "nothing_to_reject",
            f"No stage ahead of rollout {rollout.pk} needs an approval. To stop it, pause it or roll it back.",
            state=rollout.state,
        )
    return begin_rollback(
        rollout, actor, f"rejected before {gated[0]}: {why}", action="reject", verb="rollout.rejected"
    )
