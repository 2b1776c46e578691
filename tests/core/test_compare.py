"""Paired comparison: exact intervals, Tango's test, margins, slices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from validators.core.compare import (
    Paired,
    agreement,
    by_slice,
    certifiable_margin,
    holm,
    is_not_worse,
    pair,
    share_of,
    tango_z,
    worse_p,
)


@pytest.mark.parametrize(
    ("misses", "limit", "n"),
    [
        (0, 0.01, 299),
        (1, 0.01, 473),
        (3, 0.01, 773),
        (5, 0.01, 1049),
        (0, 0.005, 598),
        (1, 0.005, 947),
        (3, 0.005, 1549),
        (5, 0.005, 2100),
    ],
)
def test_agreement_bounds_have_the_known_sample_sizes(misses: int, limit: float, n: int) -> None:
    """One-sided 95 % is the upper end of the two-sided 90 % interval."""
    assert share_of(misses, n, confidence=0.9).high < limit
    assert share_of(misses, n - 1, confidence=0.9).high >= limit


@given(n=st.integers(1, 2000), data=st.data())
def test_an_interval_holds_what_was_measured(n: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, n))
    share = share_of(count, n)
    assert 0 <= share.low <= share.value <= share.high <= 1


def test_the_share_of_nothing_is_not_a_number() -> None:
    nothing = share_of(0, 0)
    assert math.isnan(nothing.value)
    assert (nothing.low, nothing.high) == (0.0, 1.0)


@given(n=st.integers(1, 500), b=st.integers(0, 100), c=st.integers(0, 100))
def test_without_a_margin_tango_is_mcnemar(n: int, b: int, c: int) -> None:
    paired = Paired(n=n + b + c, both_right=n, lost=b, won=c)
    expected = (c - b) / math.sqrt(b + c) if b + c else 0.0
    assert tango_z(paired, 0.0) == pytest.approx(expected, abs=1e-9)


@given(
    n=st.integers(50, 2000),
    b=st.integers(0, 40),
    c=st.integers(0, 40),
    low=st.floats(0.001, 0.2),
    more=st.floats(0.001, 0.5),
)
def test_a_wider_margin_is_never_harder_to_meet(n: int, b: int, c: int, low: float, more: float) -> None:
    paired = Paired(n=n + b + c, both_right=n, lost=b, won=c)
    assert tango_z(paired, low + more) >= tango_z(paired, low) - 1e-9


def test_tango_keeps_its_level_at_the_boundary_and_has_the_measured_power() -> None:
    """n 1000, 2 % discordance, margin 1 %: level .047, power .69 at equality."""
    rng = np.random.default_rng(3)

    def passes(p_lost: float, p_won: float) -> float:
        draws = rng.multinomial(1000, [p_lost, p_won, 1 - p_lost - p_won], size=2000)
        return float(np.mean([is_not_worse(Paired(1000, int(s), int(b), int(c)), 0.01) for b, c, s in draws]))

    assert passes(0.015, 0.005) == pytest.approx(0.047, abs=0.02)
    assert passes(0.01, 0.01) == pytest.approx(0.69, abs=0.05)


def test_a_small_set_cannot_certify_a_small_margin() -> None:
    small = certifiable_margin(Paired(200, 160, 2, 2))
    large = certifiable_margin(Paired(4000, 3200, 40, 40))
    assert small > 0.01
    assert large < 0.01
    assert is_not_worse(Paired(200, 160, 2, 2), small + 1e-3)
    assert not is_not_worse(Paired(200, 160, 2, 2), small - 1e-3)
    assert 0 < certifiable_margin(Paired(800, 650, 0, 0)) < 0.01


def test_pairs_are_counted_by_who_was_right() -> None:
    labels = [0, 1, 1, 0, 1]
    paired = pair([0, 1, 0, 0, 1], [0, 0, 1, 1, 1], labels)
    assert (paired.both_right, paired.lost, paired.won) == (2, 1, 2)
    assert paired.drop == pytest.approx(-0.2)


def test_a_large_loss_is_shown_to_be_worse() -> None:
    assert worse_p(Paired(200, 150, 23, 5), 0.0) < 0.001
    assert worse_p(Paired(200, 190, 3, 2), 0.0) > 0.3
    assert worse_p(Paired(200, 150, 5, 23), 0.0) > 0.999


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        ([], []),
        ([0.05], [True]),
        ([0.0501], [False]),
        ([0.03, 0.01, 0.04], [False, True, False]),  # .01 <= .05/3, .03 > .05/2: it ends there, though .04 <= .05
        ([0.02, 0.016, 0.05], [True, True, True]),
        ([0.017, 0.017, 0.017], [False, False, False]),
    ],
)
def test_of_several_hypotheses_the_surest_meets_the_hardest_limit(p_values: list[float], rejected: list[bool]) -> None:
    assert holm(p_values, alpha=0.05) == rejected


def test_of_twenty_equal_slices_one_is_said_to_be_worse_no_more_often_than_of_one() -> None:
    """60 items each, of which a fifth changes either way. Each for itself, some slice is worse in half of all runs."""
    rng = np.random.default_rng(11)
    draws = rng.multinomial(60, [0.1, 0.1, 0.8], size=(500, 20))
    p_values = [[worse_p(Paired(60, int(same), int(lost), int(won)), 0.0) for lost, won, same in run] for run in draws]
    assert np.mean([any(p < 0.05 for p in run) for run in p_values]) > 0.5
    assert np.mean([any(holm(run, alpha=0.05)) for run in p_values]) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 500)


def test_agreement_refuses_lists_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="shorter"):
        agreement([1, 2], [1])
    assert agreement([1, 2, 3], [1, 2, 4]).count == 2


def test_columns_are_cut_by_slice_in_order() -> None:
    assert by_slice(["b", "a", "b"], [1, 2, 3], "xyz") == {"a": [[2], ["y"]], "b": [[1, 3], ["x", "z"]]}


def likeliest_lost(paired: Paired, difference: float) -> float:
    """The share of lost answers under which these counts are likeliest, where won minus lost is `difference`; by search."""
    lost, won, same = paired.lost, paired.won, paired.n - paired.lost - paired.won

    def log_likelihood(share: float) -> float:
        parts = ((lost, share), (won, share + difference), (same, 1 - 2 * share - difference))
        return sum(count * math.log(max(p, 1e-300)) for count, p in parts if count)

    low, high = max(0.0, -difference), (1 - difference) / 2
    for _ in range(200):
        third = (high - low) / 3
        if log_likelihood(low + third) < log_likelihood(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


@pytest.mark.parametrize("margin", [0.0, 0.01, 0.05, 0.3])
@pytest.mark.parametrize(("n", "lost", "won"), [(40, 3, 1), (200, 0, 9), (200, 12, 5), (800, 31, 40), (50, 0, 0)])
def test_tango_is_the_difference_over_its_deviation_under_the_likeliest_shares(
    n: int, lost: int, won: int, margin: float
) -> None:
    paired = Paired(n, n - lost - won, lost, won)
    p_lost = likeliest_lost(paired, -margin)
    p_won = p_lost - margin
    deviation = math.sqrt(max(0.0, n * (p_lost + p_won - (p_won - p_lost) ** 2)))
    expected = (won - lost + n * margin) / deviation if deviation > 1e-9 else 0.0
    assert tango_z(paired, margin) == pytest.approx(expected, abs=1e-4)


def test_tango_without_evidence_is_nothing_and_with_a_margin_of_everything_is_sure() -> None:
    assert tango_z(Paired(0, 0, 0, 0), 0.05) == 0
    assert tango_z(Paired(1, 1, 0, 0), 0.5) == pytest.approx(1.0)
    assert tango_z(Paired(10, 10, 0, 0), 1.0) == math.inf
    assert tango_z(Paired(10, 10, 0, 0), -1.0) == -math.inf


@pytest.mark.parametrize(("n", "margin"), [(20, 0.1192), (100, 0.0263), (800, 0.0034), (27_000, 0.0001)])
def test_equal_answers_rule_out_a_drop_of_z_squared_over_n(n: int, margin: float) -> None:
    """Where nothing changed, z = sqrt(n m / (1 - m)), which exceeds 1.645 from m = 2.706 / (n + 2.706) on."""
    assert margin == pytest.approx(2.7055 / (n + 2.7055), abs=6e-5)
    assert certifiable_margin(Paired(n, n, 0, 0)) == margin


def test_a_margin_is_1_where_nothing_can_be_ruled_out_and_0_where_no_drop_is_left() -> None:
    assert certifiable_margin(Paired(0, 0, 0, 0)) == 1
    assert certifiable_margin(Paired(3, 0, 3, 0)) == 1
    assert certifiable_margin(Paired(400, 200, 0, 200)) == 0
    assert certifiable_margin(Paired(9, 0, 0, 9)) == 0


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_a_margin_is_the_edge_of_what_is_shown_at_that_confidence(confidence: float) -> None:
    paired = Paired(500, 400, 12, 7)
    margin = certifiable_margin(paired, confidence=confidence)
    assert is_not_worse(paired, margin + 1e-4, confidence=confidence)
    assert not is_not_worse(paired, margin - 1e-4, confidence=confidence)


def test_worse_and_not_worse_are_shown_at_95_percent() -> None:
    """McNemar's statistic of 100 changed answers is their difference over 10; z(0.95) is 1.645."""
    for won, is_shown in ((59, True), (58, False)):
        better, worse = Paired(900, 800, 100 - won, won), Paired(900, 800, won, 100 - won)
        assert is_not_worse(better, 0.0) is (worse_p(worse, 0.0) < 0.05) is is_shown


def test_a_share_has_an_interval_of_95_percent_by_itself() -> None:
    """The limits of Clopper and Pearson are where 2.5 % of the binomial's mass lie beyond the count."""

    def at_most(count: int, n: int, p: float) -> float:
        return sum(math.comb(n, x) * p**x * (1 - p) ** (n - x) for x in range(count + 1))

    share = share_of(3, 20)
    assert at_most(3, 20, share.high) == pytest.approx(0.025, abs=1e-9)
    assert 1 - at_most(2, 20, share.low) == pytest.approx(0.025, abs=1e-9)
    assert share.value == 0.15 and (share.count, share.n) == (3, 20)
    assert agreement([1] * 20, [1] * 3 + [0] * 17) == share
    narrow = share_of(3, 20, confidence=0.5)
    assert at_most(3, 20, narrow.high) == pytest.approx(0.25, abs=1e-9)


def test_nobody_loses_where_nothing_is_paired() -> None:
    assert Paired(0, 0, 0, 0).drop == 0
    assert Paired(1, 0, 1, 0).drop == 1
    assert Paired(8, 4, 3, 1).drop == 0.25
