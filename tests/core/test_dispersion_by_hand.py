"""The measured scatter against values computed by hand: simulations use the same constants, and would move with them."""

from __future__ import annotations

import math

import pytest

from rollouts.core.dispersion import Dispersion, Series, factor, widths_s

KEPT = 899 / 900  # of what was counted, after one more second of 900


# --- the factor -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("excess", "bad", "blocks", "most", "by_chance"),
    [
        (1.1, 35.0, 12.0, math.inf, 1 + 0.1),  # two standard deviations, sqrt(3 / 12) each, and 3.5 pairs among 35
        (3.5641, 35.0, 1.0, math.inf, math.sqrt(12) + 0.1),
        (3.5641, 35.0, 0.2, math.inf, math.sqrt(12) + 0.1),  # never more than for one block
        (0.6, 35.0, 12.0, 0.5, 0.5 + 0.1),
        (8.0, 0.5, 12.0, math.inf, 1 + 7),
    ],
)
def test_what_exceeds_chance_counts_one_and_a_half_times(excess, bad, blocks, most, by_chance) -> None:
    assert excess == pytest.approx(by_chance, abs=1e-4)
    assert factor(bad * (1 + excess - 0.01), bad, blocks, most) == 1.0
    assert factor(bad * (1 + excess + 0.01), bad, blocks, most) == pytest.approx(1 + 1.5 * (excess + 0.01))


def test_what_is_exactly_as_chance_would_is_chance_and_half_a_bad_attempt_tells_nothing_less() -> None:
    assert factor(10.5, 3.5, 12.0) == 1.0  # 1 for the blocks and 1 for the pairs
    assert factor(5.0, 0.49, 12.0) == 1.0 < factor(5.0, 0.5, 12.0)


# --- blocks of seconds ------------------------------------------------------------------------------------------------


def test_neighbouring_seconds_are_compared_less_what_their_loads_explain() -> None:
    series = Series().after(10.0, 1.0, 100, [2]).after(10.5, 1.0, 50, [1])
    assert series == Series(10, 0.0, 0.0, -1, 150, ((0.0, 0.0, 0, 3, 0.0, 0.0),))
    series = series.after(11.2, 1.0, 100, [5])
    assert series == Series(11, 0.0, 0.0, 150, 100, ((0.0, 0.0, 3, 5, 0.0, 0.0),))
    # 3 of 150 before, 5 of 100 now: at 2 % the load explains one fewer. (5 - 3 + 1)^2 / 2
    series = series.after(12.0, 1.0, 200, [0])
    assert series == Series(12, 1.0, 100.0, 100, 200, ((4.5, 5.0, 5, 0, 0.0, 0.0),))
    # 10 of 200 are 5 %: a hundred attempts more explain 5 more, but there were 5 fewer. (0 - 5 - 5)^2 / 2
    series = series.after(13.0, 1.0, 10, [0])
    (squares, bad, *rest), *_ = series.counters
    assert (squares, bad) == pytest.approx((4.5 * KEPT + 50, 5 * KEPT)) and rest == [0, 0, 0.0, 0.0]
    assert (series.blocks, series.attempts) == pytest.approx((KEPT + 1, 100 * KEPT + 200))


def one(
    bad_before: int, now: int, *, bad: float = 0.0, blocks: float = 0.0, seen: float = 0.0, load: int = 100
) -> Series:
    return Series(10, blocks, seen, 100, load, ((0.0, bad, bad_before, now, 0.0, 0.0),))


def test_one_second_counts_as_a_clump_of_fifty_or_250_average_seconds_at_most() -> None:
    def squares(series: Series) -> float:
        return series.after(11.0, 1.0, 0, [0]).counters[0][0]

    assert squares(one(0, 49)) == 49**2 / 2
    assert squares(one(0, 51)) == 50**2 / 2
    assert squares(one(12, 212)) == 250 * 12
    assert squares(one(12, 212, bad=12.0, blocks=1.0)) == 250 * 12
    assert squares(one(0, 10, load=0)) == 50.0  # nothing seen before: no load explains anything


def test_the_dispersion_over_seconds_is_known_after_three() -> None:
    counters = ((100.0, 10.0, 0, 0, 0.0, 0.0),)
    assert Series(10, 2.99, 300.0, 100, 100, counters).phi(0) == 1.0
    assert Series(10, 3.0, 300.0, 100, 100, counters).phi(0) == pytest.approx(1 + 1.5 * 9)


def test_the_open_second_counts_as_if_it_ended_now() -> None:
    """10 and (7 - 1)^2 / 2 over 4 and 7: the excess of 17 / 11 shows, because chance gets 1 and 3.5 pairs of 11 at most."""
    series = Series(10, 4.0, 400.0, 100, 100, ((10.0, 4.0, 1, 7, 0.0, 0.0),))
    assert series.phi_now(0) == pytest.approx(1 + 1.5 * 17 / 11)
    assert Series(10, 4.0, 400.0, 100, 100, ((10.0, 4.0, 1, 6, 0.0, 0.0),)).phi_now(0) == 1.0  # 1.25 is less


def test_a_callers_burst_may_count_for_as_much_more_as_it_is_larger_than_usual() -> None:
    assert one(0, 200, blocks=4.0, seen=400.0, load=300).phi_now(0) == pytest.approx(1 + 1.5 * (9 * 1250 / 200 - 1))
    assert one(0, 200, blocks=3.0, seen=300.0, load=300).phi_now(0) == pytest.approx(1 + 1.5 * (9 * 1250 / 200 - 1))
    usual = pytest.approx(1 + 1.5 * (1250 / 200 - 1))
    assert one(0, 200, blocks=2.9, seen=290.0, load=300).phi_now(0) == usual  # nobody knows what is usual
    assert one(0, 200, blocks=4.0, seen=400.0, load=200).phi_now(0) > one(0, 200, blocks=4.0, seen=400.0).phi_now(0)
    assert one(0, 200, blocks=4.0, seen=400.0, load=50).phi_now(0) == usual  # less than usual is no discount


# --- longer blocks ----------------------------------------------------------------------------------------------------


def test_of_longer_blocks_the_two_largest_differences_are_left_out() -> None:
    series, kept = Series(before=0), 1 - 5 / 900
    for block, bad in enumerate([0, 4, 4, 14, 14, 16, 16]):  # half squares 8, 0, 50, 0, 2
        series = series.after(5.0 * block, 5.0, 100, [bad])
    squares, bad, before, now, top, second = series.counters[0]
    assert (before, now) == (16, 16)
    assert (top, second) == pytest.approx((50 * kept**2, 8 * kept**4))
    assert squares == pytest.approx(2.0)
    assert series.blocks == pytest.approx(sum(kept**age for age in range(6)))


def test_longer_blocks_tell_after_six_without_the_two_largest() -> None:
    counters = ((100.0, 20.0, 0, 0, 0.0, 0.0),)
    assert Series(10, 5.99, 800.0, 100, 100, counters).phi_long(0) == 1.0
    assert Series(10, 6.0, 800.0, 100, 100, counters).phi_long(0) == pytest.approx(1 + 1.5 * (100 / (20 * 4 / 6) - 1))
    assert Series(10, 8.0, 800.0, 100, 100, counters).phi_long(0) == pytest.approx(1 + 1.5 * (100 / 15 - 1))


def test_blocks_are_one_second_and_one_four_and_twelve_windows_long() -> None:
    assert widths_s(5.0) == (1.0, 5.0, 20.0, 60.0)
    assert widths_s(0.5) == (1.0, 1.0, 4.0, 12.0)


# --- history ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("squares", "bad", "blocks", "kept_squares", "kept_bad", "kept_blocks"),
    [
        (1200.0, 60.0, 100.0, 240.0, 30.0, 50.0),  # at most 30 bad ones, that scatter by 8 at most
        (180.0, 60.0, 100.0, 90.0, 30.0, 50.0),
        (60.0, 20.0, 100.0, 60.0, 20.0, 100.0),
        (0.0, 0.0, 100.0, 0.0, 0.0, 100.0),
        (600.0, 600.0, 10.0, 30.0, 30.0, 6.0),  # six blocks are kept, so that longer ones still tell
        (60.0, 60.0, 4.0, 30.0, 30.0, 4.0),
    ],
)
def test_what_was_counted_before_a_rollout_weighs_little(
    squares, bad, blocks, kept_squares, kept_bad, kept_blocks
) -> None:
    series = Series(10, blocks, 1000.0, 50, 60, ((squares, bad, 1, 2, 3.0, 4.0),)).as_history()
    share = kept_bad / bad if bad else 1.0
    assert series.counters[0] == pytest.approx((kept_squares, kept_bad, 0, 0, 0.0, 0.0))
    assert series == Series(-1, pytest.approx(kept_blocks), pytest.approx(share * 1000), -1, 0, series.counters)


def test_a_rollout_begins_with_stables_history_and_nothing_of_the_candidate() -> None:
    kept = Dispersion()
    for second in range(30):
        kept = kept.after(float(second), {"errors": (5 * (second % 2), 9 * (second % 2))}, 10, 90, window_s=1.0)
    begun = kept.as_history()
    assert begun.stable == tuple(series.as_history() for series in kept.stable)
    assert begun.candidate == Series(before=0, counters=((0.0, 0.0, 0, 0, 0.0, 0.0),)) and begun.names == ("errors",)
    # Stable's first second of the rollout is compared with none of the history's.
    after = begun.stable[0].after(100.0, 1.0, 90, [7])
    assert after.counters[0][2:4] == (0, 7) and after.before == -1


# --- arms and JSON ----------------------------------------------------------------------------------------------------


def test_the_largest_over_all_lengths_counts_for_both_arms() -> None:
    calm = Series(10, 20.0, 900.0, 90, 90, ((10.0, 20.0, 1, 1, 0.0, 0.0),))
    wild = Series(10, 20.0, 900.0, 90, 90, ((200.0, 20.0, 1, 1, 0.0, 0.0),))
    seconds, longest = wild.phi(0), wild.phi_long(0)
    assert 1 < seconds < longest
    own = Dispersion(("errors",), wild, (calm,) * 4)
    assert (own.phi("errors"), own.phi_stable("errors")) == (wild.phi_now(0), 1.0)
    usual = Dispersion(("errors",), calm, (wild, calm, calm, calm))
    assert (usual.phi("errors"), usual.phi_stable("errors")) == (seconds, seconds)
    long = Dispersion(("errors",), calm, (wild, calm, calm, wild))
    assert (long.phi("errors"), long.phi_stable("errors")) == (longest, longest)
    assert (long.phi("slow_250ms"), long.phi_stable("slow_250ms")) == (1.0, 1.0)


def test_json_keeps_five_digits_and_whole_numbers_as_such() -> None:
    series = Series(10, 3.0, 1234.5678, 7, 8, ((0.123456, 2.0, 3, 4, 5.5, 6.0), (1.0, 2.0, 3, 4, 5.0, 6.0)))
    told = series.to_json()
    assert told == [10, 3, 1234.6, 7, 8, 0.12346, 2, 3, 4, 5.5, 6, 1, 2, 3, 4, 5, 6]
    assert all(isinstance(number, int) for number in (told[1], told[6], told[10]))
    assert Series.from_json(told) == series._replace(
        attempts=1234.6, counters=((0.12346, *series.counters[0][1:]), series.counters[1])
    )


def test_a_state_of_another_shape_begins_afresh() -> None:
    known = Dispersion().after(10.0, {"errors": (1, 2)}, 10, 90, window_s=5.0).to_json()
    assert Dispersion.from_json(known).names == ("errors",)
    assert Dispersion.from_json(known[:-1]) == Dispersion.from_json([0, *known[1:]]) == Dispersion()
