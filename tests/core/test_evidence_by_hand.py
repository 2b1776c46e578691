"""Evidence against values computed by hand, and the windows that hardly say anything."""

from __future__ import annotations

import math

import pytest

from rollouts.core.evidence import (
    GRID,
    ZERO,
    Scatter,
    Side,
    Tolerance,
    Window,
    added,
    fixed_sums,
    increments,
    onset_prior,
    onset_step,
)
from rollouts.core.step_evidence import Evidence, Part

PLAIN, LENIENT = Tolerance(), Tolerance(1.2, 0.001)


def after(evidence: Evidence, *parts: Part, **more) -> Evidence:
    return evidence.after(parts, worse=PLAIN, fine=LENIENT, name="errors", **more)


def part(bad: int, candidate: int, bad_stable: int, stable: int) -> Part:
    return Part(candidate, stable, {"errors": (bad, bad_stable)})


def test_nine_tenths_of_the_prior_are_there_at_once_and_half_of_the_rest_in_the_first_half_hour() -> None:
    assert [math.exp(one) for one in onset_prior(1)] == pytest.approx([0.9, 0.1])
    assert math.exp(onset_prior(1801)[1]) == pytest.approx(0.05)
    assert math.exp(onset_prior(2)[0]) == pytest.approx(0.1 / 1801)


@pytest.mark.parametrize("before", [-20.0, -1.0, 3.0])
def test_a_tick_adds_its_own_onset_to_what_was_known(before: float) -> None:
    more = tuple(0.1 * i for i in range(len(GRID)))
    begin = math.exp(onset_prior(5)[0])
    expected = [math.log(math.exp(before) + begin) + one for one in more]
    assert onset_step((before,) * len(GRID), more, 5) == pytest.approx(expected)


def test_a_window_without_one_arm_adds_exactly_nothing() -> None:
    for window in (Window(3, 100, 0, 0), Window(0, 0, 5, 100), Window(0, 0, 0, 0)):
        assert increments(window, LENIENT, Side.WORSE) == ZERO


def test_a_share_over_all_is_tolerated_as_all() -> None:
    assert Tolerance(3.0, 0.2).of(0.1) == pytest.approx(0.5) and Tolerance(3.0, 0.2).of(0.5) == 1.0


def test_without_scatter_counts_are_taken_as_they_are() -> None:
    one, other = Window(3, 100, 1, 900), Window(2, 50, 4, 80)
    each = [increments(window, PLAIN, Side.WORSE) for window in (one, other)]
    assert Scatter().of([one], PLAIN) == each[0]
    assert Scatter().of([one, other], PLAIN) == pytest.approx(added(each))
    known = after(Evidence(), part(3, 100, 1, 900))
    assert known == after(Evidence(), part(3, 100, 1, 900), scatter={"errors": Scatter(1.0, 1.0, 1.0, 1.0)})


def test_each_arm_is_divided_by_its_own_scatter() -> None:
    found = Scatter(2.0, 4.0, 1.0, 1.0).of([Window(6, 100, 8, 400)], PLAIN)
    assert found == pytest.approx(increments(Window(3, 50, 2, 100), PLAIN, Side.WORSE))


def test_a_single_attempt_of_each_arm_is_a_window() -> None:
    assert after(Evidence(), part(1, 1, 0, 10)).ticks == after(Evidence(), part(0, 10, 1, 1)).ticks == 1
    assert after(Evidence(), part(0, 0, 1, 10)).ticks == after(Evidence(), part(1, 10, 0, 0)).ticks == 0


def test_without_a_stable_any_attempt_is_a_window_and_the_larger_scatter_tempers_it() -> None:
    assert after(Evidence(), part(1, 1, 0, 0), over=0.02).ticks == 1
    assert after(Evidence(), part(0, 0, 0, 0), over=0.02).ticks == 0
    begin = onset_prior(1)[0]

    def more(scatter: Scatter) -> list[float]:
        kept = after(Evidence(), part(8, 20, 0, 0), over=0.02, scatter={"errors": scatter})
        return [one - begin for one in kept.point("errors").worse]

    by_two, by_five = (fixed_sums(8 / phi, 20 / phi, 0.02, Side.WORSE) for phi in (2, 5))
    least = [min(pair) for pair in zip(by_two, by_five, strict=True)]
    assert more(Scatter(2.0, 1.0, 5.0, 1.0)) == pytest.approx(least) != pytest.approx(by_two)
    assert more(Scatter(2.0, 1.0, 1.0, 1.0)) == pytest.approx(by_two)  # what was known before still holds


def test_being_better_is_shown_by_the_guards_own_counter_only() -> None:
    two = Part(100, 900, {"slow_50ms": (40, 10), "errors": (0, 30)})
    kept = after(Evidence(), two)
    assert kept.better == pytest.approx(increments(Window(0, 100, 30, 900), Tolerance(), Side.FINE))
    assert after(kept, part(0, 0, 5, 100)).better == kept.better
    assert after(kept, two).better == pytest.approx([2 * one for one in kept.better])
