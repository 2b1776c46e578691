"""The DCGM exporter's page as a reading of GPUs: by the pure mapping, and through a real Prometheus that scrapes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from serving.adapters.dcgm import read_dcgm
from serving.adapters.prometheus import Prometheus
from serving.core.dcgm import GpuSeries, questions, reading_from
from serving.core.gpu import Gpu, GpuReading, faults
from tests.core.test_gpu_health import judged
from tests.prometheus_rig import PrometheusProcess, prometheus_process
from validators.core.gpu_checks import CHECKS
from validators.core.verdict import Verdict

PAGE = (Path(__file__).parents[1] / "recordings" / "dcgm" / "well.txt").read_text()
NODE = 'Hostname="gpu-7"'
_LINE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)


def series(page: str) -> list[GpuSeries]:
    return [
        GpuSeries({"__name__": name, **dict(re.findall(r'(\w+)="([^"]*)"', labels))}, float(value))
        for name, labels, value in _LINE.findall(page)
    ]


def mapped(page: str = PAGE, *, changed: str = "") -> GpuReading:
    """What Prometheus would answer of a page that was always so, but for the series `changed`."""
    every = series(page)
    known = [one for one in every if "_DEV_" in one.labels["__name__"]]
    answers = {
        "now": [one for one in known if one.labels["__name__"] in ASKED],
        "at": [GpuSeries({}, 100.0)],
        "counted": [one for one in every if "XID_ERRORS_COUNT" in one.labels["__name__"]],
        "changed": [one for one in known if changed and one.labels["__name__"].endswith(changed)],
    }
    return reading_from(answers, 300.0)


ASKED = frozenset(re.findall(r"DCGM_\w+", questions(NODE, 300.0)["now"]))


def is_told_right(found: GpuReading) -> None:
    whole, part = found.gpus
    assert (found.source, whole.uuid, whole.name) == ("dcgm", "GPU-aaaa", "NVIDIA H100 80GB HBM3")
    assert (whole.busy_frac, whole.energy_j, whole.power_w) == (pytest.approx(0.84), 9510.0, 512.3)
    assert (whole.memory_used_bytes, whole.sm_clock_mhz, whole.temperature_c) == (8268 << 20, 1980, 58.0)
    assert (whole.ecc_uncorrected, whole.ecc_corrected, whole.row_remap_failed) == (0, 3, False)
    assert (whole.clock_event_reasons, whole.thermal_throttled_s, whole.is_sliced) == (0, pytest.approx(0.65), True)
    assert (part.uuid, part.parent_uuid, part.memory_used_bytes) == ("GPU-aaaa/7", "GPU-aaaa", 4134 << 20)
    assert whole.retired_pages_pending is None, "a number near the largest of its type is no value"
    assert whole.unknown["processes"] == "the DCGM exporter tells of no processes" and whole.power_capped_s is None
    for gpu in found.gpus:
        assert all(getattr(gpu, name) is None for name in gpu.unknown)


def test_the_page_is_mapped_with_its_units_and_what_it_lacks_is_unknown() -> None:
    found = mapped()
    is_told_right(found)
    assert found.at_s == 100.0 and found.gpus[0].xids == () and found.gpus[0].xids_since_s == -200.0


def test_a_last_xid_says_nothing_until_it_changes() -> None:
    without = "\n".join(line for line in PAGE.splitlines() if "XID_ERRORS_COUNT" not in line)
    (gpu, _) = mapped(without).gpus
    assert gpu.xids is None and "never taken back" in gpu.unknown["xids"]
    (gpu, _) = mapped(without, changed="XID_ERRORS").gpus
    assert gpu.xids and [one.code for one in gpu.xids] == [31]


def test_counted_xids_are_heard_by_their_code() -> None:
    (gpu, _) = mapped(PAGE.replace('xid="0"} 0', 'xid="79"} 1')).gpus
    assert gpu.xids and [one.code for one in gpu.xids] == [79] and faults(gpu) == ["Xid 79"]


def test_where_there_is_nothing_it_is_unknown() -> None:
    found = reading_from({"now": [], "at": [], "counted": [], "changed": []}, 300.0)
    assert not found.gpus and found.unknown == "Prometheus has nothing of the DCGM exporter's"


def test_by_dcgm_alone_a_release_is_neither_blamed_nor_vouched_for() -> None:
    """Nobody tells whose processes computed there, nor whether the GPU needs recovery."""
    told = tuple(replace(mapped(), at_s=at_s) for at_s in (100.0, 101.0, 102.0, 103.0))
    found = judged(told)
    assert (found.verdict, found.evidence["unknown"]) == (Verdict.UNDECIDED, ["alone", "device", "memory"])
    rest = [name for name in CHECKS if name not in found.evidence["unknown"]]
    assert judged(told, must_know=rest).verdict is Verdict.PASSED
    hit = tuple(replace(one, gpus=tuple(_with_xid(gpu) for gpu in one.gpus)) for one in told)
    assert judged(hit, must_know=rest).verdict is Verdict.UNDECIDED, "Xid 13 is a program's, and nobody knows which"


def _with_xid(gpu: Gpu) -> Gpu:
    heard = mapped(PAGE.replace('xid="0"} 0', 'xid="13"} 1')).gpus[0].xids
    return gpu if gpu.parent_uuid else replace(gpu, xids=heard)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusProcess]:
    with prometheus_process(tmp_path_factory.mktemp("dcgm")) as running:
        yield running


@pytest.mark.real("prometheus")
def test_through_a_real_prometheus_it_says_the_same(
    process: PrometheusProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.real("prometheus")
def test_a_prometheus_that_is_away_is_unknown(process: PrometheusProcess) -> None:
    found = read_dcgm(Prometheus("http://127.0.0.1:9"), NODE)
    assert not found.gpus and "cannot be reached" in found.unknown
    assert "refuses the query" in read_dcgm(Prometheus(process.url), 'Hostname="').unknown
