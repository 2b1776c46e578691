"""What every verb of a person checks first, in this order: permission, version, state; then freeze and approvals."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from django.utils import timezone

from accounts.core.access import Actor, Verb, require, require_version
from ledger.core.errors import Invalid, Refused, StateChanged
from rollouts.actions.transitions import move, record
from rollouts.core.approvals import missing
from rollouts.core.freeze import frozen, in_words
from rollouts.core.instead import instead_of
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Policy
from rollouts.core.shortage import NEEDS_REPLICAS, shortage_at
from rollouts.core.snapshot import Identity
from rollouts.models import Rollout
from rollouts.queries.approvals import approvals_of
from rollouts.queries.headroom import headroom_of, routed_per_s


def lock_and_check(
    actor: Actor,
    verb: Verb,
    rollout: Rollout,
    expected_version: int | None,
    states: Collection[RolloutState],
    word: str,
    *,
    already: Collection[RolloutState] = (),
) -> Rollout:
    """The rollout, locked. Raises Refused, Stale, StateChanged, in this order.

    `expected_version`: the caller's version; None for any, for verbs that only remove traffic. `already`: states in which
    there is nothing left to do, which are no reason to refuse either.
    """
    found = (
        Rollout.objects.select_for_update(no_key=True, of=("self",))
        .select_related("model__team", "environment", "candidate", "stable", "displaced", "report")
        .get(pk=rollout.pk)
    )
    require(actor, verb, found.model.team.slug, found.model.slug)
    require_version(found.version, expected_version, f"Rollout {found.pk}", state=found.state)
    if found.state not in already:
        refuse_state(found, states, word)
    return found


def refuse_state(rollout: Rollout, states: Collection[RolloutState], word: str) -> None:
    """Raises StateChanged("wrong_state") outside these states. The message names the verb that fits."""
    if rollout.state in states:
        return
    instead = instead_of(
        word,
        RolloutState(rollout.state),
        rollout=rollout.pk,
        model=rollout.model.slug,
        environment=rollout.environment.slug,
        candidate=rollout.candidate.name,
        stable=rollout.stable.name if rollout.stable is not None else "",
        reason=rollout.reason,
    )
    raise StateChanged(
        "wrong_state",
        f"Rollout {rollout.pk} is {rollout.state.replace('_', ' ')}, so {word} does nothing there. {instead}",
        state=rollout.state,
    )


def refuse_frozen(plan: Policy, word: str) -> None:
    """Raises Refused("frozen") within a freeze window of the policy, with its end and its reason."""
    found = frozen(plan.freeze_windows, timezone.now())
    if found is None:
        return
    window, until = found
    why = f" ({window.why.rstrip('.')})" if window.why else ""
    raise Refused(
        "frozen",
        f"Changes are frozen until {in_words(window, until)}{why}. {word} after that; what shuts works at any time.",
        until=until.isoformat(),
        why=window.why,
    )


def refuse_unapproved(rollout: Rollout, plan: Policy, stages: Iterable[str], word: str) -> None:
    """Raises Refused("approval_missing") if a stage lacks approvals: skipping the wait skips no approval."""
    given = approvals_of([rollout]).get(rollout.pk, {})
    left = missing(plan.approvals, given, stages)
    if not left:
        return
    said = ", ".join(f"{stage} {given.get(stage, 0)} of {plan.approvals[stage]}" for stage in left)
    raise Refused(
        "approval_missing",
        f"{word} skips waiting, not approvals; given so far: {said}. Ask those who may approve, then repeat.",
        missing=left,
    )


def refuse_without_headroom(rollout: Rollout, weight_bp: int, word: str) -> None:
    """Raises StateChanged("needs_replicas", "no_room") if the weight would leave either arm without enough servers."""
    stable = rollout.stable
    names = (rollout.candidate.name, stable.name if stable is not None else "")
    who = Identity(rollout.pk, stable is not None, *names)
    found = shortage_at(headroom_of(rollout), weight_bp, routed_per_s(rollout), who)
    if found is None:
        return
    code = "needs_replicas" if found.because == NEEDS_REPLICAS else "no_room"
    raise StateChanged(
        code,
        f"{word} skips waiting for proof, not for servers: {found.said}. More of them come by "
        f"`sluicegate api POST /models/{rollout.model.slug}/releases/{found.release}/replicas "
        f"environment={rollout.environment.slug} replicas:=N --if-match '*'`, then repeat.",
        **found.facts,
    )


def require_reason(reason: str) -> str:
    """The reason as a sentence. Raises Invalid("reason_missing") when there is none."""
    text = reason.strip()
    if not text:
        raise Invalid(
            "reason_missing",
            "Say why, in one sentence: the reason is kept with the decision.",
            errors=[{"field": "reason", "message": "the reason is empty.", "fix": "Write one sentence."}],
        )
    return text if text.endswith((".", "!", "?")) else f"{text}."


def transition_with_record(
    rollout: Rollout,
    to: RolloutState,
    actor: Actor,
    action: str,
    reason: str,
    verb: str = "",
    facts: dict[str, Any] | None = None,
    **changes: Any,
) -> Rollout:
    """The rollout moved, with its event and the person's decision on record."""
    move(rollout, to, actor=actor, reason=reason, verb=verb, **changes)
    shown = {"weight_bp": rollout.weight_bp, "step_index": rollout.step_index, **(facts or {})}
    record(rollout, actor=actor, action=action, reason=reason, facts=shown)
    return rollout
