"""Packed hours and quantiles of the kept series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.core.watch.pace import left_s
from serving.traffic.core.buckets import EDGES_US
from serving.traffic.core.packing import MINUTES, packed, summed, unpacked
from serving.traffic.core.quantiles import quantiles

COUNT = st.integers(0, 2**31 - 1)
ROWS = st.integers(0, 12).flatmap(
    lambda width: st.tuples(
        st.just(width),
        st.dictionaries(
            st.integers(0, MINUTES - 1),
            st.tuples(
                st.integers(0, 200_000).map(lambda ms: ms / 1000), st.lists(COUNT, min_size=width, max_size=width)
            ),
        ),
    )
)


@given(ROWS)
def test_what_was_packed_comes_back(rows: tuple[int, dict[int, tuple[float, list[int]]]]) -> None:
    width, minutes = rows
    block = summed(((minute, *row) for minute, row in minutes.items()), width)
    again = unpacked(packed(block))
    assert again.shape == (1 + width, MINUTES)
    for minute in range(MINUTES):
        known_s, counts = minutes.get(minute, (0.0, [0] * width))
        assert again[:, minute].tolist() == [round(known_s * 1000), *counts]


def test_rows_of_one_minute_add_up() -> None:
    block = summed([(3, 20.0, [1, 2]), (3, 30.0, [4, 0])], 2)
    assert block[:, 3].tolist() == [50_000, 5, 2]
    assert block.sum() == 50_007


def test_a_count_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        packed(summed([(0, 1.0, [2**31])], 1))


@given(st.lists(st.floats(0.6, 500.0), min_size=200, max_size=400), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_lies_in_the_class_of_the_exact_one(milliseconds: list[float], share: float) -> None:
    edges = np.array(EDGES_US)
    places = np.searchsorted(edges, np.array(milliseconds) * 1000, side="right")
    classes = np.bincount(places, minlength=len(edges) + 1)[None, :]
    ((value, low, high),) = quantiles(classes, EDGES_US, share)
    exact = np.sort(np.array(milliseconds))[int(np.ceil(share * len(milliseconds))) - 1] * 1000
    assert low <= value <= high
    assert low <= exact <= high


def test_nothing_counted_and_above_the_last_edge_are_unknown() -> None:
    found = quantiles(np.array([[0, 0, 0], [0, 0, 5], [4, 0, 0]]), (1000, 2000), 0.5)
    assert np.isnan(found[:2]).all()
    assert found[2].tolist() == [500.0, 0.0, 1000.0]


@pytest.mark.parametrize(("second", "waits"), [(0, 10), (0.2, 9.8), (4, 6), (6, 14), (9.99, 10.01)])
def test_readings_begin_with_full_ten_seconds(second: float, waits: float) -> None:
    assert left_s(1_800_000_000 + second, 10.0) == pytest.approx(waits)
