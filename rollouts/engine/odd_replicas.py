"""Asks the gateways for each server's counts when a candidate is about to be taken back for its errors, and sets the odd one aside."""

from __future__ import annotations

import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import structlog
from django.db import connection

from ledger.core.errors import StateChanged
from registry.models import Release
from rollouts.actions.engine_effects import set_replica_aside
from rollouts.core.lifecycle import LIVE
from rollouts.core.odd_replica import ReplicaTally
from rollouts.core.rules.replica_differs import ReplicaDiffers, suspected
from rollouts.core.tick import Tick
from rollouts.engine.world import RolloutEntry, WorldState
from rollouts.models import Rollout
from rollouts.queries.headroom import proven_rates
from serving.models import Gateway
from serving.ports import GatewayError, HostCounters, HostCounts
from serving.traffic.queries.endpoints import names_of

log = structlog.get_logger(__name__)
#: By gateway, and there by host and port.
ByGateway = dict[str, dict[tuple[str, int], HostCounts]]
#: All rollbacks of a turn together wait no longer than this for names.
WAIT_S = 0.25


def tallies_for(
    tick: Tick, entry: RolloutEntry, world: WorldState, hosts: HostCounters | None, *, until: float
) -> dict[str, ReplicaTally]:
    """Of each of the candidate's servers, by its name, where it is about to be taken back for its errors; empty where it is not, or nobody
    tells: then it is taken back without. Where there are any, the entry has what a server of each arm is proven for.

    `until`: when there is no more time for it, in monotonic seconds; neither for gateways nor for reports.
    """
    judged, wait_s = suspected(tick.snapshot, tick.decision), until - time.monotonic()
    if hosts is None or wait_s <= 0 or judged is None or world.serving_at(entry.places[0]).count < 2:
        return {}
    try:
        proven = _begun(entry.rollout) if entry.proven is None else None  # the entry may be fresh
        tallies = _tallies(hosts, entry.rollout, world.gateways[entry.rollout.environment_id], wait_s)
        if tallies and proven is not None:  # no hold without the proven capacity of the remaining replicas
            entry.proven = proven.result(timeout=max(0.0, until - time.monotonic()))
        return tallies
    except Exception:  # a rollback never waits for it; what the database said comes again when that is written
        log.error("odd_replica_not_told", rollout=entry.rollout.pk, traceback=traceback.format_exc())
        return {}


def _begun(rollout: Rollout) -> Future[tuple[float | None, float | None]]:
    """Reads the arms' proven capacity beside this thread, since a release with many reports may take too long."""
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="proofs")
    begun = pool.submit(_read, rollout)
    pool.shutdown(wait=False)
    return begun


def _read(rollout: Rollout) -> tuple[float | None, float | None]:
    try:
        return proven_rates(rollout)
    finally:
        connection.close()  # this thread's own


def _tallies(
    hosts: HostCounters, rollout: Rollout, gateways: Sequence[Gateway], wait_s: float
) -> dict[str, ReplicaTally]:
    """Of each of the candidate's servers, by its name."""
    names = names_of(rollout.candidate_id, rollout.environment_id)
    found: dict[str, HostCounts] = defaultdict(HostCounts)
    for told in counted_by_server(hosts, rollout.model.slug, rollout.candidate, gateways, wait_s).values():
        for address, counts in told.items():
            name = names.get(address)
            if name is not None and counts.attempts:  # an unknown replica is not examined
                found[name] += counts
    return {name: ReplicaTally(one.failed, one.attempts, one.unreached) for name, one in found.items()}


def counted_by_server(
    hosts: HostCounters, model: str, release: Release, gateways: Sequence[Gateway], wait_s: float
) -> ByGateway:
    """Counts of the release's servers from the gateways that answer in time."""
    digest = str(release.digest)
    pool = ThreadPoolExecutor(max_workers=max(1, len(gateways)), thread_name_prefix="hosts")
    asked = {
        one.name: pool.submit(
            hosts.read_hosts, gateway=one.name, admin_url=one.admin_url, timeout_s=wait_s, model=model, digest=digest
        )
        for one in gateways
    }
    answered, found = wait(asked.values(), timeout=wait_s).done, ByGateway()
    pool.shutdown(wait=False)
    for name, one in asked.items():
        try:
            found |= {name: one.result()} if one in answered else {}
        except GatewayError as error:
            log.info("hosts_not_read", model=model, error=error.message)
    return found


def ensure_set_aside(entry: RolloutEntry, world: WorldState) -> None:
    """Takes the traffic of the replica away that the rollout was held for. Once; nothing where there is none.

    If that is impossible (no other answers), its failures are evidence again in some seconds.
    """
    aside, rollout = entry.engine_state.of(ReplicaDiffers), entry.rollout
    if not aside.replica or entry.is_set_aside or rollout.state not in LIVE:
        return
    try:
        set_replica_aside(rollout, aside.replica, fence=world.fence)
    except StateChanged as error:
        if error.code not in {"last_replica", "replica_leaving"}:
            raise  # the rollout moved
        log.warning("replica_not_set_aside", rollout=rollout.pk, replica=aside.replica, error=error.message)
    entry.is_set_aside = True
