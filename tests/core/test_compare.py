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
    is_not_worse,
    is_worse,
    pair,
    share_of,
    tango_z,
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
    assert is_worse(Paired(200, 150, 23, 5), 0.0)
    assert not is_worse(Paired(200, 190, 3, 2), 0.0)


def test_agreement_refuses_lists_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="shorter"):
        agreement([1, 2], [1])
    assert agreement([1, 2, 3], [1, 2, 4]).count == 2


def test_columns_are_cut_by_slice_in_order() -> None:
    assert by_slice(["b", "a", "b"], [1, 2, 3], "xyz") == {"a": [[2], ["y"]], "b": [[1, 3], ["x", "z"]]}
