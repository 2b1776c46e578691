"""Hands figures to Prometheus' client library whenever it asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import structlog
from django.db import connection
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from insights.core.figures import Buckets, Figure, FigureType, Values
from insights.queries.database_figures import figures
from insights.queries.traffic_figures import read_traffic
from serving.ports import TrafficCounters

log = structlog.get_logger(__name__)
_FAMILIES: Final = {FigureType.GAUGE: GaugeMetricFamily, FigureType.COUNTER: CounterMetricFamily}
FAILED: Final = Figure(
    "sluicegate_figures_failed", FigureType.GAUGE, "1 for each figure that could not be read this time.", ("figure",)
)


class InstallationCollector(Collector):
    """Figures of the whole installation. One process exports them: the one that `leads` says so of."""

    def __init__(self, counters: TrafficCounters, leads: Callable[[], bool]) -> None:
        self._counters, self._leads, self._figures = counters, leads, figures()

    def describe(self) -> Iterable[Metric]:
        """Nothing: to register this reads no database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        if not self._leads():
            return
        failed: dict[tuple[str, ...], float | Buckets] = {}
        try:
            for figure, read in self._figures:
                try:
                    yield family(figure, read())
                except Exception as error:  # one figure that cannot be read hides no other
                    log.warning("figure_failed", figure=figure.name, error=str(error))
                    failed[(figure.name,)] = 1.0
            try:
                for figure, values in read_traffic(self._counters):
                    yield family(figure, values)
            except Exception as error:
                log.warning("figure_failed", figure="gateways", error=str(error))
                failed[("gateways",)] = 1.0
            yield family(FAILED, failed)
        finally:
            connection.close()


def family(figure: Figure, values: Values) -> Metric:
    """The client library's form of a figure."""
    if figure.type is FigureType.HISTOGRAM:
        histogram = HistogramMetricFamily(figure.name, figure.help, labels=figure.labels)
        for labels, value in sorted(values.items()):
            assert isinstance(value, Buckets)
            histogram.add_metric(labels, value.lines(), value.sum)
        return histogram
    found = _FAMILIES[figure.type](figure.name, figure.help, labels=figure.labels)
    for labels, value in sorted(values.items()):
        assert isinstance(value, float)
        found.add_metric(labels, value)
    return found
