"""Reads the counters of every gateway that an active rollout depends on: each gateway once per model and tick."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import structlog

from rollouts.core.carry import ERRORS
from rollouts.core.counting import Counts, Reading
from rollouts.core.decision import Code
from rollouts.core.mix import SIZES
from rollouts.core.plan import Policy
from rollouts.models import Rollout
from serving.core.buckets import SIZE_EDGES
from serving.models import Gateway
from serving.ports import ArmCounters, GatewayCounters, GatewayError, TrafficCounters

log = structlog.get_logger(__name__)
READ_TIMEOUT_S = 1.0
#: Readers wait for gateways, not for this machine.
_AT_ONCE = 8


@dataclass(frozen=True)
class Seen:
    """Readings by gateway, and the first problem that keeps this tick from being judged (`code`, sentence)."""

    readings: dict[str, Reading] = field(default_factory=dict)
    problem: str = ""
    sentence: str = ""


Raw = dict[tuple[str, str], GatewayCounters | str]


def read_all(rollouts: Iterable[Rollout], counters: TrafficCounters) -> Raw:
    """What each (gateway, model) has counted, or the sentence why it could not be read. Touches no database in its threads."""
    wanted = {
        (gateway.name, rollout.model.slug): gateway.admin_url
        for rollout in rollouts
        for gateway in rollout.environment.gateways.all()
    }

    def read(key: tuple[str, str]) -> GatewayCounters | str:
        name, model = key
        try:
            read = counters.read(gateway=name, admin_url=wanted[key], models=[model], timeout_s=READ_TIMEOUT_S)
            return read[model]
        except GatewayError as error:
            return f"gateway {name} does not tell its counters ({error.reason}: {error.message})"
        except Exception as error:  # what one gateway says must not blind the engine to all the others
            log.exception("counters_not_read", gateway=name, model=model)
            return f"the counters of gateway {name} cannot be made out ({type(error).__name__}: {error})"

    if not wanted:
        return {}
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(wanted)), thread_name_prefix="counters") as pool:
        return dict(zip(wanted, pool.map(read, wanted), strict=True))


def seen_of(rollout: Rollout, raw: Raw, policy: Policy, now: float) -> Seen:
    """One rollout's view of what was read."""
    gateways: list[Gateway] = list(rollout.environment.gateways.all())
    if not gateways:
        return Seen(problem=Code.PROVIDER_DOWN, sentence=f"{rollout.environment.slug} has no gateway")
    readings: dict[str, Reading] = {}
    problem = sentence = ""
    for gateway in gateways:
        found = raw.get((gateway.name, rollout.model.slug), f"gateway {gateway.name} was not read")
        if isinstance(found, str):
            problem, sentence = problem or Code.PROVIDER_DOWN, sentence or found
            continue
        reading = _reading(rollout, found, policy)
        readings[gateway.name] = reading
        if now - reading.at > policy.stale_s:
            problem = problem or Code.STALE
            sentence = sentence or f"the counters of gateway {gateway.name} are {now - reading.at:.0f} s old"
    return Seen(readings, problem, sentence)


def _reading(rollout: Rollout, found: GatewayCounters, policy: Policy) -> Reading:
    stable = rollout.stable.digest if rollout.stable else None
    return Reading(
        epoch=found.epoch,
        at=found.read_at.timestamp(),
        candidate=_counts(found.by_release.get(rollout.candidate.digest or ""), policy),
        stable=_counts(found.by_release.get(stable) if stable else None, policy),
        user_requests=found.user_requests,
        user_errors=found.user_errors,
    )


def _counts(arm: ArmCounters | None, policy: Policy) -> Counts:
    arm = arm or ArmCounters()
    bad = {ERRORS: arm.errors}
    for guard in policy.guards:
        if guard.indicator == "slow":
            for name, edge in zip(guard.points, guard.thresholds_us, strict=True):
                bad[name] = max(0, arm.attempts - arm.latency_us.get(edge, 0)) if arm.latency_us else 0
    for name, edge in zip(SIZES, SIZE_EDGES, strict=True):
        bad[name] = max(0, arm.routed - arm.size_bytes.get(edge, 0)) if arm.size_bytes else 0
    return Counts(arm.attempts, arm.routed, bad)
