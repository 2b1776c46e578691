"""A guard in PromQL on a real Prometheus: orders that fail take a release back though every answer was well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollouts.models import DecisionRecord
from serving.traffic.adapters.prometheus import Prometheus
from tests.support.rigs.prometheus_rig import ScrapedExporter, prometheus_process
from tests.support.worlds.telemetry_world import SECONDS, World

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.real("prometheus")]


class Exposed:
    """What the world's shops count, as `/metrics`; a restart of a shop begins anew."""

    def __init__(self, process: ScrapedExporter) -> None:
        self.values = process.exporter.values

    def add(self, metric: str, more: float, **labels: str) -> None:
        key = metric, tuple(sorted(labels.items()))
        self.values[key] = self.values.get(key, 0) + more

    def restart(self) -> None:
        self.values.update(dict.fromkeys(self.values, 0))

    def fail(self, reason: None) -> None: ...


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScrapedExporter]:
    with prometheus_process(tmp_path_factory.mktemp("prometheus")) as one:
        yield one


@pytest.fixture
def world(process: ScrapedExporter, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Its reader asks the real one, after what was counted in this turn has been scraped."""
    process.exporter.values.clear()
    process.exporter.is_down = False
    with SECONDS.installed(monkeypatch):
        made = World(external=True)
        made.metrics = Exposed(process)  # type: ignore[assignment]
        made.reader.metrics = Prometheus(process.url)
        read_now = made.reader.read_now

        def scraped_and_read() -> None:
            if process.is_running:
                process.scraped()
            read_now()

        monkeypatch.setattr(made.reader, "read_now", scraped_and_read)
        yield made


def test_failing_orders_take_a_release_back(world: World) -> None:
    world.orders_failed = {world.stable.name: 0.01, world.candidate.name: 0.01}
    world.until_weight(5000)
    world.orders_failed[world.candidate.name] = 0.3
    world.until("rolling_back", turns=10)
    breach = DecisionRecord.objects.get(rollout=world.rollout, action="roll_back")
    assert breach.facts["guard"] == "external_checkout"
    world.until("rolled_back", turns=6)


def test_a_prometheus_that_dies_holds_and_one_that_returns_goes_on(world: World, process: ScrapedExporter) -> None:
    world.bring("shifting")
    process.stop()
    for _ in range(3):
        assert world.turn().state == "shifting" and world.rollout.weight_bp == 2500
    assert world.codes()[-1] == "no_data" and "unreachable" in world.view()["reason"]
    process.start()
    world.until("promoted")


def test_a_shop_that_restarts_costs_one_interval_and_no_release(world: World) -> None:
    world.orders_failed = {world.stable.name: 0.01, world.candidate.name: 0.01}
    world.bring("shifting")
    world.metrics.restart()  # type: ignore[attr-defined]
    for _ in range(2):
        world.turn()
    assert "roll_back" not in world.actions()
    world.until("promoted")
