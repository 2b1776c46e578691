"""Tells what each of stable's servers counted in a stage, before that opens further; and asks for another in the place of the odd one."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from uuid import UUID

import structlog

from ledger.core.errors import DomainError
from rollouts.actions.engine_effects import replace_stable_replica
from rollouts.core.evaluate import TickInput
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.odd_replica import ReplicaTally
from rollouts.core.rules.stable_replica import StableReplica, StableTallies, doubted
from rollouts.core.tick import Tick
from rollouts.engine.odd_replicas import WAIT_S, ByGateway, counted_by_server
from rollouts.engine.tick_input import with_proofs
from rollouts.engine.world import RolloutEntry, WorldState
from rollouts.queries.headroom import proven_rates
from serving.models import Gateway
from serving.ports import HostCounters, HostCounts
from serving.traffic.queries.endpoints import names_of, running

log = structlog.get_logger(__name__)
#: Another in the place of the odd one is asked for again this often, where none was to be had; and a gateway that did not tell, too.
RETRY_S = 10.0
#: Stable's replicas are looked at again this long after the first look at a hold that rests on them; twice as long after each other look.
LOOK_AGAIN_S = 10.0


@dataclass
class _AtFirst:
    """Counts of stable's servers when the rollout's stage began, or at the first answer of a late gateway."""

    stage: str = ""
    counts: ByGateway = field(default_factory=dict)
    asked_at: float = 0.0
    is_warned: bool = False
    looks: int = 0  # how often a decision of this stage was doubted by it
    looked_at: float = 0.0


class StableReplicas:
    """Keeps in memory what stable's servers had counted when each rollout's stage began: counts go back for weeks, evidence to the stage.

    An engine that takes over counts from then on.
    """

    def __init__(self) -> None:
        self._begun: dict[int, _AtFirst] = {}  # by rollout
        self._silent: dict[str, float] = {}  # by gateway: when it was last asked in vain

    def keep(self, active: set[int]) -> None:
        """Forgets all rollouts but these."""
        self._begun = {pk: one for pk, one in self._begun.items() if pk in active}

    def untold(self, entries: Sequence[RolloutEntry], world: WorldState) -> list[RolloutEntry]:
        """Those of which some gateway has not told yet; who was last asked for longest ago comes first."""
        return sorted(
            (one for one in entries if self._to_ask(one, world)), key=lambda one: self._begun_of(one).asked_at
        )

    def follow(self, entry: RolloutEntry, world: WorldState, hosts: HostCounters | None) -> None:
        """For the very end of a turn, as it may wait: asks the gateways that have not told yet. One that does not tell in time is asked by
        no rollout for a while."""
        gateways = self._to_ask(entry, world)
        if hosts is None or not gateways:
            return
        begun = self._begun[entry.rollout.pk] = self._begun_of(entry)
        begun.asked_at = world.at
        told = _read(entry, gateways, hosts)
        begun.counts |= told
        self._silent |= {one.name: world.at for one in gateways if one.name not in told}

    def _begun_of(self, entry: RolloutEntry) -> _AtFirst:
        begun, stage = self._begun.get(entry.rollout.pk), entry.engine_state.stage
        return begun if begun is not None and begun.stage == stage else _AtFirst(stage)

    def _to_ask(self, entry: RolloutEntry, world: WorldState) -> list[Gateway]:
        """If stable has replicas: the gateways without an answer in this stage, except silent gateways."""
        rollout = entry.rollout
        is_under_way = (
            rollout.state in {RolloutState.SHIFTING, RolloutState.BAKING} and rollout.step_started_at is not None
        )
        if not is_under_way or entry.engine_state.of(StableReplica).replica or not _is_in_replicas(entry, world):
            return []
        counts, now = self._begun_of(entry).counts, world.at
        return [
            one
            for one in world.gateways[rollout.environment_id]
            if one.name not in counts and not 0 <= now - self._silent.get(one.name, -RETRY_S) < RETRY_S
        ]

    def is_due(self, entry: RolloutEntry, tick: Tick, at: float) -> bool:
        """Whether the hold rests on stable's failures, and its replicas have counted more since they were last looked at."""
        begun = self._begun.get(entry.rollout.pk)
        if begun is None or not begun.counts or doubted(tick.snapshot, tick.decision) is None:
            return False
        return not begun.looks or at - begun.looked_at >= LOOK_AGAIN_S * 2.0 ** (begun.looks - 1)

    def with_tallies(
        self, entry: RolloutEntry, tick: Tick, given: TickInput, world: WorldState, hosts: HostCounters | None
    ) -> TickInput | None:
        """What the tick rested on, with what each of stable's servers counted in this stage, where its decision rests on what stable fails.

        None elsewhere, or where nobody tells: then the decision stands.
        """
        rollout = entry.rollout
        if hosts is None or doubted(tick.snapshot, tick.decision) is None or rollout.stable is None:
            return None
        begun, gateways = self._begun_of(entry), world.gateways[rollout.environment_id]
        try:
            now = _read(entry, [one for one in gateways if one.name in begun.counts], hosts) if begun.counts else {}
            self._warn(entry, world, begun, [one.name for one in gateways if one.name not in now])
            tallies = tallies_since(begun.counts, now, rollout.stable.pk, rollout.environment_id)
            if len(tallies) < 2:
                return None
            begun.looks, begun.looked_at = begun.looks + 1, world.at
            entry.proven = entry.proven or proven_rates(entry.rollout)
            deployments = {one.name: one.replica for one in running(rollout.stable.pk, rollout.environment_id)}
        except Exception:  # a rollout does not stand still for it
            log.error("stable_replicas_not_told", rollout=rollout.pk, traceback=traceback.format_exc())
            return None
        headroom = with_proofs(given.observed.headroom, entry)
        told = replace(given.observed.given(StableTallies), tallies=tallies, deployments=deployments)
        seen = replace(given.observed, headroom=headroom).telling(told)
        return replace(given, observed=seen)

    def _warn(self, entry: RolloutEntry, world: WorldState, begun: _AtFirst, missing: list[str]) -> None:
        """Logs once in a stage the gateways whose counts of stable's replicas are missing."""
        if missing and not begun.is_warned and _is_in_replicas(entry, world):
            log.warning(
                "stable_replicas_not_looked_at", rollout=entry.rollout.pk, stage=begun.stage, gateways=sorted(missing)
            )
            begun.is_warned = True
            self._begun[entry.rollout.pk] = begun


def _is_in_replicas(entry: RolloutEntry, world: WorldState) -> bool:
    return world.serving_at(entry.places[1]).count > 1


def _read(entry: RolloutEntry, gateways: Sequence[Gateway], hosts: HostCounters) -> ByGateway:
    rollout = entry.rollout
    return counted_by_server(hosts, rollout.model.slug, rollout.stable, gateways, WAIT_S) if rollout.stable else {}


def tallies_since(before: ByGateway, now: ByGateway, release: UUID, environment: int) -> dict[str, ReplicaTally]:
    """Of each of the release's servers that run, by its name, as far as gateways told both times. One that began to count anew has all
    that it tells."""
    names = names_of(release, environment)
    found: dict[str, HostCounts] = defaultdict(HostCounts)
    for gateway in now.keys() & before.keys():
        for address, counts in now[gateway].items():
            if (name := names.get(address)) is not None:
                found[name] += _since(before[gateway].get(address, HostCounts()), counts)
    return {name: ReplicaTally(one.failed, one.attempts, one.unreached) for name, one in found.items() if one.attempts}


def _since(before: HostCounts, now: HostCounts) -> HostCounts:
    """A gateway's counts after `before`; all counts, if they restarted."""
    if now.attempts < before.attempts:
        return now
    counted = zip(astuple(now), astuple(before), strict=True)
    return HostCounts(*[max(0, later - then) for later, then in counted])


def ensure_replaced(entry: RolloutEntry, world: WorldState) -> None:
    """Another in the place of stable's odd replica, for which the rollout is held. For the end of a turn, as `ensure_replicas`."""
    odd, rollout = entry.engine_state.of(StableReplica), entry.rollout
    if rollout.state not in LIVE or not odd.replica or odd.is_renewed or odd.gone_at is not None:
        return
    if world.at - entry.stable_asked_at < RETRY_S:
        return
    entry.stable_asked_at = world.at
    try:
        replace_stable_replica(rollout, odd, fence=world.fence)
    except DomainError as error:
        log.warning("stable_replica_not_replaced", rollout=rollout.pk, replica=odd.replica, error=error.message)
