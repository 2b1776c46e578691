"""The verdict of a comparison tells what nothing judged: twice the latency must not read like none."""

from __future__ import annotations

from typing import Any

from validators.queries.disagreements import Compared
from web.pages.compare_facts import metric_rows, verdict_of

NOTHING = Compared()


def metric(name: str, old: float, new: float, says: str, unit: str = "ms") -> dict[str, Any]:
    return {
        "gate": "load", "metric": name, "unit": unit, "says": says,
        "old": {"value": old, "low": None, "high": None, "n": 100}, "new": {"value": new, "low": None, "high": None, "n": 100},
    }  # fmt: skip


def verdict(*metrics: dict[str, Any]) -> list[tuple[str, str]]:
    told = {
        "metrics": list(metrics), "is_same": False, "coupled": {"warning": ""},
        "new": {"name": "r2", "verdict": "passed"}, "old": {"name": "r1", "verdict": "passed"},
    }  # fmt: skip
    return verdict_of(told, NOTHING, metric_rows(told))


def test_metrics_that_nothing_judged_are_counted_and_the_largest_change_is_told() -> None:
    found = verdict(
        metric("errors", 0.0, 0.0, "no clear difference", "frac"),
        metric("latency p50", 42.0, 17.0, "no interval is known"),
        metric("latency p95", 114.0, 50.1, "no interval is known"),
        metric("latency p99", 120.0, 100.0, "no interval is known"),
    )
    assert ("idle", "No judged metric differs clearly: 1 of 4 were judged.") in found
    assert ("waiting", "3 metrics were not judged; largest change: latency p50 −60 %.") in found


def test_twice_the_latency_reads_as_such() -> None:
    assert ("waiting", "1 metric was not judged; largest change: latency p95 +100 %.") in verdict(
        metric("latency p95", 50.0, 100.0, "no interval is known")
    )


def test_small_changes_and_those_that_cannot_be_compared_ask_nobody_to_look() -> None:
    found = verdict(
        metric("latency p95", 50.0, 51.0, "no interval is known"),
        metric("latency p99", 50.0, 500.0, "not comparable: another rate"),
    )
    assert ("idle", "2 metrics were not judged; largest change: latency p95 +2 %.") in found
    assert not any("were compared" in sentence for _, sentence in found)
