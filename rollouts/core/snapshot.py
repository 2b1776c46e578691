"""Input of a decision, in one frozen value: the policy, the wanted state, the observed state, and people's verbs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar, cast

from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.headroom import UNKNOWN_HEADROOM, Headroom
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Policy, Step
from rollouts.core.request_mix import Mix
from rollouts.core.rules.given import RuleInput

Input = TypeVar("Input", bound=RuleInput)


@dataclass(frozen=True)
class Identity:
    """Whose decision it is. The same for the rollout's whole life."""

    rollout_id: int = 0
    has_stable: bool = True  # whether there is a release to compare with and to go back to
    candidate_name: str = "the candidate"
    stable_name: str = "stable"
    displaced_name: str = ""  # the stable release that had no server when the candidate took all traffic


@dataclass(frozen=True)
class Desired:
    """Wanted state of the rollout's row."""

    state: RolloutState
    paused_in: RolloutState = RolloutState.SHIFTING  # the state that a paused rollout goes back to
    step_index: int = -1  # -1 before the first step
    weight_bp: int = 0  # the candidate's share of the requests, in basis points
    look: int = 1  # how often evidence has been collected from the first stage on
    crossed_in: RolloutState = RolloutState.SHIFTING  # the state in which traffic was last taken away
    crossed_because: str = ""  # a sentence, why
    is_promoting: bool = False  # the route names the candidate as stable already; its acknowledgement is awaited
    is_begun_by_hand: bool = False  # after a crossing: a person ended the wait


@dataclass(frozen=True)
class Observed:
    """What gateways, servers and providers show now. Durations in seconds, instants in seconds since the epoch (UTC)."""

    now: float
    is_acknowledged: bool = True  # every gateway follows the route as it is written
    is_newly_acknowledged: bool = False  # and this is the first tick that sees it since the weight was written
    is_confirmed: bool = True  # after a crossing: counters have shown that no request reaches the candidate
    ack_error: str = ""  # why a gateway refused the route
    step_started_at: float | None = None  # when the weight was acknowledged; None: not yet
    total_s: float = 0.0  # since the first step or shadowing began
    candidate_servers: int | None = None  # that answer real inferences; None: not known
    stable_servers: int | None = None  # likewise
    stable_reported: int | None = None  # of these, the number with a recent agent report; None: unknown
    stable_start_s: float = (
        0.0  # how long a server of stable takes to start, as its envelope declares; 0 if it does not
    )
    is_stable_asleep: bool = False  # it was unloaded for want of requests, and is woken
    displaced_servers: int = 0  # of the release that the candidate took the place of
    server_since: float | None = None  # when the candidate's newest server came; None: it has none, or unknown
    digest_mismatch: str = ""  # a sentence, when a server does not run the sealed files
    hardware: str = ""  # half a sentence, when the arms run on different hardware
    problem: str = ""  # provider_down or stale: why this tick cannot be judged
    problem_sentence: str = ""  # the same for people
    source_problems: Mapping[str, str] = field(default_factory=dict)  # by guard: why its source has no data
    waited_s: float = 0.0  # preparing: since the rollout was started
    replica_problem: str = ""  # preparing: a sentence, why the replica that is waited for does not come
    failed_to_load: str = (
        ""  # preparing: why the candidate's last try to load failed, as a sentence; empty while it tries
    )
    headroom: Headroom = UNKNOWN_HEADROOM  # capacity of both arms' servers
    inputs: Mapping[str, RuleInput] = field(default_factory=dict)  # by rule, facts for it alone
    gone_over_s: float = 0.0  # a candidate without a server for longer is gone; after failed attempts, at once

    def given(self, kind: type[Input]) -> Input:
        """Facts for a rule alone."""
        return cast(Input, self.inputs.get(kind.name) or kind())

    def telling(self, *inputs: RuleInput) -> Observed:
        return replace(self, inputs={**self.inputs, **{one.name: one for one in inputs}})


@dataclass(frozen=True)
class StageEvidence:
    """The counters of this stage, for all rules. Durations in seconds."""

    judged: tuple[Judged, ...] = ()  # every guard of the policy, in its order
    trackers: Mapping[str, GuardTracker] = field(default_factory=dict)  # by guard, as far as it was counted
    attempts: int = 0  # of the candidate, since the rollout began
    usual_frac: float = 0.0  # stable's share of errors over the whole rollout
    unacknowledged_s: float = 0.0  # since the stage's weight was commanded
    step_attempts: int = 0  # of the candidate, since acknowledged
    routed_candidate: int = 0  # requests that were split since acknowledged, by arm
    routed_stable: int = 0
    settled_candidate: int = 0  # of these, those that ended while answers came as steadily as requests
    settled_stable: int = 0
    given_up_candidate: int = 0  # of these, those that their callers gave up before an answer began
    given_up_stable: int = 0
    shed_candidate: int = 0  # requests that were refused in this step because too many were in flight
    shed_stable: int = 0  # likewise
    quiet_s: float = 0.0  # since the candidate's last attempt, or since the step began
    silent_s: Mapping[str, float] = field(default_factory=dict)  # by guard: since its last count of the candidate
    mix: Mix = field(default_factory=Mix)  # the sizes of both arms' requests
    classes: Mix = field(default_factory=Mix)  # the classes of both arms' decided requests

    def tracker(self, guard: str) -> GuardTracker:
        return self.trackers.get(guard, _NEW)


@dataclass(frozen=True)
class People:
    """People's verbs on it."""

    approvals: Mapping[str, int] = field(default_factory=dict)  # valid ones, by stage
    promote_now: bool = False  # a person asked to skip the rest, except for the breach checks
    report_problem: str = ""  # a sentence: why the pinned gate report does not admit this candidate


NOBODY = People()
_NEW = GuardTracker()


class Kept(Protocol):
    """A rule's state. `facts`: its part of every decision's facts."""

    name: ClassVar[str]

    @property
    def facts(self) -> Mapping[str, Any]: ...


State = TypeVar("State", bound=Kept)


@dataclass(frozen=True)
class Snapshot:
    """`policy` is already `facing` the stable release, if there is one."""

    policy: Policy
    identity: Identity
    desired: Desired
    observed: Observed
    evidence: StageEvidence
    rules: Mapping[str, Kept]  # the state of every rule, by its name
    people: People = NOBODY

    def of(self, kind: type[State]) -> State:
        """The state of one rule."""
        return cast(State, self.rules[kind.name])

    def since(self, at: float | None) -> float | None:
        """Seconds since then; None if that never was."""
        return None if at is None else max(0.0, self.observed.now - at)

    @property
    def acting(self) -> tuple[Judged, ...]:
        """The guards that may act; the others are dry runs."""
        return tuple(one for one in self.evidence.judged if not one.guard.is_dry_run)

    @property
    def is_by_hand(self) -> bool:
        """Whether a person asked for the promotion, which then waits for no evidence."""
        return self.people.promote_now and self.desired.state is RolloutState.BAKING

    @property
    def is_stable_gone(self) -> bool:
        """Whether the rollback target is known to have no server: traffic that goes there is lost."""
        return self.identity.has_stable and self.observed.stable_servers == 0

    @property
    def replaced_after_s(self) -> float:
        """For how long stable must have been gone before the policy replaces it: a restart is no loss, however long it takes."""
        return max(self.policy.stable_gone_s, self.observed.stable_start_s)

    @property
    def where(self) -> RolloutState:
        """The state, or the state that a paused rollout goes back to."""
        wanted = self.desired
        return wanted.paused_in if wanted.state is RolloutState.PAUSED else wanted.state

    @property
    def stage(self) -> Step:
        """The stage that the numbers belong to, also while paused in it."""
        wanted, where = self.desired, self.where
        if where is RolloutState.SECOND_LOOK:
            return Step(0, self.policy.second_look.after_s, 1, self.policy.prepare_deadline_s)
        if where is RolloutState.BAKING:
            return self.policy.bake
        if where is RolloutState.SHADOWING and self.policy.shadow is not None:
            return self.policy.shadow.as_step
        return self.policy.steps[min(max(wanted.step_index, 0), len(self.policy.steps) - 1)]

    @property
    def elapsed_s(self) -> float:
        """Seconds since the stage's weight was acknowledged; 0 before."""
        started_at = self.observed.step_started_at
        return max(0.0, self.observed.now - started_at) if started_at is not None else 0.0

    @property
    def observed_frac(self) -> float | None:
        """The candidate's share of the user requests that were split since the step began; None before any."""
        routed = self.evidence.routed_candidate + self.evidence.routed_stable
        return self.evidence.routed_candidate / routed if routed else None

    @property
    def routed_per_s(self) -> float | None:
        """User requests a second of both arms since the step began; None before any."""
        routed = self.evidence.routed_candidate + self.evidence.routed_stable
        return routed / self.elapsed_s if routed and self.elapsed_s else None
