"""All rules: those with a state, and those that may convict the candidate, each in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rollouts.core.decision import Action, Code, Decision
from rollouts.core.rules.all_failing import AllFailing, all_failing
from rollouts.core.rules.blind import Blindness
from rollouts.core.rules.budget import SpentBudget, spent
from rollouts.core.rules.forced_calls import ForcedCalls
from rollouts.core.rules.given import RuleInput
from rollouts.core.rules.loading import Loading
from rollouts.core.rules.lost_counts import LostCounts
from rollouts.core.rules.mostly_failing import MostlyFailing, mostly_failing
from rollouts.core.rules.over_objective import over_objective
from rollouts.core.rules.replica_differs import CandidateTallies, ReplicaDiffers
from rollouts.core.rules.second_look import SteadyServer
from rollouts.core.rules.servers_gone import CandidateServers, other_contents, servers_gone
from rollouts.core.rules.setting import Setting
from rollouts.core.rules.stable_gone import StableServers
from rollouts.core.rules.stable_replica import StableReplica, StableTallies
from rollouts.core.rules.state import RuleState
from rollouts.core.rules.warm_up import COLD_ATTEMPTS, COLD_S, WarmUp
from rollouts.core.rules.worse_than_stable import worse_than_stable
from rollouts.core.snapshot import Snapshot

#: States that are kept, in the order in which they observe: a rule may use what those before it have observed.
STATES: tuple[type[RuleState], ...] = (
    ReplicaDiffers, StableReplica, Blindness, WarmUp, CandidateServers, SteadyServer, Loading, StableServers,
    AllFailing, MostlyFailing, LostCounts, ForcedCalls, SpentBudget,
)  # fmt: skip
#: What a tick tells single rules, and records.
INPUTS: tuple[type[RuleInput], ...] = (CandidateTallies, StableTallies)
#: Fields of the policy that single rules read.
SETTINGS: tuple[Setting, ...] = (COLD_ATTEMPTS, COLD_S)
BEGIN: Mapping[str, RuleState] = {one.name: one() for one in STATES}


@dataclass(frozen=True)
class ConvictingRule:
    """A rule that may convict. `words`: its row in docs/rollouts.md. `is_fact`: no evidence counts beside it."""

    words: str
    code: Code
    find: Callable[[Snapshot], Iterable[Decision]]
    is_fact: bool = False


CONVICTING = (
    ConvictingRule("contents", Code.DIGEST_MISMATCH, other_contents, is_fact=True),
    ConvictingRule("servers", Code.SERVERS_GONE, servers_gone, is_fact=True),
    ConvictingRule("evidence against stable", Code.WORSE_THAN_STABLE, worse_than_stable),
    ConvictingRule("every attempt fails", Code.ALL_FAILING, all_failing),
    ConvictingRule("most attempts fail", Code.MOSTLY_FAILING, mostly_failing),
    ConvictingRule("over the objective", Code.OBJECTIVE_BREACHED, over_objective),
    ConvictingRule("budget", Code.BUDGET_SPENT, spent),
)


def findings(s: Snapshot) -> list[Decision]:
    """Returns what speaks against the candidate, or would were it not excused. A fact stands alone."""
    found: list[Decision] = []
    for rule in CONVICTING:
        found += rule.find(s)
        if found and rule.is_fact:
            return found
    return found


def most_severe(found: Iterable[Decision]) -> Decision | None:
    """What rolls back first, then what takes the traffic away for a while, what pauses, and what only holds.

    What both arms share excuses only itself: another guard that the candidate alone breaks is still a breach.
    """
    order = {Action.ROLL_BACK: 0, Action.WITHDRAW: 1, Action.PAUSE: 2}
    return min(found, key=lambda one: order.get(one.action, 3), default=None)


def states_of(stored: Mapping[str, Any]) -> dict[str, RuleState]:
    """Returns every state, by name, from the engine's stored state, also from one of an older version."""
    kept = stored.get("rules", {})
    return {one.name: one.from_json(kept[one.name]) if one.name in kept else one.from_earlier(stored) for one in STATES}
