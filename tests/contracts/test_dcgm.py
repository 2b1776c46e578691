"""The DCGM exporter's page through a real Prometheus that scrapes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving.targets.adapters.dcgm import read_dcgm
from serving.traffic.adapters.prometheus import Prometheus
from tests.core.test_dcgm import NODE, PAGE, is_told_right
from tests.support.rigs.prometheus_rig import ScrapedExporter, prometheus_process

pytestmark = pytest.mark.real("prometheus")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScrapedExporter]:
    with prometheus_process(tmp_path_factory.mktemp("dcgm")) as running:
        yield running


def test_through_a_real_prometheus_it_says_the_same(process: ScrapedExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE
    monkeypatch.setattr(process.exporter, "page", lambda: page)
    process.scraped()
    source = Prometheus(process.url)
    found = read_dcgm(source, NODE)
    is_told_right(found)
    assert found.gpus[0].xids == (), "31 is the last Xid, and was that before"
    assert not read_dcgm(source, 'Hostname="another"').gpus
    page = PAGE.replace("} 31\n", "} 79\n")
    process.scraped()
    later = read_dcgm(source, NODE)
    assert later.gpus[0].xids and [one.code for one in later.gpus[0].xids] == [79]
    assert later.at_s > found.at_s


def test_a_prometheus_that_is_away_is_unknown(process: ScrapedExporter) -> None:
    found = read_dcgm(Prometheus("http://127.0.0.1:9"), NODE)
    assert not found.gpus and "cannot be reached" in found.unknown
    assert "refuses the query" in read_dcgm(Prometheus(process.url), 'Hostname="').unknown
