"""A rollout of another candidate in the place of a rollout without traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from accounts.core.access import Actor, Verb, require
from ledger.core.errors import Invalid, StateChanged
from registry.models import Release
from rollouts.actions.preconditions import lock_and_check, require_reason, transition_with_record
from rollouts.actions.start import admit, create
from rollouts.actions.transitions import drain_release
from rollouts.core.lifecycle import ACTIVE, WITHOUT_TRAFFIC, RolloutState
from rollouts.models import Rollout
from serving.environments.actions.locks import lock_routes

S = RolloutState


@transaction.atomic
def supersede(
    *,
    actor: Actor,
    rollout: Rollout,
    expected_version: int,
    candidate: Release,
    policy: Mapping[str, Any] | None = None,
    reason: str,
) -> Rollout:
    """The new rollout. The old one ends superseded in the same transaction, so that no other rollout can start in between.

    The rollback target stays the last fully promoted release. Raises what `start_rollout` raises, and StateChanged
    ("has_traffic") where users or copies of their requests reach the old candidate: that must be taken back first.
    """
    require(actor, Verb.START_ROLLOUT, rollout.model.team.slug, rollout.model.slug)
    old = lock_and_check(actor, Verb.SUPERSEDE_ROLLOUT, rollout, expected_version, ACTIVE, "supersede")
    _refuse_moving(old, candidate)
    if candidate.model_id != old.model_id or candidate.pk == old.candidate_id:
        raise _not_another(old, candidate)
    admitted = admit(actor, candidate, old.environment, policy)
    why = require_reason(reason)
    lock_routes(old.environment, old.candidate)
    was_preparing = old.state == S.PREPARING
    said = f"{candidate.name} takes the place of {old.candidate.name}, by {actor.name}: {why}"
    transition_with_record(
        old, S.SUPERSEDED, actor, "supersede", said, facts={"candidate": candidate.name, "manifest": candidate.digest}
    )
    new = create(actor, candidate, old.environment, admitted, f"{said[:-1]} (after rollout {old.pk}).", supersedes=old)
    if was_preparing:
        drain_release(old, old.candidate, actor=Actor.system("rollouts"), reason=said)
    return new


def _refuse_moving(old: Rollout, candidate: Release) -> None:
    state = S(old.state)
    if state in WITHOUT_TRAFFIC:
        return
    raise StateChanged(
        "has_traffic",
        f"Rollout {old.pk} of {old.candidate.name} is {state.replace('_', ' ')} already. Abort it first, so that "
        f"{candidate.name} is compared with a whole stable release; then start {candidate.name}.",
        rollout=old.pk,
        state=state.value,
    )


def _not_another(old: Rollout, candidate: Release) -> Invalid:
    message = f"{candidate.name} is not another release of {old.model.slug} than {old.candidate.name}."
    fix = f"Name another release of {old.model.slug}; for another policy, cancel this rollout and start it again."
    return Invalid(
        "not_another_candidate", f"{message} {fix}", errors=[{"field": "candidate", "message": message, "fix": fix}]
    )
