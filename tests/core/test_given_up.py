"""An attempt that its caller gave up shows how slow it was up to that time, and nothing beyond it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollouts.core.counter_deltas import Arms, Counts, Reading, given_up_after
from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.evidence import Side, Window, increments
from rollouts.core.guard_tracker import CounterNews, GuardTracker, watched
from rollouts.core.judged import judge_guard
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import Walk, walk
from rollouts.core.step_evidence import Evidence, Part
from rollouts.engine.gateway_counters import counts_of
from serving.ports import ArmCounters
from tests.core.test_decide import snapshot

POINTS = ("slow_50ms", "slow_100ms", "slow_250ms")
EDGES = tuple(zip(POINTS, (50_000, 100_000, 250_000), ("", "", ""), strict=True))
OBJECTIVES = {"slow": {"threshold_ms": 250, "max_frac": 0.05}}
POLICY = parse_policy({"guards": [{"indicator": "slow", "thresholds_ms": [50, 100, 250]}]}, OBJECTIVES)
(SLOW,) = POLICY.guards


def given_up(seconds: float, of: int, *, answered: int = 100, slow: int = 0) -> Counts:
    """So many attempts were given up after this time, beside answers below 50 ms and `slow` ones over 250 ms."""
    beyond = {edge: 0 if edge > 1e6 * seconds else of for _, edge, _ in EDGES}
    timed = answered + slow
    arm = ArmCounters(
        routed=timed + of,
        decided=timed,
        timed=timed,
        latency_us={edge: answered for _, edge, _ in EDGES},
        aborted=of,
        aborted_us={edge: of - count for edge, count in beyond.items()},
        given_up=of,
    )
    return counts_of(arm, EDGES)


def known(candidate: Counts, stable: Counts) -> Evidence:
    zero = {"one": Reading("e", 0.0, Counts(), Counts())}
    news = CounterNews.between(zero, {"one": Reading("e", 1.0, candidate, stable, since=0.0)})
    return watched(GuardTracker(), SLOW, news, policy=POLICY, has_stable=True).evidence


@pytest.mark.parametrize(
    ("seconds", "bad", "attempts"),
    [
        (0.03, (0, 0, 0), (100, 100, 100)),  # nothing is known of them
        (0.06, (40, 0, 0), (140, 100, 100)),
        (0.2, (40, 40, 0), (140, 140, 100)),
        (60.0, (40, 40, 40), (140, 140, 140)),
    ],
)
def test_an_attempt_counts_at_the_thresholds_that_its_caller_waited_for(
    seconds: float, bad: tuple[int, ...], attempts: tuple[int, ...]
) -> None:
    found = known(given_up(seconds, 40), given_up(0.0, 0))
    windows = [found.point(point).window for point in POINTS]
    assert windows == [Window(x, n, 0, 100) for x, n in zip(bad, attempts, strict=True)]
    assert (found.candidate, found.stable) == (attempts[-1], 100)
    assert Evidence.from_json(found.to_json()).points.keys() == found.points.keys()
    assert [Evidence.from_json(found.to_json()).point(point).window for point in POINTS] == windows


def test_callers_who_leave_early_change_no_evidence_beyond_their_time() -> None:
    alone = known(given_up(0.0, 0, slow=4), given_up(0.0, 0, slow=3))
    beside = known(given_up(0.2, 400, slow=4), given_up(0.2, 400, slow=3))
    assert beside.point("slow_250ms") == alone.point("slow_250ms")
    judged = [judge_guard(SLOW, GuardTracker(one), has_stable=True, bar_fine=3.0) for one in (alone, beside)]
    assert judged[0].log_e_over == judged[1].log_e_over
    assert judged[0].window == judged[1].window == Window(4, 104, 3, 103)


def test_a_window_stays_open_at_the_thresholds_at_which_an_arm_has_no_attempt() -> None:
    """Callers who left before 250 ms close no window there, so that stable's answers wait for the candidate's."""

    def grown(known: Evidence, part: Part) -> Evidence:
        return known.after([part], worse=SLOW.roll_back_over, fine=SLOW.promote_within, name=SLOW.name)

    bad = dict.fromkeys(POINTS, (0, 1))
    early = Part(0, 20, bad, attempts={"slow_50ms": (5, 25), "slow_100ms": (5, 25)})
    one = grown(Evidence(), early)
    assert [tuple(part.bad) for part in one.waiting] == [("slow_250ms",)]
    assert Evidence.from_json(one.to_json()).waiting == one.waiting
    two = grown(one, Part(10, 30, bad))
    assert two.waiting == () and (two.candidate, two.stable) == (10, 50)
    whole = increments(Window(0, 10, 2, 50), SLOW.promote_within, Side.FINE)
    assert two.point("slow_250ms").fine == pytest.approx(whole)
    parts = [Window(0, 5, 1, 25), Window(0, 10, 1, 30)]
    each = [increments(window, SLOW.promote_within, Side.FINE) for window in parts]
    assert two.point("slow_50ms").fine == pytest.approx([sum(pair) for pair in zip(*each, strict=True)])
    assert (two.point("slow_50ms").candidate, two.point("slow_50ms").stable) == (15, 55)


def test_a_candidate_that_every_caller_leaves_is_found_slow_where_they_waited_long_enough() -> None:
    slower, usual = given_up(0.2, 300, answered=0), given_up(0.2, 3, answered=297)
    judged = judge_guard(SLOW, GuardTracker(known(slower, usual)), has_stable=True, bar_fine=3.0)
    assert judged.log_e_worse > POLICY.bar_worse_of(SLOW)


# --- callers who leave one arm more often --------------------------------------------------------------------------------


def held(candidate: int, stable: int, **over: int) -> Code | None:
    routed = {"routed_candidate": 1000, "routed_stable": 3000} | over
    found = decide(snapshot(given_up_candidate=candidate, given_up_stable=stable, **routed))
    if found.action is Action.HOLD:
        assert found.facts["because"] == "given_up"
        return found.code
    return None


@pytest.mark.parametrize(
    ("candidate", "stable", "code"),
    [
        (0, 0, None),
        (9, 0, None),
        (10, 0, Code.NO_DATA),
        (800, 2400, None),  # callers leave both
        (870, 2400, Code.NO_DATA),  # 7 % more, and chance adds 58
        (860, 2400, None),
        (0, 3000, None),
    ],
)
def test_a_candidate_that_callers_leave_more_often_is_held(candidate: int, stable: int, code: Code | None) -> None:
    assert held(candidate, stable) is code


def test_the_hold_states_what_is_unknown_and_a_person_may_go_on() -> None:
    s = snapshot(given_up_candidate=120, given_up_stable=3)
    said = decide(s).reason
    assert "callers gave up 120 of 500 requests on r2 before an answer, and 3 of 1500 on r1" in said
    alone = replace(s, identity=replace(s.identity, has_stable=False))
    assert decide(alone).facts.get("because") != "given_up"


def walked(share: float, seed: int, *, attack: float = 0.0) -> list[Walk]:
    """Walks a rollout. The candidate is too late for this share of its callers, and they leave after 30 ms.

    `attack`: further callers for each user, who leave both arms after 30 ms.
    """
    rng = np.random.default_rng(seed)

    def arm(per_s: float, left: float) -> Counts:
        users, others = int(rng.poisson(per_s)), int(rng.poisson(per_s * attack))
        gone = int(rng.binomial(users, left))
        counted = given_up(0.03, gone + others, answered=users - gone)
        return replace(counted, bad={**counted.bad, "errors": 0, "refused": 0})

    def feed(tick: int, weight_bp: int) -> Arms | None:
        frac = weight_bp / 10_000
        return Arms(arm(100 * frac, share), arm(100 * (1 - frac), 0.01)) if tick <= 300 else None

    return list(walk(parse_policy({"preset": "demo"}, OBJECTIVES), feed))


@pytest.mark.parametrize(("share", "attack"), [(0.1, 0.0), (0.5, 4.0)])
def test_a_candidate_that_impatient_callers_leave_is_not_promoted(share: float, attack: float) -> None:
    """Its answers are all fast, because the callers of the others have left."""
    held = walked(share, 1, attack=attack)[-1].decision
    assert (held.action, held.facts.get("because")) == (Action.HOLD, "given_up")
    assert walked(0.01, 1, attack=attack)[-1].decision.action is Action.PROMOTE


# --- answers that are on their way ---------------------------------------------------------------------------------------


def test_only_settled_counts_show_the_split() -> None:
    """Stable's answers of a second are there first; the candidate's of two seconds come later."""

    def read(at: float, candidate: int, stable: int, answer_s: float = 0.0) -> dict[str, Reading]:
        return {
            "one": Reading("e", at, Counts(candidate, candidate), Counts(stable, stable), slot=1, answer_s=answer_s)
        }

    def after(state: EngineState, tick: int, readings: dict[str, Reading]) -> EngineState:
        return update_state(state, tick=tick, readings=readings, policy=POLICY, has_stable=True)

    state = after(EngineState(), 1, read(10.0, 0, 0, 1.0))
    early = after(state, 2, read(11.0, 0, 90, 1.0))
    assert (early.step.stable.routed, early.settled.stable.routed) == (90, 0)
    late = after(early, 3, read(12.0, 10, 180, 1.0))
    assert (late.settled.candidate.routed, late.settled.stable.routed) == (10, 90)
    assert EngineState.from_json(late.to_json()).settled == late.settled
    fast = after(after(EngineState(), 1, read(10.0, 0, 0)), 2, read(11.0, 10, 90))
    assert fast.settled is fast.step and "settled" not in fast.to_json()
    assert EngineState.from_json(fast.to_json()).settled == fast.settled


def test_without_callers_who_leave_no_counter_is_added() -> None:
    assert not [name for name in given_up(0.0, 0).bad if name.startswith("given_up")]
    assert given_up(0.2, 7).bad[given_up_after("slow_100ms")] == 7
