"""The rollback target of a rollout now, and whether its stable release is gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from registry.models import Release
from registry.queries.declared import declared_replicas
from rollouts.core.decision import listed
from rollouts.core.engine_state import EngineState
from rollouts.core.lifecycle import FINAL, RolloutState
from rollouts.core.policy import Policy, WhenStableIsGone
from rollouts.core.rules.stable_gone import StableServers, is_absent
from rollouts.core.snapshot import Observed
from rollouts.models import Rollout
from rollouts.queries.approvals import ahead_of
from serving.models import Environment
from serving.targets.queries.sleep import sleep_of
from serving.traffic.queries.endpoints import ReleaseStanding, is_gone, standing_at, standing_of
from serving.traffic.queries.routes import route_of


@dataclass(frozen=True)
class RollbackTarget:
    """`release` is the name of the release that a rollback would go to now, None for none. `message` is in sentences. `is_missing`: the
    target has no server."""

    release: str | None
    message: str
    is_missing: bool = False

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def candidate_serving(rollout: Rollout) -> ReleaseStanding:
    """The candidate's servers in the rollout's environment."""
    place = (rollout.environment_id, str(rollout.candidate_id))
    return standing_of([place[1]]).get(place, ReleaseStanding())


def is_stable_gone(rollout: Rollout) -> bool:
    """Whether the rollback target has no server that answers. A sleeping server is not gone, nor is a server that was
    never deployed from here."""
    serving = standing_at(rollout.stable_id, rollout.environment_id) if rollout.stable_id else None
    if serving is None:
        return False
    unanswered = EngineState.from_json(rollout.engine_state).of(StableServers).unanswered or 0
    seen = Observed(0.0, stable_servers=serving.count, stable_reported=serving.reported)
    if not is_absent(seen, unanswered, rollout.effective_policy.all_failing_attempts):
        return False
    return not _sleeps(rollout.environment_id, rollout.model_id)


def gone_beside(candidate: Release, environment: Environment) -> Release | None:
    """The stable release that a rollout would begin beside, if its agents reported that it has no server; else None."""
    route = route_of(candidate.model, environment)
    if route is None or not is_gone(route.stable_id, environment.pk) or _sleeps(environment.pk, candidate.model_id):
        return None
    return route.stable


def _sleeps(environment: int, model: int) -> bool:
    """Whether the model sleeps there and can be woken."""
    sleep = sleep_of(environment, model)
    return sleep is not None and not sleep.trouble


def target_of(rollout: Rollout) -> RollbackTarget | None:
    """The rollback target now; None once the rollout has ended."""
    if rollout.state in FINAL:
        return None
    candidate = rollout.candidate.name
    if rollout.stable is not None:
        if not is_stable_gone(rollout):
            return RollbackTarget(rollout.stable.name, f"A rollback goes to {rollout.stable.name}.")
        return RollbackTarget(
            None, f"There is no rollback target: {rollout.stable.name} has no serving server. {_way_on(rollout)}", True
        )
    if rollout.displaced is None:
        return RollbackTarget(None, f"There is no rollback target: {candidate} is the first release there.")
    name = rollout.displaced.name
    again = standing_at(rollout.displaced.pk, rollout.environment_id)
    if again is not None and again.count:
        return RollbackTarget(
            name,
            f"{candidate} took the place of {name}, which had no server. {name} answers again: a rollback goes to it.",
        )
    keeps = f"{candidate} keeps its traffic whatever happens, until {name} answers again"
    return RollbackTarget(
        None, f"There is no rollback target: {candidate} took the place of {name}, which has no server. {keeps}.", True
    )


def missing_targets(rollouts: Iterable[Rollout]) -> dict[int, RollbackTarget]:
    """Rollback targets without a server, by rollout. One query, and three for each target in the result."""
    every = list(rollouts)
    found = standing_of({one.stable_id for one in every if one.stable_id})
    is_heard = {place for place, answering in found.items() if answering.reported}
    places = {one.pk: (one.environment_id, str(one.stable_id)) for one in every}
    doubtful = [one for one in every if one.displaced_id or places[one.pk] in found.keys() - is_heard]
    targets = {one.pk: target_of(one) for one in doubtful}
    return {pk: target for pk, target in targets.items() if target is not None and target.is_missing}


def replaced_after_s(plan: Policy, stable: UUID | None) -> float:
    """For how long stable must have been gone before the policy replaces it, in seconds; see `Snapshot.replaced_after_s`."""
    return max(plan.stable_gone_s, declared_replicas([stable])[stable].start_s if stable else 0.0)


def who_replaces(plan: Policy, stable: UUID) -> str:
    """How a candidate that is ready takes the place of a release without a server, as half a sentence."""
    if plan.when_stable_is_gone is not WhenStableIsGone.REPLACE:
        return "a release manager may then give it all traffic (`sluicegate rollout promote`)"
    after = f"once that has lasted for {replaced_after_s(plan, stable):g} s"
    return f"it takes all traffic {after}, or at once by `sluicegate rollout promote`"


def _way_on(rollout: Rollout) -> str:
    candidate, plan = rollout.candidate.name, rollout.effective_policy
    if rollout.state == RolloutState.AWAITING_APPROVAL:
        return f"Once it is approved and ready, a release manager may give {candidate} all traffic."
    if plan.when_stable_is_gone is WhenStableIsGone.REPLACE and rollout.state != RolloutState.PAUSED:
        return f"{candidate} takes all traffic once it is ready and that has lasted for {replaced_after_s(plan, rollout.stable_id):g} s."
    asking = [stage for stage in ahead_of(rollout, plan) if plan.approvals.get(stage)]
    approved = f" and {listed(asking)} {'are' if len(asking) > 1 else 'is'} approved" if asking else ""
    return f"Once {candidate} is ready{approved}, a release manager may give it all traffic: `sluicegate rollout promote {rollout.pk}`."
