"""Which rules of the model's own policy another policy weakens: a person who asks for a rollout must not loosen who has to agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accounts.core.quantities import duration_text, weight_text
from rollouts.core.approvals import BAKE, PROMOTE
from rollouts.core.freeze import uncovered
from rollouts.core.policy import FULL_BP, Policy, WhenStableIsGone


def weaker_approvals(own: Policy, other: Policy) -> list[str]:
    """Half sentences, one for each rule of `own` that `other` weakens: approvals, how long they count, freeze windows,
    and who replaces a stable release that has no server.

    Stages of two policies have different names, so approvals are compared by weight: up to each weight of either, `other` must ask for
    at least as many approvals, in all and at one stage. Empty if `other` requires at least the same.
    """
    return [*_fewer(own, other), *_longer(own, other), *_thawed(own, other), *_replaced(own, other)]


def differing_fields(own: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the fields in which the documents of two policies differ, in alphabetical order."""
    return sorted(name for name in {*own, *other} if own.get(name) != other.get(name))


def _fewer(own: Policy, other: Policy) -> Iterator[str]:
    for weight_bp in sorted({stage.weight_bp for plan in (own, other) for stage in (*plan.steps, plan.bake)}):
        wanted, given = _asked_up_to(own, weight_bp), _asked_up_to(other, weight_bp)
        if sum(given) < sum(wanted) or max(given) < max(wanted):
            yield f"{_count(given)} up to {weight_text(weight_bp)} of the traffic in place of {_count(wanted)}"
            return
    for stage, after in ((BAKE, "the bake"), (PROMOTE, "the promotion")):
        if other.approvals.get(stage, 0) < own.approvals.get(stage, 0):
            yield f"{other.approvals.get(stage, 0)} before {after} in place of {own.approvals[stage]}"
            return
    wanted, given = _asked_up_to(own, FULL_BP), _asked_up_to(other, FULL_BP)
    if sum(given) < sum(wanted):
        yield f"{_count(given)} in all in place of {_count(wanted)}"


def _asked_up_to(plan: Policy, weight_bp: int) -> list[int]:
    """Approvals of each stage until the candidate has this share of the traffic; of every stage for all of it."""
    counts = []
    for index, step in enumerate((*plan.steps, plan.bake)):
        counts.append(plan.approvals.get(plan.stage_name(index), 0))
        if step.weight_bp >= weight_bp:
            return counts
    return [*counts, plan.approvals.get(PROMOTE, 0)]


def _count(counts: list[int]) -> str:
    total = sum(counts)
    return f"{total} approval" if total == 1 else f"{total} approvals"


def _longer(own: Policy, other: Policy) -> Iterator[str]:
    if own.approvals and other.approval_valid_s > own.approval_valid_s:
        lasts, wanted = duration_text(other.approval_valid_s), duration_text(own.approval_valid_s)
        yield f"an approval counts for {lasts} in place of {wanted}"


def _thawed(own: Policy, other: Policy) -> Iterator[str]:
    if windows := uncovered(own.freeze_windows, other.freeze_windows):
        named = ", ".join(window.why or "without a reason" for window in windows)
        yield f"no single freeze window covers all of {named}"


def _replaced(own: Policy, other: Policy) -> Iterator[str]:
    if other.when_stable_is_gone is not WhenStableIsGone.REPLACE:
        return
    if own.when_stable_is_gone is not WhenStableIsGone.REPLACE:
        yield "a stable release without a server is replaced by the policy in place of a release manager"
    elif other.stable_gone_s < own.stable_gone_s:
        lasts, wanted = duration_text(other.stable_gone_s), duration_text(own.stable_gone_s)
        yield f"a stable release without a server is replaced after {lasts} in place of {wanted}"
