"""What a tick's snapshot says, from the engine's state: durations, counts, and the stage that they belong to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.dispersion import Dispersion
from rollouts.core.engine_state import EngineState
from rollouts.core.evidence import Side, Tolerance, Window, attempts_to_go, fixed_sums, log_mean, mixed
from rollouts.core.guard_tracker import GuardTracker, Recent
from rollouts.core.headroom import Headroom
from rollouts.core.judged import judge_guard
from rollouts.core.lifecycle import RolloutState
from rollouts.core.request_mix import Mix
from rollouts.core.rules.servers_gone import CandidateServers
from rollouts.core.snapshot import NOBODY, Desired, Identity, Observed, Snapshot, StageEvidence
from rollouts.core.stage_evidence import take_snapshot
from rollouts.core.step_evidence import Evidence, Part
from rollouts.core.two_by_two import by_chance
from tests.core.test_confounders import SHADOWED
from tests.core.test_decide import POLICY, judged, snapshot

S = RolloutState
NOW = 1000.0


def evidence(state: EngineState, *, gone_over_s: float = 5.0, policy: Any = POLICY, **observed: Any) -> StageEvidence:
    seen = Observed(NOW, **{"step_started_at": 900.0, **observed})
    return take_snapshot(policy, Identity(), Desired(S.SHIFTING), seen, state, gone_over_s=gone_over_s).evidence


def test_nothing_counted_is_no_evidence() -> None:
    found = evidence(EngineState())
    assert (found.unacknowledged_s, found.quiet_s, found.attempts, found.usual_frac) == (0.0, 0.0, 0, 0.0)
    assert (found.shed_candidate, found.shed_stable, found.step_attempts) == (0, 0, 0)


def test_counts_and_durations_by_arm() -> None:
    state = EngineState(
        step=Arms(Counts(40, 50, {"shed": 3}), Counts(400, 500, {"shed": 7})),
        total=Arms(Counts(90, 100), Counts()),
        commanded_at=880.0, candidate_seen_at=970.0,
        watches={"errors": GuardTracker(first=(1, 50), recent=Recent((1, 10, 2, 20), 990.0))},
    )  # fmt: skip
    found = evidence(state)
    assert (found.unacknowledged_s, found.quiet_s, found.attempts) == (120.0, 30.0, 90)
    assert (found.step_attempts, found.routed_candidate, found.routed_stable) == (40, 50, 500)
    assert (found.shed_candidate, found.shed_stable) == (3, 7)
    assert found.tracker("errors").first == (1, 50) and found.tracker("unknown") == GuardTracker()
    assert evidence(replace(state, candidate_seen_at=1001.0)).quiet_s == 0.0  # a gateway's clock may be ahead


def test_a_candidate_is_gone_after_a_while_without_a_server_or_at_once_where_it_failed() -> None:
    def is_gone(servers: CandidateServers) -> bool:
        return servers.is_gone(Observed(NOW, gone_over_s=5.0))

    assert not is_gone(CandidateServers(995.0)) and is_gone(CandidateServers(994.9))
    assert is_gone(CandidateServers(1000.0, has_failed=True)) and not is_gone(CandidateServers(has_failed=True))
    assert CandidateServers(999.5).is_gone(Observed(NOW))  # nobody gave it time


@pytest.mark.parametrize(
    ("seen_at", "started_at", "silent_s"),
    [(None, 900.0, 100.0), (950.0, 900.0, 50.0), (850.0, 900.0, 100.0), (None, None, 120.0), (NOW, 900.0, 0.0)],
)
def test_another_source_is_silent_since_its_last_count_or_the_stages_begin(seen_at, started_at, silent_s) -> None:
    state = EngineState(commanded_at=880.0, watches={"wrong": GuardTracker(seen_at=seen_at)})
    assert evidence(state, policy=SHADOWED, step_started_at=started_at).silent_s == {"wrong": silent_s}


def test_shares_and_time_of_a_stage() -> None:
    assert snapshot(routed_candidate=30, routed_stable=90).observed_frac == 0.25
    assert snapshot(routed_candidate=0, routed_stable=0).observed_frac is None
    assert snapshot(now=950.0).elapsed_s == 50.0
    assert snapshot(now=800.0).elapsed_s == snapshot(step_started_at=None).elapsed_s == 0.0


@pytest.mark.parametrize(("index", "of"), [(-1, 0), (0, 0), (1, 1), (2, 2), (3, 2), (9, 2)])
def test_the_stage_is_the_step_that_the_rollout_is_in(index: int, of: int) -> None:
    assert snapshot(step_index=index).stage == POLICY.steps[of]


def test_a_paused_rollout_is_in_the_stage_that_it_was_paused_in() -> None:
    def stage(**over: Any) -> object:
        one: Snapshot = snapshot(policy=SHADOWED, judged=(), **over)
        return one.stage

    assert SHADOWED.shadow is not None
    assert stage(state=S.SHADOWING) == stage(state=S.PAUSED, paused_in=S.SHADOWING) == SHADOWED.shadow.as_step
    assert stage(state=S.BAKING) == stage(state=S.PAUSED, paused_in=S.BAKING) == SHADOWED.bake
    assert stage(state=S.PAUSED, paused_in=S.SHIFTING, step_index=1) == SHADOWED.steps[1]
    assert snapshot(state=S.SHADOWING).stage == POLICY.steps[1]  # a policy that has no shadow


def test_one_guards_evidence_by_hand() -> None:
    guard = replace(POLICY.guards[0], roll_back_over=Tolerance(2.0, 0.01), promote_within=Tolerance(3.0, 0.0))
    kept = Evidence().after(
        [Part(100, 400, {"errors": (9, 8)})], worse=guard.roll_back_over, fine=guard.promote_within, name="errors"
    )
    found = judge_guard(guard, GuardTracker(evidence=kept), has_stable=True, bar_fine=3.0)
    assert (found.bad_candidate, found.candidate, found.bad_stable, found.stable) == (9, 100, 8, 400)
    assert (found.rate_candidate, found.rate_stable, found.limit) == (0.09, 0.02, pytest.approx(0.03))
    assert found.log_e_over == pytest.approx(mixed(fixed_sums(9, 100, 0.03, Side.WORSE)))
    assert found.log_e_stable_over == pytest.approx(mixed(fixed_sums(8, 400, 0.03, Side.WORSE)))
    assert found.farthest == ("errors", Window(9, 100, 8, 400)) and found.log_e_better == mixed(kept.better)
    alone = judge_guard(guard, GuardTracker(evidence=kept), has_stable=False, bar_fine=3.0)
    assert (alone.log_e_worse, alone.log_e_better) == (0.0, 0.0)
    assert alone.log_e_fine == pytest.approx(mixed(fixed_sums(9, 100, 0.03, Side.FINE)))
    nothing = judge_guard(guard, GuardTracker(), has_stable=True, bar_fine=3.0)
    assert (nothing.rate_candidate, nothing.rate_stable, nothing.to_go) == (0.0, 0.0, None)


def told(group: object) -> dict[str, Any]:
    """The fields that say something."""
    return {name: value for name, value in vars(group).items() if value}


def test_what_nobody_told_is_no_trouble() -> None:
    """Snapshots name only what is so; all else must read as if nothing had happened, and nothing were known."""
    assert told(StageEvidence()) == {
        "mix": Mix(),
        "classes": Mix(),
    }
    assert told(Observed(0.0)) == {"is_acknowledged": True, "is_confirmed": True, "headroom": Headroom()}
    assert told(Desired(S.SHIFTING)) == {
        "state": S.SHIFTING, "paused_in": S.SHIFTING, "step_index": -1, "look": 1, "crossed_in": S.SHIFTING,
    }  # fmt: skip
    assert told(Identity()) == {"has_stable": True, "candidate_name": "the candidate", "stable_name": "stable"}
    assert told(NOBODY) == {} and judged().log_e_better == 0.0


def test_a_dry_run_is_judged_and_does_not_act() -> None:
    dry = replace(judged(0), guard=replace(POLICY.guards[0], is_dry_run=True))
    assert snapshot(judged=(dry, judged(1))).acting == (judged(1),)


def test_every_guard_of_the_policy_is_judged_in_its_order_by_its_own_counts() -> None:
    watches = {"slow_250ms": GuardTracker(evidence=Evidence(candidate=70, stable=30))}
    found = evidence(EngineState(watches=watches)).judged
    assert [(one.guard.name, one.candidate, one.stable) for one in found] == [
        ("errors", 0, 0),
        ("slow_250ms", 70, 30),
        ("refused", 0, 0),
    ]


def test_a_guard_is_worse_on_average_over_its_points_and_fine_where_that_is_proven_least() -> None:
    """Points that no gateway counts say nothing, nor does a counter that is none of the guard's points."""
    guard = POLICY.guards[1]
    inner, own = guard.points[0], guard.name
    assert inner != own
    bad = {inner: (6, 20), own: (0, 8), "errors": (90, 0)}
    kept = Evidence().after(
        [Part(100, 400, bad)], worse=guard.roll_back_over, fine=guard.promote_within, name=guard.name
    )
    dispersion = Dispersion()
    vars(dispersion)["phis"] = {own: (2.0, 3.0), inner: (1.5, 1.0)}  # in place of what it takes minutes to see
    watch = GuardTracker(evidence=kept, dispersion=dispersion)
    found = judge_guard(guard, watch, has_stable=True, bar_fine=3.0)
    assert found.log_e_worse == pytest.approx(log_mean([kept.log_e_worse(inner), kept.log_e_worse(own)]))
    fine = {name: mixed(kept.point(name).fine, phi) for name, phi in ((inner, 1.5), (own, 2.0))}
    least = min(fine, key=lambda name: fine[name])
    assert found.log_e_fine == fine[least] < max(fine.values())
    assert found.to_go == attempts_to_go(kept.point(least).fine, 100, watch.dispersion.phi(least), 3.0) is not None
    assert found.farthest == (inner, Window(6, 100, 20, 400))
    assert (found.bad_candidate, found.bad_stable, found.phi) == (0, 8, 2.0)
    assert found.log_e_over == mixed(fixed_sums(0, 100, found.limit, Side.WORSE), 2.0)
    assert found.log_e_stable_over == mixed(fixed_sums(8, 400, found.limit, Side.WORSE), 3.0)


def test_the_point_farthest_over_stables_share_need_not_be_the_one_that_speaks_most_against_it() -> None:
    guard = POLICY.guards[1]
    bad = {guard.points[0]: (440, 120), guard.name: (100, 0)}
    kept = Evidence().after(
        [Part(2000, 1000, bad)], worse=guard.roll_back_over, fine=guard.promote_within, name=guard.name
    )
    found = judge_guard(guard, GuardTracker(evidence=kept), has_stable=True, bar_fine=3.0)
    assert kept.log_e_worse(guard.name) > kept.log_e_worse(guard.points[0])
    assert (found.farthest, found.excess) == ((guard.points[0], Window(440, 2000, 120, 1000)), 200.0)
    assert replace(found, farthest=None).excess == 100.0
    chance = math.sqrt(2000 * 0.12 * 0.88 * 3)  # of 2,000, beside 1,000 of which 12 % were
    assert found.beyond_chance == pytest.approx(200 - chance) and chance == pytest.approx(25.17, abs=0.01)


def test_chance_is_allowed_for_at_each_point_and_as_much_more_as_stable_scatters() -> None:
    """Where stable is never slow chance adds nothing, so the point with the smaller excess may be the one that is surely over."""
    guard = POLICY.guards[1]
    bad = {guard.points[0]: (301, 300), guard.name: (60, 0)}
    kept = Evidence().after(
        [Part(1000, 1250, bad)], worse=guard.roll_back_over, fine=guard.promote_within, name=guard.name
    )
    dispersion = Dispersion()
    vars(dispersion)["phis"] = {guard.name: (1.0, 1.0), guard.points[0]: (9.0, 4.0)}
    found = judge_guard(guard, GuardTracker(evidence=kept, dispersion=dispersion), has_stable=True, bar_fine=3.0)
    assert found.excess == 61.0 and found.beyond_chance == 60.0
    assert by_chance(1000, 300, 1250, 4.0) == pytest.approx(2 * by_chance(1000, 300, 1250, 1.0))
    assert by_chance(0, 0, 0, 1.0) == 0.0


def test_without_a_stable_only_the_objective_at_the_guards_own_threshold_counts() -> None:
    guard = POLICY.guards[1]
    bad = {guard.name: (9, 0), guard.points[0]: (80, 0)}
    kept = Evidence().after(
        [Part(100, 0, bad)], worse=guard.roll_back_over, fine=guard.promote_within, name=guard.name, over=0.02
    )
    found = judge_guard(guard, GuardTracker(evidence=kept), has_stable=False, bar_fine=3.0)
    assert found.log_e_over == kept.log_e_worse(guard.name) > 0.0
    assert found.farthest == (guard.name, Window(9, 100, 0, 0))
