"""One rollout as people and programs see it: everything that pages, `rollout watch` and the API show, as JSON.

Instants are ISO 8601 in UTC, weights basis points, shares in [0, 1], e-values log E.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone

from accounts.core.addresses import API
from registry.models import Release
from rollouts.core.approvals import PROMOTE, WHY, Void, missing, stages_of
from rollouts.core.counter_deltas import FORCED, Arms, Counts
from rollouts.core.decision import code_now, evidence_of
from rollouts.core.engine_state import EngineState
from rollouts.core.freeze import frozen, local_words
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import FINAL, LIVE, RolloutState
from rollouts.core.policy import Policy, Source
from rollouts.core.rules.forced_calls import ForcedCalls
from rollouts.core.rules.second_look import crossing_words
from rollouts.core.stage_evidence import judged_all
from rollouts.models import DecisionRecord, Rollout
from rollouts.queries.approvals import Given, ahead_of, given_to, people_by_stage, who_may_approve
from rollouts.queries.obstacles import obstacle_of
from rollouts.queries.target import target_of
from rollouts.queries.undo_window import is_open
from serving.traffic.queries.routes import Followed, followed_route

S = RolloutState
DECISIONS_SHOWN = 50
MISMATCHES_SHOWN = 5
#: The instants of a rollback's clock.
CLOCK = ("first_bad_at", "decided_at", "zero_at", "confirmed_at")
#: Decisions that entered a stage.
_ENTERING = ("start", "advance", "bake", "promote_now", "replace")
#: Decisions after which the stages are entered anew: those of a first release, or those of another look.
_ANEW = ("replace", "withdraw")


def followed_by(rollout: Rollout) -> Followed | None:
    """The rollout's route and its gateways; None once it has no part in the route. One query."""
    if rollout.state in FINAL - {S.PROMOTED}:
        return None
    return followed_route(rollout.model_id, rollout.environment_id)


def view_of(rollout: Rollout) -> dict[str, Any]:
    """Everything of one rollout, now."""
    return view_with(rollout, followed_by(rollout))


def view_with(rollout: Rollout, followed: Followed | None) -> dict[str, Any]:
    """The same, with the result of `followed_by`."""
    policy = rollout.effective_policy.at_look(rollout.look)
    state = EngineState.from_json(rollout.engine_state)
    decisions = _decisions(rollout)
    entered = _entered(rollout, policy, decisions)
    return {
        **summary(rollout), "is_final": rollout.state in FINAL,
        "report": rollout.report.digest if rollout.report else None,
        "policy": rollout.policy, "policy_digest": rollout.policy_digest,
        "steps": _steps(rollout, policy, entered), "shadow": _shadow(rollout, policy),
        "step_started_at": _iso(rollout.step_started_at), "due_at": _iso(rollout.due_at),
        "weight": _weight(rollout, followed), "mirror_bp": rollout.mirror_bp, "promote_now": rollout.promote_now,
        "guards": [_guard(one, policy) for one in judged_all(state, policy, has_stable=rollout.stable_id is not None)],
        "arms": {name: _arms(one, policy) for name, one in (("step", state.step), ("total", state.total), ("last_tick", state.last))},
        "users": {"requests": state.user_requests, "errors": state.user_errors,
                  "forced": state.total.candidate.bad.get(FORCED, 0),
                  "refuses_forced": state.of(ForcedCalls).are_refused and rollout.state not in FINAL},
        "second_look": _second_look(rollout, policy), "clock": _clock(rollout, state, policy), "tick": rollout.tick,
        "requested_by": rollout.requested_by.username if rollout.requested_by else None,
        **approvals_view(rollout, policy, entered),
        "target": _target(rollout), "frozen": frozen_view(policy), "undo_window": _undo_window(rollout, followed),
        "supersedes": rollout.supersedes_id, "superseded_by": _superseded_by(rollout),
        "mismatches": _mismatches(rollout, policy),
        "started_at": _iso(rollout.started_at),
        "decisions": [decision_row(one) for one in decisions[:DECISIONS_SHOWN]],
        "links": {name: f"{API}/rollouts/{rollout.pk}{path}" for name, path in _LINKS.items()},
    }  # fmt: skip


_LINKS = {"self": "", "observations": "/observations", "decisions": "/decisions", "replay": "/replay"}


def summary(rollout: Rollout) -> dict[str, Any]:
    """A rollout as a row of a list."""
    return {
        "id": rollout.pk, "version": rollout.version, "model": rollout.model.slug, "environment": rollout.environment.slug,
        "state": rollout.state, "outcome": rollout.outcome, "reason": rollout.reason,
        "candidate": _release(rollout.candidate), "stable": _release(rollout.stable),
        "displaced": _release(rollout.displaced),
        "step_index": rollout.step_index, "weight_bp": rollout.weight_bp, "observed_bp": rollout.observed_bp,
        "created_at": _iso(rollout.created_at), "ended_at": _iso(rollout.ended_at), "url": f"{API}/rollouts/{rollout.pk}",
    }  # fmt: skip


def decision_row(decision: DecisionRecord) -> dict[str, Any]:
    """One decision of the record."""
    return {
        "id": decision.pk, "at": _iso(decision.at), "tick": decision.tick, "action": decision.action, "code": code_now(decision.code),
        "reason": decision.reason, "actor": decision.actor, "facts": decision.facts,
    }  # fmt: skip


def _release(release: Release | None) -> dict[str, Any] | None:
    return {"name": release.name, "number": release.number, "digest": release.digest} if release else None


# --- progress -------------------------------------------------------------------------------------------------------


def _weight(rollout: Rollout, followed: Followed | None) -> dict[str, Any]:
    """Desired, acknowledged and observed, kept apart."""
    ack = followed.ack if followed and rollout.state in LIVE | {S.ROLLING_BACK, S.STUCK} else None
    return {
        "commanded_bp": rollout.weight_bp, "is_acknowledged": ack.all_acked if ack else None,
        "acknowledged_bp": rollout.weight_bp if ack and ack.all_acked else None, "acknowledged_at": _iso(ack.acked_at) if ack else None,
        "error": ack.error if ack else "", "observed_bp": rollout.observed_bp,
    }  # fmt: skip


def _where(rollout: Rollout) -> RolloutState:
    """The stage of its state; while paused, the stage to come back to."""
    return S(rollout.resume_state or S.SHIFTING) if rollout.state == S.PAUSED else S(rollout.state)


def _decisions(rollout: Rollout) -> list[DecisionRecord]:
    """The newest first: the DECISIONS_SHOWN newest, and then those before them that entered a stage."""
    decisions = rollout.decisions.order_by("-pk")
    entering = Q(action__in=_ENTERING, facts__has_key="to_index")
    anew = Q(action__in=_ANEW)
    return list(decisions.filter(entering | anew | Q(pk__in=decisions.values("pk")[:DECISIONS_SHOWN])))


def _entered(rollout: Rollout, policy: Policy, decisions: list[DecisionRecord]) -> dict[str, datetime | None]:
    """When the rollout entered each stage of its present look, in their order; None if that was not recorded."""
    begun: dict[int, datetime | None] = {}
    for decision in reversed(decisions):
        if decision.action in _ANEW:
            begun.clear()
        if decision.action in _ENTERING and "to_index" in decision.facts:
            begun.setdefault(decision.facts["to_index"], decision.at)
    where, count = _where(rollout), len(policy.steps)
    is_promoted = where in {S.PROMOTED, S.REVERTED}
    last = max([rollout.step_index, count if is_promoted or where is S.BAKING else -1, *begun])
    found = {policy.stage_name(index): begun.get(index) for index in range(last + 1)}
    return {**found, PROMOTE: rollout.ended_at} if is_promoted else found


def _steps(rollout: Rollout, policy: Policy, entered: dict[str, datetime | None]) -> list[dict[str, Any]]:
    """The plan's steps and the bake, each with when its weight was written, if it was."""
    count, state = len(policy.steps), S(rollout.state)
    # after the promotion the bake is done as well; a rollout that is going back, or ended so, is in no stage any more
    current = len(entered) - 1
    is_over = state in FINAL or state in {S.ROLLING_BACK, S.STUCK}
    return [
        {
            "index": i, "name": "bake" if i == count else f"step {i + 1}", "stage": policy.stage_name(i),
            "weight_bp": step.weight_bp, "weight_pct": step.weight_bp / 100, "min_s": step.min_s,
            "min_samples": step.min_samples, "deadline_s": step.deadline_s,
            "is_current": i == current and not is_over, "is_done": i < current, "ended_here": i == current and is_over,
            "at": _iso(entered.get(policy.stage_name(i))),
        }
        for i, step in enumerate([*policy.steps, policy.bake])
    ]  # fmt: skip


def _shadow(rollout: Rollout, policy: Policy) -> dict[str, Any] | None:
    """The stage before any user traffic, if the policy has one."""
    shadow = policy.shadow
    if shadow is None:
        return None
    return {
        "sample_bp": shadow.sample_bp, "min_s": shadow.min_s, "min_samples": shadow.min_samples,
        "deadline_s": shadow.deadline_s, "is_current": _where(rollout) is S.SHADOWING, "is_done": rollout.step_index >= 0,
    }  # fmt: skip


def _guard(judged: Judged, policy: Policy) -> dict[str, Any]:
    """One guard with its evidence and the bars it is held against; progress as shares of the bar."""
    guard = judged.guard
    bar_worse, bar_fine = policy.bar_worse_of(guard), policy.bar_fine
    return {
        "name": guard.name, "words": guard.words, "indicator": guard.indicator, "source": guard.source,
        "threshold_ms": guard.threshold_us / 1000 or None, "max_frac": guard.max_frac, "limit_frac": judged.limit,
        "is_critical": guard.is_critical, "is_dry_run": guard.is_dry_run, "must_have_data": guard.must_have_data,
        "needs_proof": guard.needs_proof,
        "rate_candidate": judged.rate_candidate if judged.candidate else None,
        "rate_stable": judged.rate_stable if judged.stable else None,
        **evidence_of(judged), "bar_worse": round(bar_worse, 4), "bar_fine": round(bar_fine, 4),
        "is_worse": judged.log_e_worse >= bar_worse, "is_over": judged.log_e_over >= bar_worse, "is_fine": judged.log_e_fine >= bar_fine,
        "worse_progress": _within(max(judged.log_e_worse, judged.log_e_over) / bar_worse),
        "fine_progress": _within(judged.log_e_fine / bar_fine), "samples_to_go": judged.to_go,
    }  # fmt: skip


def _within(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 4)


def _arms(arms: Arms, policy: Policy) -> dict[str, Any]:
    return {"candidate": _counts(arms.candidate, policy), "stable": _counts(arms.stable, policy)}


def _counts(counts: Counts, policy: Policy) -> dict[str, Any]:
    """Bad attempts of the policy's guards only: sizes of requests and the inner edges of latency are counted beside them."""
    guards = [guard.name for guard in policy.guards if guard.name in counts.bad]
    return {**counts.to_json(), "bad": {name: counts.bad[name] for name in guards}}


def _second_look(rollout: Rollout, policy: Policy) -> dict[str, Any]:
    """The rollout's look, and every crossing before it with its clock. `begins_at`: when the next look begins, if it waits for that."""
    second = policy.second_look
    begins_at = None
    crossings = [_crossing(one) for one in rollout.crossings]
    is_waiting = rollout.state == S.SECOND_LOOK and rollout.step_started_at is not None
    if is_waiting and rollout.step_started_at is not None and not crossings[-1]["begun_by"]:
        begins_at = rollout.step_started_at + timedelta(seconds=second.after_s)
    return {
        "look": rollout.look, "looks": second.looks, "after_s": second.after_s, "is_waiting": rollout.is_withdrawn,
        "begins_at": _iso(begins_at), "crossings": crossings, "conviction": _conviction(rollout),
    }  # fmt: skip


def _crossing(crossing: dict[str, Any]) -> dict[str, Any]:
    instants = {name: _instant(crossing[name]) for name in CLOCK}
    begun_by = crossing.get("begun_by", "")
    return {**crossing, "begun_by": begun_by, "said": crossing_words(crossing), **_spans(instants)}


def _conviction(rollout: Rollout) -> dict[str, Any] | None:
    """The clock of the rollback that followed a crossing; None before, and if gateways never followed the crossing itself."""
    if not rollout.crossings or rollout.decided_at is None or rollout.state in {S.PROMOTED, S.REVERTED}:
        return None
    if rollout.decided_at.isoformat() == rollout.crossings[-1]["decided_at"]:
        return None
    at: dict[str, datetime | None] = {name: getattr(rollout, name) for name in CLOCK}
    return {**{name: _iso(one) for name, one in at.items()}, **_spans(at)}


def _instant(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _spans(at: Mapping[str, datetime | None]) -> dict[str, float | None]:
    """Durations in seconds; None until both ends are known."""
    return {
        "fault_to_zero_s": _between(at["first_bad_at"], at["zero_at"]),
        "decision_to_zero_s": _between(at["decided_at"], at["zero_at"]),
    }


def _clock(rollout: Rollout, state: EngineState, policy: Policy) -> dict[str, Any]:
    """The clock of the first time that traffic was taken away, all measured."""
    at: dict[str, datetime | None] = {name: getattr(rollout, name) for name in CLOCK}
    if rollout.crossings:
        first = {name: _instant(rollout.crossings[0][name]) for name in CLOCK}
        at = {**first, "zero_at": first["zero_at"] or at["zero_at"]}
    return {
        **{name: _iso(one) for name, one in at.items()}, **_spans(at),
        "bad_candidate_attempts": state.total.candidate.bad.get("errors", 0),
        "bad_candidate_attempts_by_guard": _counts(state.total.candidate, policy)["bad"],
    }  # fmt: skip


def _mismatches(rollout: Rollout, policy: Policy) -> list[dict[str, Any]]:
    """The latest answers that only the candidate got wrong, if a guard watches them: no model knows every golden item."""
    if all(guard.source is not Source.PROBER for guard in policy.guards):
        return []
    alone = rollout.mismatches.exclude(facts__is_stable_wrong=True).order_by("-pk")[:MISMATCHES_SHOWN]
    return [{"at": _iso(one.at), "source": one.source, "summary": one.summary, "facts": one.facts} for one in alone]


# --- people and time --------------------------------------------------------------------------------------------------


def approvals_view(rollout: Rollout, policy: Policy, entered: dict[str, datetime | None]) -> dict[str, Any]:
    """Who approved what, why one does not count, what each stage lacks, who may still give it, and what no approval can mend.

    A stage that was entered is told as it was then: with those who let it in, whatever became of their approvals since.
    """
    given = given_to(rollout)
    people = people_by_stage(given)
    counts = {stage: len(names) for stage, names in people.items()}
    ahead = ahead_of(rollout, policy)
    left = missing(policy.approvals, counts, ahead)
    used = [one for one in given if one.void is not Void.BEFORE_CROSSING and _was_used(one, entered)]
    let_in = {
        stage: list(dict.fromkeys(one.row.approver.username for one in used if one.row.stage == stage))
        for stage in entered
    }
    by = {**people, **let_in}
    stages = [
        {
            "stage": stage, "needed": policy.approvals[stage], "given": len(by.get(stage, [])), "by": by.get(stage, []),
            "missing": left.get(stage, 0), "is_ahead": stage in ahead, "is_entered": stage in entered,
        }
        for stage in stages_of(policy) if policy.approvals.get(stage)
    ]  # fmt: skip
    able = who_may_approve(rollout) if left else []
    lacks = next(iter(left.items()), None)
    given_by = people.get(lacks[0], []) if lacks else []
    obstacle = obstacle_of(rollout, ahead=ahead, lacks=lacks, given_by=given_by, able=able)
    is_now = obstacle is not None and obstacle.at_stage == ahead[0]
    return {
        "approvals": [_approval(one, was_used=one in used) for one in given],
        "approval_stages": stages,
        "next_approval": lacks[0] if lacks else None,
        "may_approve": able,
        "blocked": asdict(obstacle) if obstacle and is_now else None,
        "will_stop": asdict(obstacle) if obstacle and not is_now else None,
    }


def _was_used(given: Given, entered: dict[str, datetime | None]) -> bool:
    """Whether the stage that was approved was entered after that."""
    at = entered.get(given.row.stage)
    return given.row.stage in entered and (at is None or given.row.at <= at)


def _approval(given: Given, *, was_used: bool) -> dict[str, Any]:
    row = given.row
    return {
        "approver": row.approver.username, "stage": row.stage, "at": _iso(row.at), "expires_at": _iso(row.expires_at),
        "counts": given.void is None, "was_used": was_used, "void": given.void, "why_void": WHY[given.void] if given.void else "",
        "step_index": row.step_index, "comment": row.comment, "manifest_digest": row.manifest_digest,
        "report_digest": row.report_digest, "policy_digest": row.policy_digest,
    }  # fmt: skip


def frozen_view(policy: Policy) -> dict[str, Any] | None:
    """Until when nothing is opened, and why; None outside of every freeze window."""
    found = frozen(policy.freeze_windows, timezone.now())
    if found is None:
        return None
    window, until = found
    return {"until": until.isoformat(), "why": window.why, "local_until": local_words(window, until)}


def _undo_window(rollout: Rollout, followed: Followed | None) -> dict[str, Any] | None:
    """Target of a rollback by a click, and its deadline; None without a target."""
    if followed is None or not is_open(rollout, followed.route) or rollout.stable is None:
        return None
    return {"to": rollout.stable.name, "until": _iso(rollout.undo_until)}


def _target(rollout: Rollout) -> dict[str, Any] | None:
    target = target_of(rollout)
    return target.to_json() if target is not None else None


def _superseded_by(rollout: Rollout) -> int | None:
    return rollout.superseded_by.values_list("pk", flat=True).first() if rollout.state == S.SUPERSEDED else None


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def _between(first: datetime | None, last: datetime | None) -> float | None:
    return round((last - first).total_seconds(), 3) if first and last else None
