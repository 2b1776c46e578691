"""One guard between two ticks: what is held against whom, what is recent, and which attempts are a server's first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollouts.core.blast_radius import ExcessFailures
from rollouts.core.counter_deltas import Counts, Reading
from rollouts.core.guard_tracker import CounterNews, GuardTracker, Recent, watched
from rollouts.core.policy_schema import parse_policy

POLICY = parse_policy(
    {"guards": [{"indicator": "errors"}, {"indicator": "slow", "thresholds_ms": [100, 250]}]},
    {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.05}},
)
ERRORS, SLOW = POLICY.guards
NOTHING = Counts()


def counts(attempts: int, errors: int = 0, **more: int) -> Counts:
    return Counts(attempts, attempts, {"errors": errors, **more})


def news(*arms: tuple[Counts, Counts], at: float = 11.0, **more: Any) -> CounterNews:
    """What gateways a, b, … counted between a first reading at 10 s of nothing and the next."""
    before = {name: Reading(name, 10.0, NOTHING, NOTHING) for name, _ in zip("abc", arms, strict=False)}
    now = {name: Reading(name, at, *both, since=10.0, **more) for name, both in zip("abc", arms, strict=False)}
    return CounterNews.between(before, now)


def seen(watch: GuardTracker, told: CounterNews, guard: Any = ERRORS, *, has_stable: bool = True) -> GuardTracker:
    return watched(watch, guard, told, policy=POLICY, has_stable=has_stable)


# --- recent ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "halves", "since"),
    [
        (104.9, (7, 70, 3, 30), 100.0),
        (105.0, (1, 10, 2, 20), 105.0),  # the older half is dropped after five seconds
        (109.9, (1, 10, 2, 20), 105.0),
        (110.0, (0, 0, 2, 20), 110.0),  # and both after ten
    ],
)
def test_recent_drops_half_of_what_it_holds_every_five_seconds(at: float, halves: tuple, since: float) -> None:
    assert Recent((7, 70, 1, 10), 100.0).after(at, 2, 20) == Recent(halves, since)


def test_recent_counts_both_halves() -> None:
    recent = Recent((1, 20, 3, 40), 100.0)
    assert (recent.bad, recent.attempts) == (4, 60)
    assert (Recent().bad, Recent().attempts, Recent().since) == (0, 0, 0.0)


# --- news ------------------------------------------------------------------------------------------------------------


def test_news_is_the_sum_over_gateways_read_when_the_last_was() -> None:
    before = {name: Reading(name, at, NOTHING, NOTHING) for name, at in (("a", 9.0), ("b", 10.0))}
    now = {
        "a": Reading("a", 11.0, counts(5), counts(50), since=0.0),
        "b": Reading("b", 12.0, counts(7), counts(70), since=0.0),
        "c": Reading("c", 11.5, counts(900), counts(900), since=0.0),  # never read before: its past is nobody's
    }
    found = CounterNews.between(before, now)
    assert (found.arms.candidate.attempts, found.arms.stable.attempts) == (12, 120)
    assert (found.read_at, found.before_at) == (12.0, {"a": 9.0, "b": 10.0, "c": 12.0})
    assert found.whole == found.settled == found.arms
    nothing = CounterNews.between(before, {})
    assert (nothing.arms.candidate, nothing.read_at) == (NOTHING, 0.0)


def test_what_began_under_other_weights_is_told_and_not_judged() -> None:
    found = news((counts(5), counts(50)), whole=(counts(8), counts(80)))
    assert found.whole.candidate.attempts == 0  # nobody knows what stood there before
    before = {"a": Reading("a", 10.0, NOTHING, NOTHING, whole=(counts(1), counts(10)))}
    now = {"a": Reading("a", 11.0, counts(5), counts(50), whole=(counts(9), counts(90)))}
    found = CounterNews.between(before, now)
    assert (found.whole.candidate.attempts, found.whole.stable.attempts) == (8, 80)
    assert (found.arms.candidate.attempts, found.arms.stable.attempts) == (5, 50)


# --- what is held against whom ---------------------------------------------------------------------------------------

TICK = (counts(50, 8, common=3), counts(200, 12, common=6))


@pytest.mark.parametrize(
    ("known", "stable_own"),
    [
        ((1, 170, 10, 700), 9.0),  # as many as stable in 70 attempts, and 30, beside 170 and 30: half of 6 are common
        ((0, 170, 0, 700), 11.1),  # 30 of 200 of them
        ((9, 170, 1, 700), 6.0),  # never more than all
        ((0, 0, 0, 0), 6.0),
    ],
)
def test_requests_that_fail_wherever_they_go_are_held_against_nobody(known: tuple, stable_own: float) -> None:
    watch = seen(GuardTracker(common=known), news(TICK))
    assert watch.harm["a"] == pytest.approx(ExcessFailures(5, 50, stable_own, 200, worst=5))
    assert watch.common == (known[0] + 3, known[1] + 50, known[2] + 6, known[3] + 200)


def test_without_a_stable_and_for_other_guards_all_bad_ones_count() -> None:
    alone = seen(GuardTracker(), news((counts(50, 8, common=3), NOTHING)), has_stable=False)
    assert alone.harm["a"] == ExcessFailures(8, 50, 0, 0, worst=8) and alone.common == (0, 50, 0, 0)
    tick = (counts(50, slow_250ms=8, common=3), counts(200, slow_250ms=2, common=6))
    slow = seen(GuardTracker(), news(tick), SLOW)
    assert slow.harm["a"] == ExcessFailures(8, 50, 2, 200, worst=8) and slow.common[0] == 0


def test_each_gateways_cost_is_its_own_and_goes_on_from_tick_to_tick() -> None:
    twice = seen(
        seen(GuardTracker(), news(TICK, (counts(10, 9), counts(10)))),
        news((NOTHING, NOTHING), (counts(10, 9), counts(10))),
    )
    assert twice.harm["b"] == ExcessFailures(18, 20, 0, 20, worst=9)
    assert twice.harm["a"].candidate == 50
    kept = GuardTracker.from_json(json.loads(json.dumps(twice.to_json())))
    assert kept.harm == twice.harm and kept.common == twice.common


# --- what is counted -------------------------------------------------------------------------------------------------


def test_slow_ones_are_counted_among_the_attempts_that_have_a_latency() -> None:
    tick = (counts(50, slow_100ms=9, slow_250ms=4, timed=20), counts(200, slow_100ms=8, slow_250ms=2, timed=100))
    slow, errors = seen(GuardTracker(), news(tick), SLOW), seen(GuardTracker(), news(tick))
    assert (slow.evidence.candidate, slow.evidence.stable, slow.recent.attempts) == (20, 100, 20)
    assert (errors.evidence.candidate, errors.evidence.stable, errors.recent.attempts) == (50, 200, 50)


def test_a_counter_that_only_one_arm_has_is_zero_in_the_other() -> None:
    only = Counts(50, 50, {"slow_100ms": 5, "slow_250ms": 3})
    watch = seen(GuardTracker(), news((only, Counts(200, 200))), SLOW)
    assert set(watch.evidence.points) == {"slow_100ms", "slow_250ms"}
    assert (watch.evidence.point("slow_100ms").bad_candidate, watch.evidence.point("slow_100ms").bad_stable) == (5, 0)
    other = seen(GuardTracker(), news((Counts(50, 50), only)), SLOW)
    assert (other.evidence.point("slow_100ms").bad_candidate, other.evidence.point("slow_100ms").bad_stable) == (0, 5)
    assert other.first_bad_at is None and other.recent.bad == 0 and other.first == (0, 50)


def test_a_tick_without_counters_changes_nothing() -> None:
    assert seen(GuardTracker(first_bad_at=3.0), news((Counts(50, 50), Counts(200, 200)))) == GuardTracker(
        first_bad_at=3.0
    )


def test_without_a_stable_only_the_guards_own_edge_is_watched() -> None:
    tick = (counts(50, slow_100ms=9, slow_250ms=4), NOTHING)
    assert set(seen(GuardTracker(), news(tick), SLOW, has_stable=False).evidence.points) == {"slow_250ms"}


def test_the_first_bad_attempt_is_dated_before_any_reading_that_could_show_it() -> None:
    bad, good = (counts(50, 1), counts(200)), (counts(50), counts(200))
    assert seen(GuardTracker(), news(good)).first_bad_at is None
    before = {name: Reading(name, at, NOTHING, NOTHING) for name, at in (("a", 8.0), ("b", 9.0), ("c", 9.5))}
    now = {name: Reading(name, 11.0, *both) for name, both in zip("abc", (good, bad, bad), strict=True)}
    watch = seen(GuardTracker(), CounterNews.between(before, now))
    assert (watch.first_bad_at, watch.seen_at) == (9.0, 11.0)  # the earliest of the gateways that had one
    assert seen(watch, news(bad, at=20.0)).first_bad_at == 9.0
    assert seen(watch, news((counts(0), counts(200)), at=20.0)).seen_at == 11.0


def test_a_servers_first_attempts_are_whole_readings_until_there_are_two_hundred() -> None:
    watch = seen(GuardTracker(), news((counts(199, 2), counts(10))))
    assert watch.first == (2, 199)
    watch = seen(watch, news((counts(10, 3), counts(10))))
    assert watch.first == (5, 209)
    assert seen(watch, news((counts(10, 3), counts(10)))).first == (5, 209)
    exactly = seen(GuardTracker(), news((counts(200, 2), counts(10))))
    assert seen(exactly, news((counts(10, 3), counts(10)))).first == (2, 200)


def test_while_answers_are_on_their_way_counts_add_no_evidence_and_no_scatter() -> None:
    early = news((counts(50, 40), counts(200)), answer_s=10.0)  # a second after the weight
    watch = seen(GuardTracker(), early)
    assert (watch.evidence.candidate, watch.evidence.ticks, watch.dispersion.names, watch.harm) == (0, 0, (), {})
    assert watch.recent.bad == 40 and watch.first_bad_at == 10.0
    late = seen(GuardTracker(), news((counts(50, 40), counts(200)), answer_s=10.0, at=25.0))
    assert (late.evidence.candidate, late.evidence.ticks, late.dispersion.names) == (50, 1, ("errors",))


def test_a_tracker_of_an_older_version_begins_with_nothing() -> None:
    old = GuardTracker.from_json({"evidence": GuardTracker().evidence.to_json()})
    assert old == GuardTracker()


# --- forced requests --------------------------------------------------------------------------------------------------


def test_a_reading_in_which_a_release_was_forced_gives_no_evidence_of_time() -> None:
    readings = [(0, 0), (1, 0), (1, 0), (1, 1), (1, 1), (1, 1)]  # begins, runs on, ends
    now = {}
    slow, errors = GuardTracker(), GuardTracker()
    used = []
    for number, (begun, ended) in enumerate(readings, 1):
        more = {"forced": begun, "forced_ended": ended} if begun else {}
        arms = [counts(50 * number, slow_100ms=s * number, slow_250ms=s * number, **more) for s in (20, 0)]
        reading = {"a": Reading("a", 10.0 + number, *arms, since=10.0)}
        told = CounterNews.between(now or {"a": Reading("a", 10.0, NOTHING, NOTHING)}, reading)
        ticks = slow.evidence.ticks
        slow, errors, now = seen(slow, told, SLOW), seen(errors, told), reading
        slow = GuardTracker.from_json(json.loads(json.dumps(slow.to_json())))
        used.append(slow.evidence.ticks > ticks)
    assert used == [
        True,
        False,
        False,
        False,
        False,
        True,
    ]  # and not the one behind it, when users who waited are answered
    assert (slow.forced, slow.was_forced, errors.forced, errors.evidence.ticks) == (4, False, 0, 6)
    assert slow.evidence.candidate == 100 and errors.evidence.candidate == 300


def test_a_gateway_whose_counts_began_anew_forces_nothing_for_ever() -> None:
    before = {"a": Reading("one", 10.0, counts(50, forced=3, forced_ended=2), counts(50, forced=3, forced_ended=2))}
    for begun, expected in ((0, False), (1, True)):
        more = {"forced": begun, "forced_ended": 0} if begun else {}
        now = {"a": Reading("two", 11.0, counts(9, **more), counts(9, **more), since=10.5)}
        assert CounterNews.between(before, now).parts["a"].is_forced is expected
