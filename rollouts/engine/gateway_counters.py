"""What the gateways counted, as one rollout reads it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rollouts.core.counter_deltas import (
    COMMON,
    ERRORS,
    FORCED,
    FORCED_ENDED,
    GIVEN_UP,
    REFUSED,
    SAVED,
    SHED,
    TIMED,
    Counts,
    Reading,
    given_up_after,
)
from rollouts.core.decision import Code
from rollouts.core.policy import Edge, Policy
from rollouts.core.request_mix import OF_CLASS, SIZES
from rollouts.models import Rollout
from serving.models import Gateway
from serving.ports import ArmCounters, GatewayCounters
from serving.traffic.adapters.counter_readers import StatsPage
from serving.traffic.core.buckets import EDGES_US, SIZE_EDGES
from serving.traffic.core.routes import SLOTS


@dataclass(frozen=True)
class CounterSnapshot:
    """Readings by gateway, and the first problem that keeps this tick from being judged (`code`, sentence)."""

    readings: dict[str, Reading] = field(default_factory=dict)
    problem: str = ""
    sentence: str = ""


def slow_edges(policy: Policy) -> tuple[Edge, ...]:
    """The policy's counters above thresholds."""
    return tuple(edge for guard in policy.guards for edge in guard.edges)


def snapshot_of(
    rollout: Rollout,
    gateways: Sequence[Gateway],
    pages: Mapping[str, StatsPage],
    edges: Sequence[Edge],
    *,
    stale_s: float,
    now: float,
    slot: int = 0,
    taken_by: Collection[int] | None = None,
    before: Mapping[str, Reading] | None = None,
) -> CounterSnapshot:
    """One rollout's view of what was read of its environment's gateways. `edges` are those of `slow_edges`.

    `slot` is that of the route as it is written, `taken_by` the gateways that follow it (None: all). What others follow shows in
    what they counted since they were read last (`before`, by gateway).
    """
    if not gateways:
        return CounterSnapshot(problem=Code.PROVIDER_DOWN, sentence=f"{rollout.environment.slug} has no gateway")
    digests = str(rollout.candidate.digest), str(rollout.stable.digest) if rollout.stable else ""
    readings: dict[str, Reading] = {}
    problem = sentence = ""
    for gateway in gateways:
        page = pages.get(gateway.name, f"gateway {gateway.name} was not read")
        found = page if isinstance(page, str) else page.get(rollout.model.slug)
        if found is None or isinstance(found, str):
            problem = problem or Code.PROVIDER_DOWN
            sentence = sentence or found or f"gateway {gateway.name} was not asked for {rollout.model.slug}"
            continue
        followed = slot
        if taken_by is not None and gateway.pk not in taken_by:
            followed = _followed((before or {}).get(gateway.name), found, digests, slot)
        reading = _reading(digests, found, edges, followed, (before or {}).get(gateway.name))
        readings[gateway.name] = reading
        if now - reading.at > stale_s:
            problem = problem or "stale"
            sentence = sentence or f"the counters of gateway {gateway.name} are {now - reading.at:.0f} s old"
        elif reading.at - now > stale_s:  # a clock is wrong, and nobody knows when these were true
            problem = problem or "stale"
            sentence = sentence or f"the counters of gateway {gateway.name} are dated {reading.at - now:.0f} s ahead"
    return CounterSnapshot(readings, problem, sentence)


def _followed(last: Reading | None, found: GatewayCounters, digests: tuple[str, str], slot: int) -> int:
    """The slot of the weight that a gateway follows which is not known to have taken the present one.

    It may be several changes behind. So it is the slot under which most requests have ended since `last`; the one before where that
    cannot be told.
    """
    if last is None or last.epoch != found.epoch:
        return (slot - 1) % SLOTS
    stood = {**last.others, last.slot: (last.candidate, last.stable)}

    def news(one: int) -> int:
        arms = found.by_slot.get(one, {})
        now = sum(arms[digest].routed for digest in digests if digest in arms)
        return now - sum(arm.routed for arm in stood[one])

    most = max(stood, key=lambda one: (one != slot, news(one)))
    return most if most != slot and news(most) > 0 else last.slot


def _reading(
    digests: tuple[str, str],
    found: GatewayCounters,
    edges: Sequence[Edge],
    slot: int,
    last: Reading | None = None,
) -> Reading:
    begun = found.forced + found.forced_now
    if last is not None and last.epoch == found.epoch:  # the gauge falls before the end is counted
        begun = max(begun, last.candidate.bad.get(FORCED, 0))
    forced = {FORCED: begun, FORCED_ENDED: found.forced} if begun else {}

    def counts(arms: Mapping[str, ArmCounters], digest: str) -> Counts:
        counted = counts_of(arms.get(digest), edges)
        return replace(counted, bad={**counted.bad, **forced}) if forced else counted

    by_slot = {one: tuple(counts(found.by_slot.get(one, {}), digest) for digest in digests) for one in range(SLOTS)}
    candidate, stable = by_slot.pop(slot)
    return Reading(
        epoch=found.epoch,
        at=found.read_at.timestamp(),
        candidate=candidate,
        stable=stable,
        user_requests=found.user_requests,
        user_errors=found.user_errors,
        slot=slot,
        others={one: (arms[0], arms[1]) for one, arms in by_slot.items()},
        answer_s=max(longest_answer_s(found.by_release.get(digest)) for digest in digests),
        whole=(
            counts(found.by_release, digests[0]),
            counts(found.by_release, digests[1]),
        ),
    )


#: Fewer attempts than this do not show what is usual; the longest usual answer is longer than those of this share.
LEAST_TIMED, USUAL_FRAC = 100, 0.99


def longest_answer_s(arm: ArmCounters | None) -> float:
    """The edge, in seconds, under which 99 % of a release's first attempts ended; 0 while nobody knows."""
    if arm is None or arm.timed < LEAST_TIMED:
        return 0.0
    return (
        next((edge for edge, under in sorted(arm.latency_us.items()) if under >= USUAL_FRAC * arm.timed), EDGES_US[-1])
        / 1e6
    )


_SIZES = tuple(zip(SIZES, SIZE_EDGES, strict=True))


def counts_of(arm: ArmCounters | None, edges: Sequence[Edge]) -> Counts:
    arm = arm or ArmCounters()
    routed, size_bytes = arm.routed, arm.size_bytes
    bad = {
        ERRORS: arm.failed,
        COMMON: arm.common,
        SAVED: arm.saved,
        SHED: arm.shed,
        TIMED: arm.timed,
        REFUSED: arm.refused,
    }
    if arm.given_up:
        bad[GIVEN_UP] = arm.given_up
    for name, edge, measure in edges:
        spread = arm.spread(measure)
        bad |= {measure: spread.count} if measure else {}
        bad[name] = spread.over(edge)
        if beyond := spread.left_over(edge):  # the answer would have been slow
            bad[name] += beyond
            bad[given_up_after(name)] = beyond
    for name, edge in _SIZES:
        bad[name] = max(0, routed - size_bytes.get(edge, 0)) if size_bytes else 0
    bad |= {f"{OF_CLASS}{name}": count for name, count in arm.by_class.items()}
    return Counts(arm.decided, routed, bad)
