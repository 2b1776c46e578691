"""Named reads of rollouts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from accounts.core.access import Actor, Verb, may
from accounts.core.errors import NotFound
from registry.models import Release, ServedModel
from rollouts.approvals import approvals_of
from rollouts.core.carry import Carry
from rollouts.core.decision import evidence_of
from rollouts.core.lifecycle import ACTIVE, FINAL, LIVE, RolloutState
from rollouts.core.plan import Policy
from rollouts.core.snapshot import Judged, judged_all
from rollouts.models import Decision, Rollout
from serving.models import Environment, Route
from serving.routing import acknowledged

DECISIONS_SHOWN = 50
_WHOLE = ("model__team", "environment", "candidate__author", "stable", "report", "requested_by")


def get_rollout(actor: Actor, rollout_id: int) -> Rollout:
    """Raises NotFound, also where the actor may not read the model's team."""
    rollout = Rollout.objects.select_related(*_WHOLE).filter(pk=rollout_id).first()
    if rollout is None or not may(actor, Verb.READ, rollout.model.team.slug):
        raise NotFound(
            "no_such_rollout",
            f"There is no rollout {rollout_id} that you may see. List the rollouts to see their numbers.",
            rollout=rollout_id,
        )
    return rollout


def active_rollout(environment: Environment, model: ServedModel) -> Rollout | None:
    """The one that has not ended, if any."""
    states = sorted(state.value for state in ACTIVE)
    return (
        Rollout.objects.select_related(*_WHOLE).filter(environment=environment, model=model, state__in=states).first()
    )


def active_rollouts() -> list[Rollout]:
    """Every rollout that the engine has something to do for, the oldest first, with its gateways."""
    states = sorted(state.value for state in ACTIVE - {RolloutState.REQUESTED, RolloutState.AWAITING_APPROVAL})
    return list(
        Rollout.objects.select_related(*_WHOLE)
        .prefetch_related("environment__gateways")
        .filter(state__in=states)
        .order_by("pk")
    )


def live_view(rollout: Rollout) -> dict[str, Any]:
    """Everything that a page or `rollout watch` shows of one rollout, as JSON. Instants are ISO 8601 in UTC."""
    policy = rollout.plan
    carry = Carry.from_json(rollout.engine_state)
    decisions = list(rollout.decisions.order_by("-pk")[:DECISIONS_SHOWN])
    return {
        "id": rollout.pk, "version": rollout.version, "model": rollout.model.slug, "environment": rollout.environment.slug,
        "state": rollout.state, "is_final": rollout.state in FINAL, "reason": rollout.reason,
        "candidate": _release(rollout.candidate), "stable": _release(rollout.stable),
        "report": rollout.report.digest if rollout.report else None,
        "policy": rollout.policy, "policy_digest": rollout.policy_digest,
        "step_index": rollout.step_index, "steps": _steps(rollout, policy, decisions), "step_started_at": _iso(rollout.step_started_at),
        "due_at": _iso(rollout.due_at), "weight_bp": rollout.weight_bp, "weight": _weight(rollout),
        "guards": [_guard(one, policy) for one in judged_all(carry, policy, has_stable=rollout.stable_id is not None)],
        "arms": {"step": carry.step.to_json(), "total": carry.total.to_json(), "last_tick": carry.last.to_json()},
        "users": {"requests": carry.user_requests, "errors": carry.user_errors},
        "clock": _clock(rollout, carry), "tick": rollout.tick,
        "requested_by": rollout.requested_by.username if rollout.requested_by else None,
        "approvals": [_approval(one) for one in rollout.approvals.select_related("approver").order_by("pk")],
        "created_at": _iso(rollout.created_at), "started_at": _iso(rollout.started_at), "ended_at": _iso(rollout.ended_at),
        "decisions": [decision_row(one) for one in decisions],
        "links": {"self": f"/api/v1/rollouts/{rollout.pk}", "observations": f"/api/v1/rollouts/{rollout.pk}/observations",
                  "decisions": f"/api/v1/rollouts/{rollout.pk}/decisions"},
    }  # fmt: skip


def summary(rollout: Rollout) -> dict[str, Any]:
    """A rollout as a row of a list."""
    return {
        "id": rollout.pk, "version": rollout.version, "model": rollout.model.slug, "environment": rollout.environment.slug,
        "state": rollout.state, "reason": rollout.reason, "candidate": _release(rollout.candidate), "stable": _release(rollout.stable),
        "step_index": rollout.step_index, "weight_bp": rollout.weight_bp, "observed_bp": rollout.observed_bp,
        "created_at": _iso(rollout.created_at), "ended_at": _iso(rollout.ended_at), "url": f"/api/v1/rollouts/{rollout.pk}",
    }  # fmt: skip


def decision_row(decision: Decision) -> dict[str, Any]:
    return {
        "id": decision.pk, "at": _iso(decision.at), "tick": decision.tick, "action": decision.action, "code": decision.code,
        "reason": decision.reason, "actor": decision.actor, "facts": decision.facts,
    }  # fmt: skip


def _release(release: Release | None) -> dict[str, Any] | None:
    return {"name": release.name, "number": release.number, "digest": release.digest} if release else None


def _weight(rollout: Rollout) -> dict[str, Any]:
    """Desired, acknowledged and observed, kept apart."""
    route = Route.objects.filter(environment_id=rollout.environment_id, model_id=rollout.model_id).first()
    ack = (
        acknowledged(route)
        if route and rollout.state in LIVE | {RolloutState.ROLLING_BACK, RolloutState.STUCK}
        else None
    )
    return {
        "commanded_bp": rollout.weight_bp, "is_acknowledged": ack.all_acked if ack else None,
        "acknowledged_bp": rollout.weight_bp if ack and ack.all_acked else None, "acknowledged_at": _iso(ack.acked_at) if ack else None,
        "error": ack.error if ack else "", "observed_bp": rollout.observed_bp,
    }  # fmt: skip


def _steps(rollout: Rollout, policy: Policy, decisions: list[Decision]) -> list[dict[str, Any]]:
    """The plan's steps and the bake, each with when its weight was written, if it was."""
    begun = {
        decision.facts["to_index"]: decision.at for decision in reversed(decisions) if "to_index" in decision.facts
    }
    current = len(policy.steps) if rollout.state in {RolloutState.BAKING, RolloutState.PROMOTED} else rollout.step_index
    rows = [*policy.steps, policy.bake]
    return [
        {
            "index": i, "name": "bake" if i == len(policy.steps) else f"step {i + 1}", "weight_bp": step.weight_bp,
            "weight_pct": step.weight_bp / 100, "min_s": step.min_s, "min_samples": step.min_samples, "deadline_s": step.deadline_s,
            "is_current": i == current, "is_done": i < current, "at": _iso(begun.get(i)),
        }
        for i, step in enumerate(rows)
    ]  # fmt: skip


def _guard(judged: Judged, policy: Policy) -> dict[str, Any]:
    """One guard with its evidence and the bars it is held against; e-values as log E, progress as shares of the bar."""
    guard = judged.guard
    bar_worse, bar_fine = policy.bar_worse, policy.bar_fine
    return {
        "name": guard.name, "words": guard.words, "indicator": guard.indicator, "threshold_ms": guard.threshold_us / 1000 or None,
        "max_frac": guard.max_frac, "limit_frac": judged.limit, "rate_candidate": judged.rate_candidate, "rate_stable": judged.rate_stable,
        **evidence_of(judged), "bar_worse": round(bar_worse, 4), "bar_fine": round(bar_fine, 4),
        "worse_progress": _within(max(judged.log_e_worse, judged.log_e_over) / bar_worse),
        "fine_progress": _within(judged.log_e_fine / bar_fine), "samples_to_go": judged.to_go,
    }  # fmt: skip


def _within(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 4)


def _clock(rollout: Rollout, carry: Carry) -> dict[str, Any]:
    """The clock of a rollback, all measured. Durations in seconds; None until both ends are known."""
    return {
        "first_bad_at": _iso(rollout.first_bad_at), "decided_at": _iso(rollout.decided_at), "zero_at": _iso(rollout.zero_at),
        "confirmed_at": _iso(rollout.confirmed_at), "fault_to_zero_s": _between(rollout.first_bad_at, rollout.zero_at),
        "decision_to_zero_s": _between(rollout.decided_at, rollout.zero_at),
        "bad_candidate_attempts": carry.total.candidate.bad.get("errors", 0),
        "bad_candidate_attempts_by_guard": dict(carry.total.candidate.bad),
    }  # fmt: skip


def _approval(approval: Any) -> dict[str, Any]:
    return {
        "approver": approval.approver.username, "at": _iso(approval.at), "step_index": approval.step_index, "comment": approval.comment,
        "manifest_digest": approval.manifest_digest, "report_digest": approval.report_digest, "policy_digest": approval.policy_digest,
    }  # fmt: skip


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def _between(first: datetime | None, last: datetime | None) -> float | None:
    return round((last - first).total_seconds(), 3) if first and last else None
