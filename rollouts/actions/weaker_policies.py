"""Refuses policies that loosen who has to agree, unless a person who may do so asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accounts.core.access import Actor, Verb, may
from ledger.core.errors import Invalid, Refused
from registry.models import Release, ServedModel
from rollouts.core.approvals import START
from rollouts.core.decision import listed
from rollouts.core.policy import Policy
from rollouts.core.policy_schema import parse_policy, stored_policy
from rollouts.core.policy_weakening import weaker_approvals
from rollouts.queries.inbox import UNREADABLE
from serving.models import Environment

_WHO_MAY = "This takes a release manager. Keep the approvals, or ask a release manager."
#: A release manager alone may not edit a model, and the model's team alone may not loosen who has to agree.
_WHO_MAY_CHANGE = (
    "This takes a person with both roles, model_team and release_manager, or an administrator. Keep the approvals, or ask "
    "an administrator."
)


def weakened_by(candidate: Release, environment: Environment, plan: Policy) -> list[str]:
    """Requirements of the model's own policy that the plan weakens; see `weaker_approvals`."""
    try:
        own = stored_policy(candidate.model.rollout_policy, candidate.model.objectives)
    except Invalid:
        return [UNREADABLE]
    if environment.needs_approval and not own.approvals.get(START):
        own = stored_policy({**own.document, "approvals": {**own.approvals, START: 1}})
    return weaker_approvals(own, plan)


def refuse_weaker(actor: Actor, candidate: Release, weaker: Sequence[str]) -> None:
    """Who asks for a rollout does not loosen who has to agree: that takes a release manager. Raises Refused."""
    model = candidate.model
    if weaker and not may(actor, Verb.APPROVE_ROLLOUT, model.team.slug, model.slug):
        raise Refused(
            "fewer_approvals", f"{fewer_approvals(model.slug, weaker)} {_WHO_MAY}", field="policy", weaker=list(weaker)
        )


def refuse_weaker_model_policy(actor: Actor, model: ServedModel, after: Mapping[str, Any]) -> None:
    """The same for a change of the model's own policy to `after`, its settings that differ. Raises Refused."""
    if "rollout_policy" not in after:
        return
    new = parse_policy(after["rollout_policy"], after.get("objectives", model.objectives))
    try:
        weaker = weaker_approvals(stored_policy(model.rollout_policy, model.objectives), new)
    except Invalid:
        weaker = [UNREADABLE]
    if weaker and not may(actor, Verb.APPROVE_ROLLOUT, model.team.slug, model.slug):
        said = f"The new policy of {model.slug} asks for less than the present one: {listed(weaker)}."
        raise Refused("fewer_approvals", f"{said} {_WHO_MAY_CHANGE}", field="rollout_policy", weaker=list(weaker))


def fewer_approvals(slug: str, weaker: Sequence[str]) -> str:
    """That a rollout asks for less than the model's own policy, as a sentence."""
    return f"This asks for less than the own policy of {slug}: {listed(weaker)}."
