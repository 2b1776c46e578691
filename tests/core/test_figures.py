"""Figures for Prometheus: buckets, and the client library's form of them."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from insights.collector import family
from insights.core.figures import Buckets, Figure, FigureType
from insights.queries.traffic_figures import DURATION, EXPORTED_US, _buckets
from serving.ports import ArmCounters
from serving.traffic.core.buckets import EDGES_US
from tests.support.house.figures import PAGE, exported, written


def test_a_value_on_an_edge_is_in_its_bucket() -> None:
    found = Buckets.of([0.5, 1.0, 1.5, 9.0], (1.0, 2.0))
    assert found.lines() == [("1", 2.0), ("2", 3.0), ("+Inf", 4.0)] and found.sum == 12.0
    assert Buckets.of([], (1.0,)).lines() == [("1", 0.0), ("+Inf", 0.0)]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (FigureType.GAUGE, 0.25, 'one{model="m"} 0.25'),
        (FigureType.COUNTER, 3.0, 'one_total{model="m"} 3.0'),
        (FigureType.HISTOGRAM, Buckets.of([0.1, 5.0], (1.0,)), 'one_bucket{le="1",model="m"} 1.0'),
    ],
)
def test_a_figure_is_exposed_in_prometheus_words(kind: FigureType, value: float | Buckets, expected: str) -> None:
    class One(Collector):
        def collect(self) -> list[object]:  # type: ignore[override]
            return [family(Figure("one", kind, "About it.", ("model",)), {("m",): value})]

    registry = CollectorRegistry()
    registry.register(One())
    text = generate_latest(registry).decode()
    assert expected in text and "# HELP one" in text


def test_exported_edges_are_counted_ones() -> None:
    assert set(EXPORTED_US) < set(EDGES_US)


def test_the_time_of_attempts_is_the_least_that_their_classes_allow() -> None:
    counted = {edge: 2 if edge >= 5_000 else 0 for edge in EDGES_US} | {edge: 3 for edge in EDGES_US if edge >= 250_000}
    found = _buckets(ArmCounters(timed=4, latency_us=counted))
    assert found.sum == pytest.approx(2 * 0.003 + 0.2 + 600.0)
    assert (
        dict(found.lines())["0.005"] == 2.0
        and dict(found.lines())["0.25"] == 3.0
        and dict(found.lines())["+Inf"] == 4.0
    )
    assert DURATION.labels[-1] == "release"


def test_the_page_shows_every_figure() -> None:
    page = PAGE.read_text()
    assert written(page) == page, "run `python -m tests.support.house.figures`"
    names = [one.exposed_name for one in exported()]
    assert len(set(names)) == len(names) and all(name.startswith("sluicegate_") for name in names)
