"""Snapshots for tests, by flat names: each of them is in one group of `Snapshot` only, or in the state of a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from rollouts.core.engine_state import EngineState
from rollouts.core.guard_tracker import GuardTracker, Recent
from rollouts.core.rules.all_failing import AllFailing
from rollouts.core.rules.blind import Blindness
from rollouts.core.rules.budget import SpentBudget
from rollouts.core.rules.forced_calls import ForcedCalls
from rollouts.core.rules.given import RuleInput
from rollouts.core.rules.loading import Loading
from rollouts.core.rules.lost_counts import LostCounts
from rollouts.core.rules.mostly_failing import MostlyFailing
from rollouts.core.rules.replica_differs import CandidateTallies, ReplicaDiffers
from rollouts.core.rules.second_look import SteadyServer
from rollouts.core.rules.servers_gone import CandidateServers
from rollouts.core.rules.stable_gone import StableServers
from rollouts.core.rules.stable_replica import StableReplica, StableTallies
from rollouts.core.rules.state import RuleState
from rollouts.core.rules.table import BEGIN
from rollouts.core.rules.warm_up import WarmUp
from rollouts.core.snapshot import Desired, Identity, Observed, People, Snapshot, StageEvidence
from rollouts.core.step_evidence import Evidence

GROUPS: dict[str, Any] = {
    "identity": Identity,
    "desired": Desired,
    "observed": Observed,
    "evidence": StageEvidence,
    "people": People,
}
_GROUP_OF = {field.name: group for group, kind in GROUPS.items() for field in fields(kind)}
#: Many attempts ago: a server that is not named as new has served for long.
_LONG = -(10**9)
#: By flat name: the rule whose state it belongs to, and the field; with `_s`, seconds before now in place of an instant.
_RULES: dict[str, tuple[type[RuleState], str]] = {
    "all_failing": (AllFailing, "attempts"), "all_failing_s": (AllFailing, "until"), "own_failing": (AllFailing, "own"),
    "blind_s": (Blindness, "since"), "since_gap_s": (LostCounts, "at"), "gone_s": (CandidateServers, "gone_since"),
    "stable_gone_s": (StableServers, "gone_since"), "load_failure": (Loading, "failure"),
    "unsteady_s": (SteadyServer, "gone_since"), "refuses_forced": (ForcedCalls, "are_refused"), "harm": (SpentBudget, "harm"),
    "server_age_s": (WarmUp, "server_since"), "served_s": (WarmUp, "served_since"), "forgotten": (WarmUp, "forgotten"),
    "aside": (ReplicaDiffers, "replica"), "aside_s": (ReplicaDiffers, "at"), "is_replaced": (ReplicaDiffers, "is_replaced"),
    "stable_odd": (StableReplica, "replica"), "stable_odd_s": (StableReplica, "at"),
    "is_stable_renewed": (StableReplica, "is_renewed"), "stable_looks": (StableReplica, "looks"),
}  # fmt: skip
#: By flat name: the input of one rule, and the field.
_INPUTS: dict[str, tuple[type[RuleInput], str]] = {
    "replicas": (CandidateTallies, "tallies"), "is_replacing": (CandidateTallies, "is_replacing"),
    "stable_replicas": (StableTallies, "tallies"), "is_stable_replacing": (StableTallies, "is_replacing"),
}  # fmt: skip
_SPECIAL = ("mostly", "is_stable_better", "is_candidate_gone", "attempts_since_server", "forced", "first", "recent")


def make_snapshot(**values: Any) -> Snapshot:
    """A snapshot with these values; what is not named is as its group has it by default."""
    policy, ruled = values.pop("policy"), _taken(values)
    grouped = _grouped(values)
    groups = {group: kind(**grouped.get(group, {})) for group, kind in GROUPS.items()}
    return _with_rules(Snapshot(policy, rules=BEGIN, **groups), ruled)


def changed(snapshot: Snapshot, **values: Any) -> Snapshot:
    """The same snapshot with other values."""
    policy, ruled = values.pop("policy", snapshot.policy), _taken(values)
    groups = {group: replace(getattr(snapshot, group), **some) for group, some in _grouped(values).items()}
    return _with_rules(replace(snapshot, policy=policy, **groups), ruled)


def seen(now: float, **values: Any) -> Observed:
    """The facts of a tick, by flat names."""
    told = {name: values.pop(name) for name in list(values) if name in _INPUTS}
    return _telling(Observed(now, **values), told)


def _telling(observed: Observed, told: Mapping[str, Any]) -> Observed:
    for name, value in told.items():
        kind, field = _INPUTS[name]
        observed = observed.telling(replace(observed.given(kind), **{field: value}))
    return observed


def keeping(*states: RuleState, **fields: Any) -> EngineState:
    """An engine state with these states of rules."""
    return EngineState(rules=with_states(BEGIN, *states), **fields)


def with_states(rules: Mapping[str, RuleState], *states: RuleState) -> dict[str, RuleState]:
    return {**rules, **{one.name: one for one in states}}


def _taken(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values.pop(name) for name in list(values) if name in (*_RULES, *_INPUTS, *_SPECIAL)}


def _with_rules(s: Snapshot, ruled: dict[str, Any]) -> Snapshot:
    s = replace(s, observed=_telling(s.observed, {name: one for name, one in ruled.items() if name in _INPUTS}))
    now, rules, trackers = s.observed.now, dict(s.rules), dict(s.evidence.trackers)
    for name, value in ruled.items():
        if name in _RULES:
            kind, field = _RULES[name]
            value = value + 1 if name == "stable_looks" else value  # looks before this look
            is_ago = name.endswith("_s") and name != "all_failing_s" and value is not None
            rules[kind.name] = replace(rules[kind.name], **{field: now - value if is_ago else value})  # type: ignore[type-var]
    if "stable_odd_s" in ruled and "stable_odd" not in ruled:
        rules["stable_replica"] = replace(rules["stable_replica"], replica="b:1")  # type: ignore[type-var]
    if "aside_s" in ruled and "aside" not in ruled:
        rules["replica_differs"] = replace(rules["replica_differs"], replica="b:1")  # type: ignore[type-var]
    row = rules["all_failing"]
    assert isinstance(row, AllFailing)
    if "all_failing" in ruled and "own_failing" not in ruled:
        row = replace(row, own=row.attempts)
    row = replace(row, good=0 if ruled.get("is_stable_better", True) is False else 10**7) if row.attempts else row
    rules["all_failing"] = row
    if "mostly" in ruled:
        rules["mostly_failing"] = ruled["mostly"]
    if ruled.get("is_candidate_gone"):
        rules["servers_gone"] = CandidateServers(now - ruled.get("gone_s", 0.0), has_failed=True)
    warm, evidence = rules["warm_up"], s.evidence
    assert isinstance(warm, WarmUp)
    if "attempts_since_server" in ruled:
        evidence = replace(evidence, attempts=ruled["attempts_since_server"] or 0)
        since = warm.server_since if warm.server_since is not None else now - 1e6
        warm = replace(warm, server_base=0, server_since=since if ruled["attempts_since_server"] is not None else None)
    elif warm.server_since is not None and not evidence.attempts:
        warm = replace(warm, server_base=_LONG)
    rules["warm_up"] = warm
    for kind in ("forced", "first", "recent"):
        for guard, (some, whole) in ruled.get(kind, {}).items():
            one = trackers.get(guard, GuardTracker())
            if kind == "forced":
                one = replace(one, forced=some, evidence=Evidence(ticks=whole))
            elif kind == "first":
                one = replace(one, first=(some, whole))
            else:
                one = replace(one, recent=Recent((some, whole, 0, 0)))
            trackers[guard] = one
        if kind in ruled and not ruled[kind]:
            trackers = {}
    assert isinstance(MostlyFailing(), RuleState) and MostlyFailing.name in rules
    return replace(s, rules=rules, evidence=replace(evidence, trackers=trackers))


def _grouped(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        grouped.setdefault(_GROUP_OF[name], {})[name] = value
    return grouped
