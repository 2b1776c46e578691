"""Servers of the candidate are asked for ahead of the weight that takes them, so that they are warm when it is proven."""

from __future__ import annotations

from ledger.core.errors import DomainError
from rollouts.actions.engine_effects import ask_for_replicas
from rollouts.core.headroom import Headroom, weight_ahead
from rollouts.core.lifecycle import RolloutState
from rollouts.engine.world import RolloutEntry, SurgeAsk, WorldState
from rollouts.models import Rollout
from serving.targets.platforms import platform_of

#: Servers that do not come are asked about again this often.
RETRY_S = 10.0


def ensure_replicas(entry: RolloutEntry, world: WorldState) -> None:
    """Asks for the servers that the weight ahead takes, where fewer are to be; never for fewer. Nothing, where one will do.

    For the end of a turn: a rollback waits for nobody here. What cannot be had is told by the next tick, and raises nothing.
    """
    rollout, place = entry.rollout, entry.places[0]
    serving = world.serving_at(place)
    if not serving.is_wanted:
        return  # its first server is not placed yet
    whole = entry.places[1] or entry.displaced
    stable = world.serving_at(whole) if whole is not None else serving
    weight_bp = weight_ahead(entry.policy, RolloutState(rollout.state), rollout.step_index)
    needed = Headroom(stable.wanted).needed_at(weight_bp)
    if needed <= min(max(serving.count, 1), serving.wanted):
        entry.surge = None
        return
    asked = entry.surge
    if asked is not None and asked.needed == needed and world.at - asked.at < RETRY_S:
        return
    entry.surge = SurgeAsk(needed, world.at)
    try:
        if serving.wanted < needed:
            ask_for_replicas(rollout, needed, weight_bp, fence=world.fence)
        elif asked is not None:
            entry.surge = SurgeAsk(needed, world.at, _why_waiting(rollout))
    except DomainError as error:
        entry.surge = SurgeAsk(needed, world.at, error.message)


def _why_waiting(rollout: Rollout) -> str:
    return platform_of(rollout.environment).why_waiting(rollout.candidate, rollout.environment)
