"""Windows of latency: cumulative counts become classes, differences survive restarts, a month stays some hundred rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollouts.core.latency import CLASSES, EDGES_US, NOTHING, OpenWindow, Seen, classes_of, since, window_s
from serving.traffic.core.buckets import EDGES_US as COUNTED_US


def test_every_edge_is_one_that_gateways_count_by() -> None:
    assert set(EDGES_US) <= set(COUNTED_US) and list(EDGES_US) == sorted(EDGES_US)


@given(st.lists(st.integers(0, 700_000_000), max_size=60))
def test_each_attempt_is_in_one_class(latencies: list[int]) -> None:
    under = {edge: sum(one < edge for one in latencies) for edge in COUNTED_US}
    classes = classes_of(under, len(latencies))
    assert len(classes) == CLASSES and sum(classes) == len(latencies)
    edges = [*EDGES_US, 10**12]
    assert classes == tuple(
        sum(low <= one < high for one in latencies) for low, high in zip([0, *edges], edges, strict=False)
    )


def test_a_page_without_buckets_is_no_failure() -> None:
    assert classes_of({}, 0) == NOTHING
    assert sum(classes_of({}, 7)) == 7


def counted(n: int, of_class: int = 3) -> tuple[int, ...]:
    return tuple(n if index == of_class else 0 for index in range(CLASSES))


def test_a_window_holds_what_came_in_it_from_every_gateway() -> None:
    window = OpenWindow(0.0, 0.0)
    window = window.after("a", Seen("1", counted(100), counted(900)), 1.0)
    assert window.is_empty  # its past is not this window's
    window = window.after("a", Seen("1", counted(103), counted(907)), 2.0)
    window = window.after("b", Seen("1", counted(50), NOTHING), 2.0).after("b", Seen("1", counted(55), NOTHING), 3.0)
    assert (sum(window.candidate), sum(window.stable), window.at) == (8, 7, 3.0)
    then = window.begun_anew().after("a", Seen("1", counted(104), counted(907)), 4.0)
    assert (then.from_at, sum(then.candidate), sum(then.stable)) == (3.0, 1, 0)


def test_a_gateway_that_began_anew_counts_from_nothing_and_one_that_fell_not_at_all() -> None:
    window = OpenWindow(0.0, 0.0).after("a", Seen("1", counted(100), counted(900)), 1.0)
    assert sum(window.after("a", Seen("2", counted(4), counted(6)), 2.0).candidate) == 4
    assert sum(window.after("a", Seen("1", counted(4), counted(906)), 2.0).candidate) == 0
    assert since(counted(5), counted(3)) == NOTHING


def test_a_month_is_some_hundred_windows() -> None:
    age, windows = 0.0, 0
    while age < 30 * 86_400:
        age += window_s(age)
        windows += 1
    assert windows < 700
    assert window_s(0) == window_s(299) == 5
