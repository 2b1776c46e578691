"""The engine's verbs: what one tick writes, all in one transaction, so that dying at any line leaves a tick whole or undone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from accounts.core.quantities import weight_text
from ledger.actions import append_event
from ledger.actions.transitions import reread
from ledger.core.errors import Stale, StateChanged
from rollouts.actions.control import begin_control
from rollouts.actions.seen_sizes import keep_sizes_of
from rollouts.actions.take_over import take_over
from rollouts.actions.tick_records import ENGINE, decision_of, write
from rollouts.actions.transitions import drain_release, move, named, record, shut
from rollouts.core.decision import Action, Code
from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.core.policy import FULL_BP
from rollouts.core.rules.second_look import counts_behind, crossing_words
from rollouts.core.rules.stable_replica import StableReplica
from rollouts.core.tick import Outcome, Tick, outcome_of
from rollouts.models import Rollout
from rollouts.queries.first_broken import counted_after, first_asked
from rollouts.queries.headroom import proofs_for
from rollouts.queries.release_usage import is_in_use
from rollouts.queries.stable_odd import stable_odd_of
from rollouts.queries.undo_window import aborted_take_overs
from serving.environments.actions.locks import lock_routes
from serving.models import Route
from serving.targets.platforms import platform_of
from serving.traffic.actions.routes import set_route
from serving.traffic.queries.endpoints import replica_at

S = RolloutState


@transaction.atomic
def commit_tick(rollout: Rollout, tick: Tick, *, fence: int) -> Outcome:
    """One rollout's tick: counters, evidence, observation, at most one effect, and the decision if it is new.

    `fence` is the leader's token. Raises StateChanged when a person moved the rollout meanwhile, or a newer engine writes
    it: nothing is written then.
    """
    outcome = outcome_of(tick)
    warning = tick.warning if outcome.is_recorded else ""
    write(rollout, tick, outcome, fence=fence)
    if tick.is_effect:
        lock_routes(
            rollout.environment, rollout.candidate, rollout.stable or rollout.displaced
        )  # an effect may drain either
        _apply(rollout, tick, fence)
    if outcome.is_recorded:
        decision_of(rollout, tick).save(force_insert=True)
    if warning:
        append_event(
            verb=warning, subject_type="rollout", subject_id=rollout.pk, actor=ENGINE, reason=tick.decision.reason,
            facts={**named(rollout), **_asked(tick), "code": tick.decision.code.value},
        )  # fmt: skip
    return outcome


def _asked(tick: Tick) -> dict[str, Any]:
    """The stage that waits for an approval, and its missing approvals, if approvals hold the rollout."""
    facts = tick.decision.facts
    return {name: facts[name] for name in ("stage", "given", "wanted") if name in facts}


def _apply(rollout: Rollout, tick: Tick, fence: int) -> None:
    policy, decision = tick.snapshot.policy, tick.decision
    action = decision.action
    if action is Action.SHADOW:
        mirror_bp = policy.shadow.sample_bp if policy.shadow else 0
        _weigh(rollout, tick, fence, S.SHADOWING, 0, verb="rollout.shadowing", mirror_bp=mirror_bp)
    elif action in {Action.START, Action.ADVANCE}:
        index = 0 if action is Action.START else rollout.step_index + 1
        verb = "rollout.started" if action is Action.START else "rollout.advanced"
        _weigh(rollout, tick, fence, S.SHIFTING, policy.steps[index].weight_bp, verb=verb, step_index=index)
    elif action is Action.REPLACE:
        take_over(rollout, actor=ENGINE, reason=decision.reason, facts=decision.facts, fence=fence)
    elif action is Action.BAKE:
        _weigh(rollout, tick, fence, S.BAKING, policy.bake.weight_bp, verb="rollout.baking")
    elif action is Action.PROMOTE:
        _promote(rollout, tick, fence)
    elif action is Action.PAUSE:
        move(rollout, S.PAUSED, actor=ENGINE, reason=decision.reason, facts=decision.facts, resume_state=rollout.state)
    elif action is Action.WITHDRAW:
        _withdraw(rollout, tick, fence)
    elif action is Action.ROLL_BACK:
        _roll_back(rollout, tick, fence)
    elif action is Action.CANCEL:
        move(rollout, S.CANCELLED, actor=ENGINE, reason=decision.reason, facts=decision.facts)
        drain_release(rollout, rollout.candidate, actor=ENGINE, reason=decision.reason)


def _weigh(
    rollout: Rollout, tick: Tick, fence: int, to: RolloutState, weight_bp: int, *, verb: str, **changes: Any
) -> None:
    """Writes a weight; the step's clock starts when the gateways have acknowledged it."""
    reason = tick.decision.reason
    mirror_bp = changes.get("mirror_bp", rollout.mirror_bp)
    write_route(rollout, weight_bp, fence=fence, reason=reason, mirror_bp=mirror_bp)
    move(
        rollout,
        to,
        actor=ENGINE,
        reason=reason,
        verb=verb,
        facts={**tick.decision.facts, "weight_bp": weight_bp},
        weight_bp=weight_bp,
        step_started_at=None,
        due_at=None,
        **changes,
    )


@transaction.atomic
def write_route(
    rollout: Rollout,
    weight_bp: int,
    *,
    fence: int,
    reason: str,
    is_promoting: bool = False,
    mirror_bp: int | None = None,
) -> Route:
    """The route: the gateways' orders at this weight. Idempotent. `mirror_bp`: None for the rollout's own.

    Raises StateChanged when the rollout moved since it was read: the engine must not reopen a route that a person closed.
    """
    lock_as_read(rollout, fence)
    stable = None if is_promoting else rollout.stable
    mirror_bp = rollout.mirror_bp if mirror_bp is None else mirror_bp
    return set_route(
        actor=ENGINE, environment=rollout.environment, model=rollout.model, stable=stable or rollout.candidate,
        candidate=rollout.candidate if stable else None, candidate_bp=weight_bp if stable else 0,
        mirror_bp=mirror_bp if stable else 0, fence=fence, proofs=proofs_for(rollout), reason=reason,
    )  # fmt: skip


@transaction.atomic
def ask_for_candidate(rollout: Rollout, *, fence: int) -> None:
    """Asks for a replica of the candidate unless it has one. Raises what `Platform.start` does, and StateChanged.

    Not for a rollout that was cancelled meanwhile: nothing would drain the replica again.
    """
    lock_as_read(rollout, fence)
    reason = f"Rollout {rollout.pk} prepares it."
    platform_of(rollout.environment).start(rollout.candidate, rollout.environment, actor=ENGINE, reason=reason)


@transaction.atomic
def ask_for_replicas(rollout: Rollout, replicas: int, weight_bp: int, *, fence: int) -> None:
    """So many servers of the candidate are to be, for this weight. Raises what `Platform.scale` does, and StateChanged."""
    lock_as_read(rollout, fence)
    reason = f"Rollout {rollout.pk} goes to {weight_text(weight_bp)} next, if that is proven."
    where = rollout.environment
    platform_of(where).scale(rollout.candidate, where, replicas, actor=ENGINE, reason=reason)


@transaction.atomic
def set_replica_aside(rollout: Rollout, name: str, *, fence: int) -> None:
    """The candidate's replica by this name (`names_of`) gets no more traffic. Raises as `Platform.set_aside`, and StateChanged."""
    lock_as_read(rollout, fence)
    found = replica_at(rollout.candidate_id, rollout.environment_id, name)
    if found is not None:
        reason = f"Rollout {rollout.pk}: it fails, unlike the other replicas."
        platform_of(rollout.environment).set_aside(found.replica, actor=ENGINE, reason=reason)


@transaction.atomic
def replace_stable_replica(rollout: Rollout, odd: StableReplica, *, fence: int) -> None:
    """A new replica in the place of stable's odd replica, which answers until then, or gets no more traffic. Nothing if it has stopped.
    Raises as `Platform.replace`, and StateChanged."""
    lock_as_read(rollout, fence)
    found = stable_odd_of(rollout, odd)
    if found:
        reason = f"Rollout {rollout.pk}: it fails, unlike the other replicas, and the candidate is compared with it."
        platform = platform_of(rollout.environment)
        platform.replace(found.replica, actor=ENGINE, reason=reason, set_aside=odd.is_aside)


def lock_as_read(rollout: Rollout, fence: int) -> None:
    """Locks the row as it was read, until the transaction ends. Raises StateChanged when it moved since, Stale when a
    newer engine leads."""
    seen = Rollout.objects.select_for_update(no_key=True).filter(pk=rollout.pk, version=rollout.version)
    current = seen.values_list("fence", flat=True).first()
    if current is None:
        raise StateChanged("state_changed", f"Rollout {rollout.pk} moved meanwhile; the next tick reads it again.")
    if current > fence:
        raise Stale(
            "fence_outdated",
            f"Another engine (token {current}) has led since token {fence}; stop, and let it write the rollout.",
            fence=fence,
            current=current,
        )


def lift_rollout_fences(fence: int) -> None:
    """From now on no engine with an older token writes any rollout. For a new leader, once."""
    active = sorted(state.value for state in ACTIVE)
    Rollout.objects.filter(state__in=active, fence__lt=fence).update(fence=fence)


def _promote(rollout: Rollout, tick: Tick, fence: int) -> None:
    """First the route, with the old stable still warm; once every gateway has acknowledged it, the end."""
    reason = tick.decision.reason
    if not tick.engine_state.is_promoting:
        write_route(rollout, FULL_BP, fence=fence, reason=reason, is_promoting=True)
        Rollout.objects.filter(pk=rollout.pk).update(weight_bp=FULL_BP, reason=reason)
        reread(rollout)
        return
    if tick.snapshot.observed.displaced_servers:
        rollout.stable = rollout.displaced  # it answers again, so one step goes back to it
    window_s = tick.snapshot.policy.instant_window_s if rollout.stable is not None else 0
    undo_until = tick.at + timedelta(seconds=window_s) if window_s else None
    facts = {**tick.decision.facts, "undo_until": undo_until.isoformat() if undo_until else None}
    if rollout.crossings:
        facts["crossings"] = len(rollout.crossings)
        reason = f"{reason} Before that: {' '.join(crossing_words(one) for one in rollout.crossings)}"
    changes: dict[str, Any] = {
        "weight_bp": FULL_BP, "mirror_bp": 0, "undo_until": undo_until, "stable": rollout.stable,
    }  # fmt: skip
    aborted = aborted_take_overs().filter(environment=rollout.environment, model=rollout.model)
    earlier = [one.displaced for one in aborted.select_related("displaced").order_by("pk")]
    lock_routes(rollout.environment, *earlier)  # before the event, as those that `commit_tick` locked
    move(rollout, S.PROMOTED, actor=ENGINE, reason=reason, facts=facts, **changes)
    if undo_until is not None:
        begin_control(rollout, tick.snapshot.policy.control, actor=ENGINE, fence=fence)
    keep_sizes_of(rollout, actor=ENGINE)
    before = rollout.stable or rollout.displaced
    reason = f"{rollout.candidate.name} was promoted over it."
    if before is not None and undo_until is None:
        drain_release(rollout, before, actor=ENGINE, reason=reason)
    for release in earlier:
        if release is not None and release != before and not is_in_use(release, rollout.environment):
            drain_release(rollout, release, actor=ENGINE, reason=reason)


def _withdraw(rollout: Rollout, tick: Tick, fence: int) -> None:
    """Weight 0 as in a rollback; the candidate keeps its servers and its place in the route for another look."""
    decision, was = tick.decision, S(rollout.state)
    shut(rollout, actor=ENGINE, reason=decision.reason, fence=fence)
    move(
        rollout,
        S.SECOND_LOOK,
        actor=ENGINE,
        reason=decision.reason,
        facts=decision.facts,
        resume_state=S.PAUSED if was is S.PAUSED else "",
        crossings=[*rollout.crossings, _crossing(rollout, tick)],
        weight_bp=0,
        step_index=-1,
        step_started_at=None,
        due_at=None,
    )


def _crossing(rollout: Rollout, tick: Tick) -> dict[str, Any]:
    """The record of `Rollout.crossings`, with the counts of the guard behind it."""
    code, guard, first_bad_at = tick.decision.code, tick.decision.guard or "errors", counted_after(tick)
    judged = next((one for one in tick.snapshot.evidence.judged if one.guard.name == guard), None)
    words, counts = counts_behind(code, judged) if judged else ("", None)
    return {
        "code": code.value, "reason": tick.decision.reason, "words": words, "counts": counts, "state": str(tick.snapshot.where),
        "step_index": rollout.step_index, "weight_bp": rollout.weight_bp,
        "first_bad_at": first_bad_at.isoformat() if first_bad_at else None, "decided_at": tick.at.isoformat(),
        "zero_at": None, "confirmed_at": None,
    }  # fmt: skip


def _roll_back(rollout: Rollout, tick: Tick, fence: int) -> None:
    """Weight 0, in the same transaction as the decision."""
    decision = tick.decision
    rollout.stable = rollout.stable or rollout.displaced  # decided only if the displaced release answers again
    shut(rollout, actor=ENGINE, reason=decision.reason, fence=fence)
    move(
        rollout,
        S.ROLLING_BACK,
        actor=ENGINE,
        reason=decision.reason,
        facts=decision.facts,
        stable=rollout.stable,
        weight_bp=0,
        decided_at=tick.at,
        first_bad_at=counted_after(tick),
        step_started_at=None,
        due_at=None,
    )


@transaction.atomic
def note_acknowledged_zero(
    rollout: Rollout, acked_at: datetime, *, fence: int, because: str = "Every gateway has acknowledged weight 0."
) -> None:
    """The gateways send the candidate nothing new since `acked_at`; a rollout that was stuck goes on, `because` of this."""
    lock_as_read(rollout, fence)
    if rollout.is_withdrawn:
        _note_crossing(rollout, zero_at=max(acked_at, datetime.fromisoformat(rollout.crossings[-1]["decided_at"])))
        return
    zero_at = max(acked_at, rollout.decided_at or acked_at)
    Rollout.objects.filter(pk=rollout.pk, zero_at=None).update(zero_at=zero_at)
    reread(rollout)
    if rollout.state == S.STUCK:
        move(rollout, S.ROLLING_BACK, actor=ENGINE, reason=because)


@transaction.atomic
def note_withdrawn(rollout: Rollout, confirmed_at: datetime, *, fence: int) -> None:
    """The counters show no request for the candidate at weight 0 since `confirmed_at`; the rollout waits for its next look."""
    lock_as_read(rollout, fence)
    _note_crossing(rollout, confirmed_at=confirmed_at, first_bad_at=first_asked(rollout))


def _note_crossing(rollout: Rollout, **instants: datetime | None) -> None:
    """Adds instants to the last crossing's record. No other state, so the version stays."""
    last = {**rollout.crossings[-1], **{name: at.isoformat() for name, at in instants.items() if at}}
    Rollout.objects.filter(pk=rollout.pk).update(crossings=[*rollout.crossings[:-1], last])
    reread(rollout)


@transaction.atomic
def note_stuck(rollout: Rollout, why: str, *, fence: int) -> None:
    """Loudly: the rollback cannot be verified. The engine keeps trying. `why` is a sentence without its full stop."""
    lock_as_read(rollout, fence)
    reason = f"{why}. Traffic may still reach {rollout.candidate.name}; look at the gateways."
    changes: dict[str, Any] = {}
    if rollout.is_withdrawn:  # a gateway that keeps sending leaves nothing to look at again
        last = rollout.crossings[-1]
        changes = {name: last[name] and datetime.fromisoformat(last[name]) for name in ("first_bad_at", "decided_at")}
        changes |= {"step_started_at": None, "due_at": None, "resume_state": ""}
    move(rollout, S.STUCK, actor=ENGINE, reason=reason, **changes)
    record(rollout, actor=ENGINE, action="hold", code=Code.ROLLING_BACK, reason=reason)


@transaction.atomic
def finish_rollback(
    rollout: Rollout, *, confirmed_at: datetime | None, fence: int, are_answers_due: bool = False
) -> None:
    """Traffic is back: drain the candidate, take it out of the route, end. A first release keeps its traffic.

    `are_answers_due`: requests that began before weight 0 still end on the candidate, so that its counters are not silent.
    """
    lock_as_read(rollout, fence)
    lock_routes(rollout.environment, rollout.candidate)
    if rollout.stable is None:
        move(rollout, S.ROLLED_BACK, actor=ENGINE, reason=rollout.reason)
        keep_sizes_of(rollout, actor=ENGINE)
        return  # a displaced release stays wanted: the traffic goes back to it once it answers
    seen = "and the counters show it" if confirmed_at else "but the counters could not confirm it"
    if confirmed_at is None and are_answers_due:
        seen += f": answers of {rollout.candidate.name} to requests from before are still on their way"
    reason = f"{rollout.reason.rstrip()} Every gateway has acknowledged weight 0, {seen}."
    set_route(
        actor=ENGINE,
        environment=rollout.environment,
        model=rollout.model,
        stable=rollout.stable,
        fence=fence,
        reason=f"{rollout.candidate.name} leaves the route, as its rollback has ended.",
    )
    asked_at = first_asked(rollout)
    move(rollout, S.ROLLED_BACK, actor=ENGINE, reason=reason, confirmed_at=confirmed_at, first_bad_at=asked_at)
    keep_sizes_of(rollout, actor=ENGINE)
    drain_release(rollout, rollout.candidate, actor=ENGINE, reason=reason)
