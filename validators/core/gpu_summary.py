"""One GPU's readings in a few numbers: evidence is bounded, however long a gate ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

from serving.targets.core.gpu import Gpu

_NUMBERS: Final[dict[str, tuple[str, Callable[[list[float]], float]]]] = {
    "most_memory_used_bytes": ("memory_used_bytes", max),
    "highest_temperature_c": ("temperature_c", max),
    "least_temperature_margin_c": ("temperature_margin_c", min),
    "highest_power_w": ("power_w", max),
    "power_limit_w": ("power_limit_w", min),
    "median_sm_clock_mhz": ("sm_clock_mhz", median),
    "sm_clock_max_mhz": ("sm_clock_max_mhz", max),
    "median_busy_frac": ("busy_frac", median),
    "pcie_width": ("pcie_width", min),
    "pcie_width_max": ("pcie_width_max", max),
}
_GROWN: Final = (
    "energy_j",
    "power_capped_s",
    "thermal_throttled_s",
    "ecc_corrected",
    "ecc_uncorrected",
)


def summary_of(series: Sequence[tuple[float, Gpu]]) -> dict[str, Any]:
    """Of (seconds of the Unix epoch, GPU) in their order, at least one. What was never told is None; counters say how much they grew."""
    gpus = [gpu for _, gpu in series]
    last = gpus[-1]

    def known(name: str) -> list[float]:
        return [value for gpu in gpus if (value := getattr(gpu, name)) is not None]

    numbers = {name: calculate(values) if (values := known(of)) else None for name, (of, calculate) in _NUMBERS.items()}
    grown = {name: round(values[-1] - values[0], 3) if (values := known(name)) else None for name in _GROWN}
    return {
        "uuid": last.uuid,
        "name": last.name,
        "is_sliced": last.is_sliced,
        "readings": len(gpus),
        "seconds": round(series[-1][0] - series[0][0], 3),
        **numbers,
        **{f"{name}_grown": value for name, value in grown.items()},
        "xids": None if last.xids is None else sorted({one.code for one in last.xids}),
        "unknown": dict(sorted(last.unknown.items())),
    }
