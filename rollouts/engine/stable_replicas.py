"""Tells what each of stable's servers counted in a stage, before that opens further; and asks for another in the place of the odd one."""

from __future__ import annotations

import traceback
from collections import defaultdict
from dataclasses import astuple, replace
from uuid import UUID

import structlog

from ledger.core.errors import DomainError
from rollouts.actions.engine_effects import replace_stable_replica
from rollouts.core.evaluate import TickInput
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.odd_replica import ReplicaTally
from rollouts.core.stable_replica import doubted
from rollouts.core.tick import Tick
from rollouts.engine.odd_replicas import WAIT_S, ByGateway, counted_by_server
from rollouts.engine.tick_input import with_proofs
from rollouts.engine.world import RolloutEntry, WorldState
from rollouts.queries.room import proven_rates
from serving.ports import HostCounters, HostCounts
from serving.queries.answering import server_names

log = structlog.get_logger(__name__)
#: Another in the place of the odd one is asked for again this often, where none was to be had.
RETRY_S = 10.0


class StableReplicas:
    """Keeps in memory what stable's servers had counted when each rollout's stage began: counts go back for weeks, evidence to the stage.

    An engine that takes over counts from then on.
    """

    def __init__(self) -> None:
        self._begun: dict[int, tuple[str, ByGateway]] = {}  # by rollout: the stage, and the counts at its beginning

    def follow(self, entry: RolloutEntry, world: WorldState, hosts: HostCounters | None) -> None:
        """For the end of a turn: a rollback waits for nobody here. Asks gateways once in a stage, where stable is in replicas."""
        rollout, state = entry.rollout, entry.engine_state
        if rollout.state not in LIVE:
            self._begun.pop(rollout.pk, None)
            return
        _ensure_replaced(entry, world)
        is_under_way = (
            rollout.state in {RolloutState.SHIFTING, RolloutState.BAKING} and rollout.step_started_at is not None
        )
        if hosts is None or not is_under_way or state.stable_odd is not None:
            return
        if self._begun.get(rollout.pk, ("",))[0] != state.stage and world.serving_at(entry.places[1]).count > 1:
            read = _read(entry, world, hosts)
            if read:
                self._begun[rollout.pk] = state.stage, read

    def with_tallies(
        self, entry: RolloutEntry, tick: Tick, given: TickInput, world: WorldState, hosts: HostCounters | None
    ) -> TickInput | None:
        """What the tick rested on, with what each of stable's servers counted in this stage, where its decision rests on what stable fails.

        None elsewhere, or where nobody tells: then the decision stands.
        """
        if hosts is None or doubted(tick.snapshot, tick.decision) is None:
            return None
        stage, before = self._begun.get(entry.rollout.pk, ("", {}))
        if stage != entry.engine_state.stage:
            return None
        try:
            rollout, now = entry.rollout, _read(entry, world, hosts)
            tallies = tallies_since(before, now, rollout.stable_id, rollout.environment_id) if rollout.stable_id else {}
            if len(tallies) < 2:
                return None
            entry.proven = entry.proven or proven_rates(entry.rollout)
        except Exception:  # a rollout does not stand still for it
            log.error("stable_replicas_not_told", rollout=entry.rollout.pk, traceback=traceback.format_exc())
            return None
        room = with_proofs(given.observed.room, entry)
        return replace(given, observed=replace(given.observed, stable_replicas=tallies, room=room))


def _read(entry: RolloutEntry, world: WorldState, hosts: HostCounters) -> ByGateway:
    rollout = entry.rollout
    if rollout.stable is None:
        return {}
    gateways = world.gateways[rollout.environment_id]
    return counted_by_server(hosts, rollout.model.slug, rollout.stable, gateways, WAIT_S)


def tallies_since(before: ByGateway, now: ByGateway, release: UUID, environment: int) -> dict[str, ReplicaTally]:
    """Of each of the release's servers that run, by its name, as far as gateways told both times. One that began to count anew has all
    that it tells."""
    names = server_names(release, environment)
    found: dict[str, HostCounts] = defaultdict(HostCounts)
    for gateway in now.keys() & before.keys():
        for address, counts in now[gateway].items():
            if (name := names.get(address)) is not None:
                found[name] += _since(before[gateway].get(address, HostCounts()), counts)
    return {name: ReplicaTally(one.failed, one.attempts, one.unreached) for name, one in found.items() if one.attempts}


def _since(before: HostCounts, now: HostCounts) -> HostCounts:
    """What a gateway counted after `before`; all, where its counts began anew."""
    if now.attempts < before.attempts:
        return now
    counted = zip(astuple(now), astuple(before), strict=True)
    return HostCounts(*[max(0, later - then) for later, then in counted])


def _ensure_replaced(entry: RolloutEntry, world: WorldState) -> None:
    """Another in the place of stable's odd replica, for which the rollout is held."""
    odd, rollout = entry.engine_state.stable_odd, entry.rollout
    if odd is None or odd.is_renewed or odd.gone_at is not None or world.at - entry.stable_asked_at < RETRY_S:
        return
    entry.stable_asked_at = world.at
    try:
        replace_stable_replica(rollout, odd.replica, set_aside=odd.is_aside, fence=world.fence)
    except DomainError as error:
        log.warning("stable_replica_not_replaced", rollout=rollout.pk, replica=odd.replica, error=error.message)
