"""The DCGM exporter's page as a reading of GPUs: its units, its traps, and what it does not tell."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from serving.targets.core.dcgm import GpuSeries, as_series, questions, reading_from
from serving.targets.core.gpu import Gpu, GpuReading
from tests.core.test_gpu_health import judged
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
    assert gpu.xids and [one.code for one in gpu.xids] == [79] and gpu.faults == ["Xid 79"]


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


@pytest.mark.parametrize(
    ("value", "is_told"),
    [
        (0, True), (1, True), (2147483631, True), (2147483632, False), (2147483647, False), (2147483648, True), (2**47 - 1, True),
        (2**47, False), (2**47 + 16, False), (2**47 + 17, True), (2**63 - 4096, True), (9223372036854775794, False),
        (2**63, False), (float("nan"), False), (-1, False),
    ],
)  # fmt: skip
def test_what_stands_for_no_value_is_no_value(value: float, is_told: bool) -> None:
    (gpu, _) = mapped(PAGE.replace("} 1980\n", f"}} {value}\n")).gpus
    assert (gpu.sm_clock_mhz is not None) == is_told and ("sm_clock_mhz" in gpu.unknown) != is_told


def test_what_has_no_number_of_its_gpu_is_left_out_and_a_slice_answers_for_its_memory_alone() -> None:
    nameless = PAGE.replace('UUID="GPU-aaaa",', "")
    assert not mapped(nameless).gpus
    more = PAGE + PAGE.replace("GPU_I_ID", "OTHER").replace('Hostname="gpu-7"}', 'Hostname="gpu-7",GPU_I_ID="9"}')
    assert [gpu.uuid for gpu in mapped(more).gpus] == ["GPU-aaaa", "GPU-aaaa/7", "GPU-aaaa/9"]
    part = mapped(more).gpus[2]
    assert part.power_w is None and part.memory_used_bytes and "memory_total_bytes" in part.unknown


def test_xids_are_those_of_their_own_gpu_and_of_the_window() -> None:
    other = PAGE.replace('xid="0"} 0', 'xid="79"} 1').replace("GPU-aaaa", "GPU-bbbb")
    first, _, second, _ = mapped(PAGE + other).gpus
    assert first.xids == () and second.xids and [(one.code, one.at_s) for one in second.xids] == [(79, 100.0)]
    over = PAGE.replace('xid="0"} 0', 'xid="79"} 0')
    assert mapped(over).gpus[0].xids == (), "none in the window any more"
    odd = PAGE.replace('xid="0"} 0', 'xid="none"} 1')
    assert mapped(odd).gpus[0].xids == ()
    blank = PAGE.replace("} 31\n", "} 9223372036854775794\n")
    assert mapped(blank, changed="XID_ERRORS").gpus[0].xids == ()


def test_the_questions_are_those_of_one_node_over_one_window() -> None:
    asked = questions(NODE, 300.4)
    assert set(asked) == {"now", "at", "counted", "changed"} and all(NODE in one for one in asked.values())
    assert "[300s]" in asked["counted"] and "[300s]" in asked["changed"] and asked["changed"].endswith("> 0")
    assert as_series([({"a": "b"}, 1.0)]) == [GpuSeries({"a": "b"}, 1.0)]


@pytest.mark.parametrize(
    ("name", "sent", "field", "value"),
    [
        ("ENFORCED_POWER_LIMIT", 700, "power_limit_w", 700.0), ("MAX_SM_CLOCK", 1980, "sm_clock_max_mhz", 1980),
        ("CLOCK_THROTTLE_REASONS", 72, "clock_event_reasons", 72), ("CLOCKS_EVENT_REASONS", 72, "clock_event_reasons", 72),
        ("ECC_DBE_VOL_TOTAL", 1, "ecc_uncorrected", 1), ("FB_TOTAL", 81559, "memory_total_bytes", 81559 << 20),
        ("ROW_REMAP_FAILURE", 1, "row_remap_failed", True), ("ROW_REMAP_PENDING", 0, "row_remap_pending", False),
    ],
)  # fmt: skip
def test_each_series_fills_its_field(name: str, sent: float, field: str, value: object) -> None:
    one = GpuSeries({"__name__": f"DCGM_FI_DEV_{name}", "UUID": "GPU-a"}, sent)
    found = reading_from({"now": [one], "at": [], "counted": [], "changed": []}, 300.0)
    assert getattr(found.gpus[0], field) == value and found.at_s == 0.0
