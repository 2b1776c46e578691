"""All that one decision rests on, in one frozen value: the policy, what is wanted, what is observed, and what people said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollouts.core.counter_deltas import ERRORS, GIVEN_UP, SHED
from rollouts.core.engine_state import EngineState
from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.judged import Judged, judge_guard
from rollouts.core.lifecycle import RolloutState
from rollouts.core.mostly_failing import MostlyFailing
from rollouts.core.odd_replica import ReplicaTally
from rollouts.core.policy import Policy, Source, Step
from rollouts.core.request_mix import SIZES, Mix, mix_of, mix_of_classes
from rollouts.core.room import UNKNOWN_ROOM, Room


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
    """What the rollout's row wants."""

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
    stable_reported: int | None = None  # of these, as many as an agent has reported on lately; None: not known
    stable_start_s: float = (
        0.0  # how long a server of stable takes to start, as its envelope declares; 0 if it does not
    )
    is_stable_asleep: bool = False  # it was unloaded for want of requests, and is woken
    displaced_servers: int = 0  # of the release that the candidate took the place of
    server_since: float | None = None  # when the candidate's newest server came; None: it has none, or nobody knows
    digest_mismatch: str = ""  # a sentence, when a server runs something other than what was sealed
    hardware: str = ""  # half a sentence, when the arms run on different hardware
    problem: str = ""  # provider_down or stale: why this tick cannot be judged
    problem_sentence: str = ""  # the same for people
    source_problems: Mapping[str, str] = field(default_factory=dict)  # by guard: why its source says nothing
    waited_s: float = 0.0  # preparing: since the rollout was started
    deployment_problem: str = ""  # preparing: a sentence, why the deployment that is waited for does not come
    failed_to_load: str = (
        ""  # preparing: why the candidate's last try to load failed, as a sentence; empty while it tries
    )
    room: Room = UNKNOWN_ROOM  # what the servers of both arms can take
    replicas: Mapping[str, ReplicaTally] = field(default_factory=dict)  # of the candidate, where they were asked for
    is_replacing: bool = False  # fewer of the candidate answer than before one was set aside
    stable_replicas: Mapping[str, ReplicaTally] = field(default_factory=dict)  # of stable in this stage, likewise
    stable_deployments: Mapping[str, int] = field(default_factory=dict)  # likewise; not told to a replay
    is_stable_replacing: bool = False  # stable's odd replica answers still, or fewer of stable do than before


@dataclass(frozen=True)
class StageEvidence:
    """What the counters have shown in this stage, as far as the engine's state tells. Durations in seconds."""

    judged: tuple[Judged, ...] = ()  # every guard of the policy, in its order
    unacknowledged_s: float = 0.0  # since the stage's weight was commanded
    step_attempts: int = 0  # of the candidate, since acknowledged
    refuses_forced: bool = False  # the gateways refuse requests that force a release
    forced: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # by guard: readings left out for forced calls, and used
    routed_candidate: int = 0  # requests that were split since acknowledged, by arm
    routed_stable: int = 0
    settled_candidate: int = 0  # of these, those that ended while answers came as steadily as requests
    settled_stable: int = 0
    given_up_candidate: int = 0  # of these, those that their callers gave up before an answer began
    given_up_stable: int = 0
    all_failing: int = 0  # attempts of the candidate that failed in a row
    all_failing_s: float = 0.0  # between the first and the last reading that showed them
    own_failing: int | None = None  # of these, what stable could save or nobody tried again; None: all of them
    is_stable_better: bool = True  # stable clearly did better meanwhile
    usual_frac: float = 0.0  # stable's share of errors over the whole rollout
    mostly: MostlyFailing = field(default_factory=MostlyFailing)  # readings in a row with many failures
    shed_candidate: int = 0  # requests that were refused in this step because too many were in flight
    shed_stable: int = 0  # likewise
    quiet_s: float = 0.0  # since the candidate's last attempt, or since the step began
    silent_s: Mapping[str, float] = field(default_factory=dict)  # by guard: since its last count of the candidate
    blind_s: float = 0.0  # for how long no tick could be judged
    since_gap_s: float | None = None  # since counts of this stage were last lost; None: they never were
    is_candidate_gone: bool = False  # the candidate has no server, and that is no slow probe
    gone_s: float | None = None  # since the candidate was first found without a server; None: unknown, or it has one
    stable_gone_s: float | None = None  # likewise of stable
    load_failure: str = ""  # why the candidate's last try to load failed, as a sentence; empty once it has a server
    mix: Mix = field(default_factory=Mix)  # the sizes of both arms' requests
    classes: Mix = field(default_factory=Mix)  # the classes of both arms' decided requests
    attempts_since_server: int | None = None  # of the candidate, since its newest server came; None: none is known
    server_age_s: float | None = None  # of that server
    unsteady_s: float = 0.0  # after a crossing: for how long the candidate has had no steady server
    served_s: float | None = None  # since its first attempt
    first: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by guard: bad and all of its first attempts
    forgotten: int = 0  # how often evidence of a warm-up was dropped in this stage
    recent: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by guard: bad and all attempts of late
    harm: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # by guard: excess over tolerance, variance
    aside: str = ""  # the candidate's replica that was set aside in this rollout
    aside_s: float | None = None  # since then; None: none was
    is_replaced: bool = False  # another has answered in its place
    stable_odd: str = ""  # stable's replica that was found to differ in this rollout
    stable_odd_s: float | None = None  # since then; None: none was
    is_stable_renewed: bool = False  # another has answered in its place, and evidence has begun afresh
    stable_looks: int = 0  # how often stable's replicas were looked at in this rollout


@dataclass(frozen=True)
class People:
    """What people have said to it."""

    approvals: Mapping[str, int] = field(default_factory=dict)  # valid ones, by stage
    promote_now: bool = False  # a person asked to skip what is left, but for the breach checks
    report_problem: str = ""  # a sentence: why the pinned gate report does not admit this candidate


NOBODY = People()


@dataclass(frozen=True)
class Snapshot:
    """`policy` is already `facing` the stable release, if there is one."""

    policy: Policy
    identity: Identity
    desired: Desired
    observed: Observed
    evidence: StageEvidence
    people: People = NOBODY

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


def judged_all(state: EngineState, policy: Policy, *, has_stable: bool) -> tuple[Judged, ...]:
    """Every guard of the policy, in its order."""
    return tuple(
        judge_guard(
            guard, state.watches.get(guard.name, GuardTracker()), has_stable=has_stable, bar_fine=policy.bar_fine
        )
        for guard in policy.guards
    )


def take_snapshot(
    policy: Policy,
    identity: Identity,
    desired: Desired,
    observed: Observed,
    state: EngineState,
    *,
    people: People = NOBODY,
    gone_over_s: float = 0.0,
) -> Snapshot:
    """The snapshot of a tick whose readings `state` has taken in. The engine, replays and simulations all build theirs here.

    `gone_over_s`: a candidate without a server is gone when it has had none for longer than this; one whose last attempts
    failed, at once.
    """
    evidence = _evidence(policy, identity, observed, state, gone_over_s)
    return Snapshot(policy, identity, desired, observed, evidence, people)


def _evidence(
    policy: Policy, identity: Identity, observed: Observed, state: EngineState, gone_over_s: float
) -> StageEvidence:
    step, settled, now = state.step, state.settled, observed.now
    candidate, stable = step.candidate, step.stable
    began_at = state.commanded_at if observed.step_started_at is None else observed.step_started_at
    # One look without a server may be a slow probe; a later one, or failed attempts before it, is not.
    is_gone = state.gone_since is not None and (state.has_failed or now - state.gone_since > gone_over_s)
    return StageEvidence(
        judged=judged_all(state, policy, has_stable=identity.has_stable),
        unacknowledged_s=now - state.commanded_at if state.commanded_at else 0.0,
        step_attempts=candidate.attempts,
        forced={name: (watch.forced, watch.evidence.ticks) for name, watch in state.watches.items() if watch.forced},
        refuses_forced=bool(state.refuses_forced),
        routed_candidate=candidate.routed,
        routed_stable=stable.routed,
        settled_candidate=settled.candidate.routed,
        settled_stable=settled.stable.routed,
        given_up_candidate=settled.candidate.bad.get(GIVEN_UP, 0),
        given_up_stable=settled.stable.bad.get(GIVEN_UP, 0),
        all_failing=state.failures.attempts,
        all_failing_s=state.failures.spread_s,
        own_failing=state.failures.own,
        is_stable_better=state.failures.is_stable_better,
        usual_frac=state.total.stable.bad.get(ERRORS, 0) / max(1, state.total.stable.attempts),
        mostly=state.mostly,
        shed_candidate=candidate.bad.get(SHED, 0),
        shed_stable=stable.bad.get(SHED, 0),
        quiet_s=_since(now, state.candidate_seen_at) or 0.0,
        silent_s={
            guard.name: _since(now, _latest(state.watches.get(guard.name, GuardTracker()).seen_at, began_at)) or 0.0
            for guard in policy.guards
            if guard.source is not Source.GATEWAY
        },
        blind_s=_since(now, state.blind_since) or 0.0,
        since_gap_s=_since(now, state.gap_at),
        is_candidate_gone=is_gone,
        gone_s=_since(now, state.gone_since),
        stable_gone_s=_since(now, state.stable_gone_since),
        load_failure=state.load_failure or "",
        mix=mix_of(candidate.bad, candidate.routed, stable.bad, stable.routed, SIZES),
        classes=mix_of_classes(candidate.bad, candidate.attempts, stable.bad, stable.attempts),
        attempts_since_server=None
        if state.server_since is None
        else state.total.candidate.attempts - state.server_base,
        server_age_s=_since(now, state.server_since),
        unsteady_s=_since(now, state.unsteady_since) or 0.0,
        served_s=_since(now, state.served_since) if state.server_since is not None else None,
        first={name: watch.first for name, watch in state.watches.items()},
        forgotten=state.forgotten,
        recent={name: (watch.recent.bad, watch.recent.attempts) for name, watch in state.watches.items()},
        harm=state.harm_so_far(policy) if policy.budget_bad is not None else {},
        aside=state.aside.replica if state.aside else "",
        aside_s=_since(now, state.aside.at) if state.aside else None,
        is_replaced=state.aside is not None and state.aside.is_replaced,
        stable_odd=state.stable_odd.replica if state.stable_odd else "",
        stable_odd_s=_since(now, state.stable_odd.at) if state.stable_odd else None,
        is_stable_renewed=state.stable_odd is not None and state.stable_odd.is_renewed,
        stable_looks=state.stable_looks or 0,
    )


def _since(now: float, at: float | None) -> float | None:
    return None if at is None else max(0.0, now - at)


def _latest(*instants: float | None) -> float | None:
    return max((one for one in instants if one is not None), default=None)
