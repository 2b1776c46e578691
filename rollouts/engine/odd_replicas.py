"""Asks the gateways for each server's counts when a candidate is about to be taken back for its errors."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import structlog

from rollouts.core.odd_replica import ReplicaTally, suspected, telling
from rollouts.core.tick import Tick
from rollouts.engine.world import RolloutEntry, WorldState
from rollouts.models import Rollout
from serving.models import Gateway
from serving.ports import GatewayError, HostCounters, HostCounts
from serving.queries.answering import server_names

log = structlog.get_logger(__name__)
#: All rollbacks of a turn together wait no longer than this for names.
WAIT_S = 0.25


def with_odd_replica(
    tick: Tick, entry: RolloutEntry, world: WorldState, hosts: HostCounters | None, *, until: float
) -> Tick:
    """The same tick, whose decision names the one replica that fails, if it is one. What cannot be read leaves it as it was.

    `until`: when there is no more time for it, in monotonic seconds.
    """
    judged, wait_s = suspected(tick.snapshot, tick.decision), until - time.monotonic()
    if hosts is None or wait_s <= 0 or judged is None or world.serving_at(entry.places[0]).count < 2:
        return tick
    try:
        tallies = _tallies(hosts, entry.rollout, world.gateways[entry.rollout.environment_id], wait_s)
        return replace(tick, decision=telling(tick.snapshot, tick.decision, judged, tallies))
    except Exception:  # a name is never worth a rollback; what the database said comes again when that is written
        log.error("odd_replica_not_told", rollout=entry.rollout.pk, traceback=traceback.format_exc())
        return tick


def _tallies(
    hosts: HostCounters, rollout: Rollout, gateways: Sequence[Gateway], wait_s: float
) -> dict[str, ReplicaTally]:
    """Of each of the candidate's servers, by its name."""
    names = server_names(rollout.candidate_id, rollout.environment_id)
    bad: Counter[str] = Counter()
    attempts: Counter[str] = Counter()
    for (host, port), counts in _counted(hosts, rollout, gateways, wait_s):
        name = names.get((host, port))
        if name is not None:  # one that is not known any more is none to look at
            bad[name] += counts.failed
            attempts[name] += counts.attempts
    return {name: ReplicaTally(bad[name], attempts[name]) for name in attempts}


def _counted(
    hosts: HostCounters, rollout: Rollout, gateways: Sequence[Gateway], wait_s: float
) -> Iterator[tuple[tuple[str, int], HostCounts]]:
    """By server and gateway, from the gateways that answer in time."""
    model, digest = rollout.model.slug, str(rollout.candidate.digest)
    pool = ThreadPoolExecutor(max_workers=max(1, len(gateways)), thread_name_prefix="hosts")
    asked = [
        pool.submit(
            hosts.read_hosts, gateway=one.name, admin_url=one.admin_url, timeout_s=wait_s, model=model, digest=digest
        )
        for one in gateways
    ]
    answered = wait(asked, timeout=wait_s).done
    pool.shutdown(wait=False)
    for one in answered:
        try:
            yield from one.result().items()
        except GatewayError as error:
            log.info("hosts_not_read", rollout=rollout.pk, error=error.message)
