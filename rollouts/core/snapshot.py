"""All that one decision rests on, in one frozen value: what is wanted, what was acknowledged, what was observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rollouts.core.counter_deltas import SHED
from rollouts.core.engine_state import EngineState
from rollouts.core.evidence import Side, attempts_to_go, fixed_sums, log_mean, mixed
from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Guard, Policy, Source, Step
from rollouts.core.request_mix import SIZES, Mix, mix_of


@dataclass(frozen=True)
class Judged:
    """What one guard's counts say in this step. Every `log_e_*` is compared with the bar of its side.

    `log_e_worse`: the candidate is worse than stable, as the average over the guard's points. `log_e_fine`: it is close
    enough to the reference, at the point where that is proven least. `log_e_better`: it fares better than stable.
    `log_e_over`, `log_e_stable_over`: the arm is over the objective, whatever the other does. Counts and `phi` are those of
    the guard's own name. `loudest` is the point that speaks most for "worse", and how many bad attempts of the candidate and
    of stable it counted.
    """

    guard: Guard
    bad_candidate: int
    candidate: int
    bad_stable: int
    stable: int
    phi: float
    log_e_worse: float
    log_e_fine: float
    log_e_over: float
    log_e_stable_over: float
    to_go: int | None  # further attempts of the candidate like those so far until it is proven fine; None: cannot tell
    loudest: tuple[str, int, int] | None = None
    log_e_better: float = 0.0

    @property
    def rate_candidate(self) -> float:
        return self.bad_candidate / self.candidate if self.candidate else 0.0

    @property
    def rate_stable(self) -> float:
        return self.bad_stable / self.stable if self.stable else 0.0

    @property
    def limit(self) -> float:
        """The share over which the objective counts as broken."""
        return self.guard.roll_back_over.of(self.guard.max_frac)


def judge(guard: Guard, watch: GuardTracker, *, has_stable: bool, bar_fine: float) -> Judged:
    """The evidence of one guard as it stands.

    An average of e-values is one, however they depend on each other: it disproves "worse at no point". "Worse at some
    point" is disproven only when it is at each of them, so the promote side takes the least.
    """
    seen, own = watch.evidence, watch.evidence.point(guard.name)
    limit = guard.roll_back_over.of(guard.max_frac)
    name = guard.name
    points = tuple([one for one in guard.points if one in seen.points]) if has_stable else ()
    points, phi = points or (name,), watch.dispersion.phi(name)
    worse = {one: seen.log_e_worse(one) for one in points}
    fine = {one: seen.point(one).fine for one in points}
    if not has_stable:
        fine = {name: fixed_sums(own.bad_candidate, seen.candidate, guard.promote_within.of(guard.max_frac), Side.FINE)}
    log_e_fine = {one: mixed(sums, watch.dispersion.phi(one)) for one, sums in fine.items()}
    least = min(log_e_fine, key=log_e_fine.__getitem__)
    loudest = max(worse, key=worse.__getitem__)
    return Judged(
        guard,
        own.bad_candidate,
        seen.candidate,
        own.bad_stable,
        seen.stable,
        phi,
        log_e_worse=log_mean(list(worse.values())) if has_stable else 0.0,
        log_e_fine=log_e_fine[least],
        log_e_over=mixed(fixed_sums(own.bad_candidate, seen.candidate, limit, Side.WORSE), phi)
        if has_stable
        else worse[name],
        log_e_stable_over=mixed(
            fixed_sums(own.bad_stable, seen.stable, limit, Side.WORSE), watch.dispersion.phi_stable(name)
        ),
        to_go=attempts_to_go(fine[least], seen.candidate, watch.dispersion.phi(least), bar_fine),
        loudest=(loudest, seen.point(loudest).bad_candidate, seen.point(loudest).bad_stable),
        log_e_better=mixed(seen.better, phi) if has_stable else 0.0,
    )


@dataclass(frozen=True)
class Snapshot:
    """Durations in seconds, instants in seconds since the epoch (UTC). `policy` is already `facing` the stable, if any."""

    state: RolloutState
    policy: Policy
    now: float
    has_stable: bool = True
    candidate_name: str = "the candidate"
    stable_name: str = "stable"
    step_index: int = -1
    paused_in: RolloutState = RolloutState.SHIFTING
    # preparing
    waited_s: float = 0.0
    is_candidate_ready: bool = False
    is_stable_ready: bool = True
    report_problem: str = ""  # a sentence: why the pinned report does not admit this candidate
    deployment_problem: str = ""
    # desired, acknowledged, observed
    commanded_bp: int = 0
    is_acknowledged: bool = True
    unacknowledged_s: float = 0.0
    ack_error: str = ""
    step_started_at: float | None = None
    judged: tuple[Judged, ...] = ()
    step_attempts: int = 0  # of the candidate, since acknowledged
    routed_candidate: int = 0
    routed_stable: int = 0
    all_failing: int = 0  # attempts of the candidate in a row
    all_failing_s: float = 0.0  # between the first and the last reading that showed them
    own_failing: int | None = None  # of these, what stable could save or nobody tried again; None: all of them
    is_stable_better: bool = True  # stable clearly did better meanwhile
    shed_candidate: int = 0  # requests that were refused in this step because too many were in flight
    shed_stable: int = 0
    quiet_s: float = 0.0  # since the candidate's last attempt, or since the step began
    candidate_servers: int | None = None  # serving now; None: not known
    stable_servers: int | None = None
    digest_mismatch: str = ""  # a sentence, when a server runs something other than what was sealed
    problem: str = ""  # provider_down or stale: why this tick cannot be judged
    problem_sentence: str = ""
    blind_s: float = 0.0  # for how long no tick could be judged
    since_gap_s: float | None = None  # since counts of this stage were last lost; None: they never were
    silent_s: Mapping[str, float] = field(default_factory=dict)  # by guard: since its last count of the candidate
    source_problems: Mapping[str, str] = field(default_factory=dict)  # by guard: why its source says nothing
    # what else could be to blame
    mix: Mix = field(default_factory=Mix)
    hardware: str = ""  # half a sentence, when the arms run on different hardware
    attempts_since_server: int | None = None  # of the candidate, since its newest server came
    server_age_s: float | None = None  # of that server
    served_s: float | None = None  # since its first attempt
    first: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by guard: bad and all of its first attempts
    forgotten: int = 0  # how often evidence of a warm-up was dropped in this stage
    recent: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by guard: bad and all attempts of late
    harm: Mapping[str, tuple[float, float]] = field(
        default_factory=dict
    )  # by guard: excess over what it tolerates, its variance
    # people and time
    approvals: Mapping[str, int] = field(default_factory=dict)  # valid ones, by stage
    promote_now: bool = False
    total_s: float = 0.0  # since the first step or shadowing began
    is_promoting: bool = False

    @property
    def acting(self) -> tuple[Judged, ...]:
        """The guards that may act; the others are dry runs."""
        return tuple(one for one in self.judged if not one.guard.is_dry_run)

    @property
    def stage(self) -> Step:
        """The stage that the numbers belong to, also while paused in it."""
        where = self.paused_in if self.state is RolloutState.PAUSED else self.state
        if where is RolloutState.BAKING:
            return self.policy.bake
        if where is RolloutState.SHADOWING and self.policy.shadow is not None:
            return self.policy.shadow.as_step
        return self.policy.steps[min(max(self.step_index, 0), len(self.policy.steps) - 1)]

    @property
    def elapsed_s(self) -> float:
        return max(0.0, self.now - self.step_started_at) if self.step_started_at is not None else 0.0

    @property
    def observed_frac(self) -> float | None:
        """The candidate's share of the user requests that were split since the step began; None before any."""
        routed = self.routed_candidate + self.routed_stable
        return self.routed_candidate / routed if routed else None

    @property
    def bar_worse(self) -> float:
        return self.policy.bar_worse

    @property
    def bar_fine(self) -> float:
        return self.policy.bar_fine


def judged_all(carry: EngineState, policy: Policy, *, has_stable: bool) -> tuple[Judged, ...]:
    """Every guard of the policy, in its order."""
    return tuple(
        judge(guard, carry.watches.get(guard.name, GuardTracker()), has_stable=has_stable, bar_fine=policy.bar_fine)
        for guard in policy.guards
    )


def counted(snapshot: Snapshot, carry: EngineState) -> Snapshot:
    """The snapshot with all that the counters said."""
    step, now = carry.step, snapshot.now
    candidate, stable = step.candidate, step.stable
    began_at = carry.commanded_at if snapshot.step_started_at is None else snapshot.step_started_at
    return replace(
        snapshot,
        judged=judged_all(carry, snapshot.policy, has_stable=snapshot.has_stable),
        step_attempts=candidate.attempts,
        routed_candidate=candidate.routed,
        routed_stable=stable.routed,
        all_failing=carry.failures.attempts,
        all_failing_s=carry.failures.spread_s,
        own_failing=carry.failures.own,
        is_stable_better=carry.failures.is_stable_better,
        shed_candidate=candidate.bad.get(SHED, 0),
        shed_stable=stable.bad.get(SHED, 0),
        quiet_s=_since(now, carry.candidate_seen_at) or 0.0,
        silent_s={
            guard.name: _since(now, _latest(carry.watches.get(guard.name, GuardTracker()).seen_at, began_at)) or 0.0
            for guard in snapshot.policy.guards
            if guard.source is not Source.GATEWAY
        },
        recent={name: (watch.recent.bad, watch.recent.attempts) for name, watch in carry.watches.items()},
        harm=carry.harm_so_far(snapshot.policy) if snapshot.policy.budget_bad is not None else {},
        mix=mix_of(candidate.bad, candidate.routed, stable.bad, stable.routed, SIZES),
        blind_s=_since(now, carry.blind_since) or 0.0,
        since_gap_s=_since(now, carry.gap_at),
        attempts_since_server=None
        if carry.server_since is None
        else carry.total.candidate.attempts - carry.server_base,
        server_age_s=_since(now, carry.server_since),
        served_s=_since(now, carry.served_since) if carry.server_since is not None else None,
        first={name: watch.first for name, watch in carry.watches.items()},
        forgotten=carry.forgotten,
    )


def _since(now: float, at: float | None) -> float | None:
    return None if at is None else max(0.0, now - at)


def _latest(*instants: float | None) -> float | None:
    return max((one for one in instants if one is not None), default=None)
