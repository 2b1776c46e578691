"""The last hour of traffic: whole minutes, gaps where nobody counted, and never more than an hour."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from rollouts.core.latency import EDGES_US, NOTHING, classes_of
from rollouts.core.recent_traffic import MINUTES, Minute, RecentTraffic, quantile

FAST = classes_of({edge: 100 if edge >= 10_000 else 0 for edge in EDGES_US}, 100)


def test_a_minute_is_counted_until_the_next_begins() -> None:
    traffic = RecentTraffic().after(60.0, 5, 1, FAST).after(119.9, 5, 0, NOTHING).after(120.0, 7, 0, NOTHING)
    assert traffic.minutes == (Minute(1, 10, 1, 10_000), Minute(2, 7, 0, None))


def test_minutes_in_which_nobody_counted_are_gaps_and_those_without_requests_are_none() -> None:
    traffic = RecentTraffic().after(0, 3, 0, NOTHING).after(120, 0, 0, NOTHING)
    assert traffic.hour(180)[-3:] == [Minute(0, 3), None, Minute(2)]
    assert traffic.hour(180)[:-3] == [None] * (MINUTES - 3)
    assert traffic.hour(3600 + 180) == [None] * MINUTES


@given(st.lists(st.tuples(st.floats(0, 300), st.integers(0, 50), st.integers(0, 5)), max_size=200))
def test_nothing_is_lost_within_the_hour_and_it_reads_as_it_was_written(steps: list[tuple[float, int, int]]) -> None:
    traffic, at, counted = RecentTraffic(), 0.0, []
    for pause, requests, errors in steps:
        at += pause
        traffic = traffic.after(at, requests, errors, NOTHING)
        counted.append((int(at // 60), requests))
    assert RecentTraffic.from_json(json.loads(json.dumps(traffic.to_json()))) == traffic
    assert len(traffic.minutes) <= MINUTES and [one.at for one in traffic.minutes] == sorted(
        {one.at for one in traffic.minutes}
    )
    oldest = int(at // 60) - MINUTES
    assert sum(one.requests for one in traffic.minutes) == sum(
        requests for minute, requests in counted if minute > oldest
    )


def test_a_clock_that_is_set_back_counts_on_in_the_open_minute() -> None:
    assert RecentTraffic().after(600, 1, 0, NOTHING).after(0, 1, 0, NOTHING).minutes == (Minute(10, 2),)


def test_the_quantile_is_the_edge_of_its_class() -> None:
    assert quantile(NOTHING) is None
    assert quantile(FAST) == 10_000
    assert (
        quantile(classes_of({edge: 98 if edge >= 10_000 else 0 for edge in EDGES_US}, 100)) is None
    )  # above the last edge
    assert quantile(classes_of({edge: 99 if edge >= 10_000 else 0 for edge in EDGES_US}, 100)) == 10_000


def test_the_last_seconds_are_told_apart_from_the_hour() -> None:
    traffic = RecentTraffic()
    for at in range(0, 600):
        traffic = traffic.after(float(at), 4, 0, NOTHING)
    for at in range(600, 615):
        traffic = traffic.after(float(at), 4, 4, NOTHING, 1)
    now = traffic.now(616.0)
    assert now is not None and (now.requests, now.errors, now.shed) == (60, 60, 15)
    assert sum(one.errors for one in traffic.minutes) == 60 and sum(one.requests for one in traffic.minutes) == 2460


def test_counts_that_are_old_are_not_shown_as_present_ones() -> None:
    traffic = RecentTraffic().after(100.0, 4, 4, NOTHING)
    assert traffic.now(110.0) is not None and traffic.now(111.0) is None and RecentTraffic().now(0.0) is None


def test_a_second_without_requests_counts_as_a_present_one() -> None:
    traffic = RecentTraffic().after(100.0, 4, 4, NOTHING).after(109.0, 0, 0, NOTHING)
    now = traffic.now(118.0)
    assert traffic.counted_s == 109.0 and now is not None and now.requests == 4


def test_what_an_older_engine_kept_is_read() -> None:
    kept = RecentTraffic.from_json({"minutes": [[1, 5, 0, 10_000]], "classes": list(NOTHING)})
    assert kept.minutes == (Minute(1, 5, 0, 10_000, 0),) and kept.spans == () and kept.counted_s is None
