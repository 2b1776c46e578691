"""When a model that nobody asks has its servers unloaded, and which goes first where room is needed: pure.

Instants are seconds since the epoch (UTC). What is not known is never taken for quiet: a gateway that does not tell, one that began
to count anew, one that was not there before.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from serving.environments.core.sleep_lifecycle import SleepRule
from serving.targets.core.placement import Claim, Demand, Spot, fit_in

#: The shortest time for which a model is left loaded while nobody asks it. Longer than it takes to come back: an agent gives loading
#: 120 s and warming up 60 s, where the envelope does not say otherwise (`serving.targets.agent.timings.AgentTimings`).
LEAST_S = 300
MOST_S = 30 * 86_400
#: Counters that are older than this tell nothing.
FRESH_S = 10.0
#: Seconds until a model answers again, told to callers, where no server of its release was timed here yet; and the most.
UNKNOWN_WAKE_S, MOST_WAKE_S = 30, 600
#: From the request that finds a model asleep until a server is asked for: the counters are read every two seconds.
NOTICED_WITHIN_S = 3


def rule_problem(rule: SleepRule) -> str:
    """What makes no sense in the rule, as a sentence; empty where it does."""
    for name in ("unload_after_s", "yields_after_s"):
        value = getattr(rule, name)
        if value is not None and not LEAST_S <= value <= MOST_S:
            return f"{name} is {value}; it is from {LEAST_S} (longer than loading and warming up may take) to {MOST_S} seconds."
    first, last = rule.yields_after_s, rule.unload_after_s
    if first is not None and last is not None and first > last:
        return f"yields_after_s ({first}) is more than unload_after_s ({last}): it would be unloaded before it could yield."
    return ""


@dataclass(frozen=True)
class Count:
    """All requests for a model that a gateway has counted since its `epoch` began, however it answered them; `asleep`: those of them that
    found it asleep. One that a server answers is counted when it ends."""

    epoch: str
    requests: int
    asleep: int = 0


@dataclass(frozen=True)
class Quiet:
    """`since` when no gateway counted a request more; None: not known. `read_at`: when all of them last told; None: they never did.
    `silent`: those that did not, the last time; `gone`: those of which nobody expects it any more."""

    since: float | None = None
    read_at: float | None = None
    silent: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    counts: Mapping[str, Count] = field(default_factory=dict)

    def is_known(self, now: float) -> bool:
        return self.read_at is not None and now - self.read_at <= FRESH_S


def heard(last: Quiet, gateways: Mapping[str, Count | None], now: float, *, gone: Collection[str] = ()) -> Quiet:
    """After one more reading of every gateway of the environment; None: it did not tell. A gateway that is silent for a while and then
    repeats itself had nothing to count meanwhile.

    `gone`: those that count no more while they do not tell. What they counted is kept, in case they come back.
    """
    news = {name: one for name, one in gateways.items() if one is not None}
    is_changed = any(last.counts.get(name) != one for name, one in news.items())
    silent = tuple(sorted(name for name, one in gateways.items() if one is None and name not in gone))
    counts = {name: one for name, one in last.counts.items() if name in gateways} | news
    return Quiet(
        since=now if is_changed else last.since,
        read_at=now if news and not silent else last.read_at,
        silent=silent,
        gone=tuple(sorted(name for name, one in gateways.items() if one is None and name in gone)),
        counts=counts,
    )


def is_demand(last: Quiet, now: Quiet, *, is_by_hand: bool = False) -> bool:
    """Whether a request was counted that was not there before. A gateway that only began anew was not asked. Where nothing was known of
    any of them, nobody can tell, and it is none.

    `is_by_hand`: a person had it sleep. Then only what found it asleep is one: what ends now may have begun before that was said.
    """
    for name, one in now.counts.items():
        before = last.counts.get(name)
        if before is None or before.epoch != one.epoch:
            before = Count(one.epoch, 0)
        if one.asleep > before.asleep or (one.requests > before.requests and not is_by_hand):
            return bool(last.counts)
    return False


def why_unknown(quiet: Quiet, now: float) -> str:
    """Why nobody can tell whether the model was asked, as sentences; empty where that is known."""
    if quiet.since is not None and quiet.is_known(now):
        return ""
    who = ", ".join(quiet.silent or quiet.gone)
    said = f"What the gateways count is not known{f' ({who})' if who else ''}, and that is never taken for quiet."
    return f"{said} {how_to_end(quiet.silent)}".rstrip()


def how_to_end(silent: Sequence[str]) -> str:
    """What to do where gateways do not tell, as a sentence; empty where all do."""
    if not silent:
        return ""
    name = silent[0] if len(silent) == 1 else "NAME"
    return (
        "Who does not tell may serve users by what it last heard, and keeps its servers loaded until it tells again; "
        f"one that serves nobody any more is removed: `sluicegate api POST /gateways/{name}/remove --if-match '*'`."
    )


def why_awake(after_s: int | None, quiet: Quiet, *, awake_since: float, needs: Sequence[str], now: float) -> str:
    """Why the model stays loaded now, as a sentence; empty where it may sleep.

    `needs`: what else keeps it, as sentences without an end. Since it woke it has been awake for no less than `after_s` either, so that
    what was just loaded is not unloaded before it was of use.
    """
    if after_s is None:
        return "Nobody said that it may sleep."
    if needs:
        return f"It is needed: {'; '.join(needs)}."
    if unknown := why_unknown(quiet, now):
        return unknown
    idle_s = now - max(quiet.since or 0.0, awake_since)
    if idle_s < after_s:
        return f"It was asked, woke, or had something in flight {max(0, idle_s):.0f} s ago; it may sleep after {after_s} s."
    return ""


def wake_s(timings: Mapping[str, Any]) -> int:
    """Whole seconds until a model that sleeps answers again, by the measured cold start of its last server here (`load_s`, `warmup_s`):
    its files are on the nodes."""
    measured = [float(timings[name]) for name in ("load_s", "warmup_s") if timings.get(name) is not None]
    seconds = math.ceil(sum(measured)) + NOTICED_WITHIN_S if measured else UNKNOWN_WAKE_S
    return min(seconds, MOST_WAKE_S)


@dataclass(frozen=True)
class Yielder:
    """A model that may be put to sleep for others: when it was last asked, or woke, and what its servers hold, by node."""

    key: int
    since: float
    claims: Mapping[str, tuple[Claim, ...]]


def to_make_room(demand: Demand, spots: Sequence[Spot], yielders: Sequence[Yielder]) -> tuple[int, ...]:
    """The keys of those that are to sleep so that one node has room: the least recently used, and no more of them than it takes.

    Of several nodes the one whose last used yielder was used least recently; then where fewer sleep; then by name. Empty where there is
    room already, or never would be.
    """
    order = sorted(yielders, key=lambda one: (one.since, one.key))
    found = []
    for spot in spots:
        if spot.refusal:
            continue
        if _has_room(demand, spot, ()):
            return ()
        here = [one for one in order if one.claims.get(spot.node)]
        count = next((n for n in range(1, len(here) + 1) if _has_room(demand, spot, here[:n])), None)
        if count is None:
            continue
        chosen = here[:count]
        for one in reversed(here[: count - 1]):  # the last is needed; of the others, those used last stay if they can
            fewer = [other for other in chosen if other is not one]
            chosen = fewer if _has_room(demand, spot, fewer) else chosen
        found.append((chosen[-1].since, len(chosen), spot.node, tuple(one.key for one in chosen)))
    return min(found)[-1] if found else ()


def _has_room(demand: Demand, spot: Spot, gone: Sequence[Yielder]) -> bool:
    left = list(spot.held)
    for one in gone:
        for claim in one.claims[spot.node]:
            left.remove(claim)
    return isinstance(fit_in(demand, replace(spot, held=tuple(left))), Claim)
