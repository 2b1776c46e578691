"""What NVIDIA's DCGM exporter says of GPUs, by way of Prometheus, as the same reading that NVML gives.

It says less, and some of it in ways that mislead:

- `DCGM_FI_DEV_XID_ERRORS` is the last Xid, for ever (dcgm-exporter#500, #190): only that it *changed* says anything, and the same Xid
  twice is no change, so that no change is no proof. That there was none, `DCGM_EXP_XID_ERRORS_COUNT` alone tells, which is off by default.
- A value that a GPU does not have is sent as a number near the largest of its type.
- Times of throttling are nanoseconds in some versions and microseconds in others: that one grew is told, and no share is made of it.
- From version 4.9 on, names and units are others. Those series are not asked for, so that what they say is unknown, and never wrong.

Source: the exporter's default-counters.csv of 4.6.0-4.8.3 for names and units, dcgm_structs.h for the blank values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from serving.targets.core.gpu import Gpu, GpuReading, Xid

_MIB: Final = float(2**20)
#: By series: the field that it fills, and by what its value is multiplied.
_NUMBERS: Final[Mapping[str, tuple[str, float]]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("busy_frac", 0.01),
    "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", _MIB),
    "DCGM_FI_DEV_FB_TOTAL": ("memory_total_bytes", _MIB),
    "DCGM_FI_DEV_FB_RESERVED": ("memory_reserved_bytes", _MIB),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("power_limit_w", 1.0),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1.0),
    "DCGM_FI_DEV_MAX_SM_CLOCK": ("sm_clock_max_mhz", 1.0),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("clock_event_reasons", 1.0),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("clock_event_reasons", 1.0),
    "DCGM_FI_DEV_THERMAL_VIOLATION": ("thermal_throttled_s", 1e-9),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_corrected", 1.0),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected", 1.0),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("row_remap_pending", 1.0),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("row_remap_failed", 1.0),
    "DCGM_FI_DEV_RETIRED_PENDING": ("retired_pages_pending", 1.0),
    "DCGM_FI_DEV_MIG_MODE": ("is_sliced", 1.0),
}
_FLAGS: Final = frozenset({"row_remap_pending", "row_remap_failed", "retired_pages_pending", "is_sliced"})
_FRACTIONS: Final = frozenset(
    {"busy_frac", "temperature_c", "power_w", "power_limit_w", "energy_j", "thermal_throttled_s"}
)
_OF_A_SLICE: Final = frozenset({"memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes"})
_COUNT, _LAST = "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_XID_ERRORS"
#: Ranges of what stands for no value: of 32 bits, of a double, and of 64 bits.
_BLANKS: Final = ((0x7FFFFFF0, 0x7FFFFFFF), (2**47, 2**47 + 16), (2**63 - 2048, 2**63))
_NOT_SENT: Final = "the DCGM exporter sends no such series"
_CANNOT: Final = {
    "processes": "the DCGM exporter tells of no processes",
    "power_capped_s": "its unit differs between versions of the DCGM exporter",
    "xids": f"without {_COUNT} only a last Xid is sent, which is never taken back",
}


@dataclass(frozen=True)
class GpuSeries:
    """One series at an instant."""

    labels: Mapping[str, str]
    value: float


def questions(selector: str, window_s: float) -> dict[str, str]:
    """PromQL by what it asks; `selector` is what stands between the braces of a series, such as `Hostname="a"`."""
    counted, last = f"{_COUNT}{{{selector}}}[{window_s:.0f}s]", f"{_LAST}{{{selector}}}"
    return {
        "now": f'{{__name__=~"{"|".join(_NUMBERS)}",{selector}}}',
        "at": f"max(timestamp(DCGM_FI_DEV_GPU_TEMP{{{selector}}}))",
        "counted": f"max_over_time({counted})",
        "changed": f"{last} and changes({last}[{window_s:.0f}s]) > 0",
    }


def reading_from(answers: Mapping[str, Sequence[GpuSeries]], window_s: float) -> GpuReading:
    """The reading that the answers to `questions` make. Nothing that is not in them is anything but unknown."""
    at_s = answers["at"][0].value if answers["at"] else 0.0
    found: dict[str, dict[str, Any]] = {}
    parents: dict[str, tuple[str | None, str | None]] = {}
    for one in answers["now"]:
        whole, part = one.labels.get("UUID", ""), one.labels.get("GPU_I_ID", "")
        name, factor = _NUMBERS[one.labels["__name__"]]
        if not whole or (part and name not in _OF_A_SLICE):
            continue
        uuid = f"{whole}/{part}" if part else whole
        parents[uuid] = (whole if part else None, one.labels.get("modelName"))
        told = found.setdefault(uuid, {})
        if not _is_blank(one.value):
            told[name] = _value(name, one.value * factor)
    if not found:
        return GpuReading(at_s, unknown="Prometheus has nothing of the DCGM exporter's", source="dcgm")
    gpus = [_gpu(uuid, told, *parents[uuid], answers, at_s, window_s) for uuid, told in sorted(found.items())]
    return GpuReading(at_s, tuple(gpus), source="dcgm")


def _gpu(
    uuid: str, told: dict[str, Any], parent: str | None, name: str | None, answers: Mapping[str, Sequence[GpuSeries]], at_s: float,
    window_s: float,
) -> Gpu:  # fmt: skip
    if parent is not None:
        unknown = dict.fromkeys(_OF_A_SLICE - told.keys(), _NOT_SENT) | {"processes": _CANNOT["processes"]}
        return Gpu(uuid, name, parent_uuid=parent, **told, unknown=unknown)
    xids = _xids(answers, uuid, at_s)
    if xids is not None:
        told |= {"xids": xids, "xids_since_s": at_s - window_s}
    asked = {one.name for one in fields(Gpu)} - {"uuid", "name", "parent_uuid", "lost", "unknown", "xids_since_s"}
    return Gpu(
        uuid, name, **told, unknown={field: _CANNOT.get(field, _NOT_SENT) for field in sorted(asked - told.keys())}
    )


def _xids(answers: Mapping[str, Sequence[GpuSeries]], uuid: str, at_s: float) -> tuple[Xid, ...] | None:
    """Those of the window; None where nobody can tell that there was none."""
    counted = [one for one in answers["counted"] if one.labels.get("UUID") == uuid]
    codes = {_code(one.labels.get("xid", "")) for one in counted if one.value > 0}
    codes |= {
        round(one.value) for one in answers["changed"] if one.labels.get("UUID") == uuid and not _is_blank(one.value)
    }
    heard = tuple(Xid(code, at_s) for code in sorted(codes - {0}))
    return heard if counted or heard else None


def _code(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _value(name: str, value: float) -> bool | float | int:
    if name in _FLAGS:
        return value > 0
    return value if name in _FRACTIONS else round(value)


def _is_blank(value: float) -> bool:
    return not value >= 0 or any(low <= value <= high for low, high in _BLANKS)


def as_series(rows: Iterable[tuple[Mapping[str, str], float]]) -> list[GpuSeries]:
    return [GpuSeries(labels, value) for labels, value in rows]
