"""What a report measured, as parts of an envelope: for the release.yaml of the next release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from validators.core.capacity import same_hardware
from validators.core.compare import share_of
from validators.core.evidence import result_with

#: An envelope's names for the parts of a cold start, and the cold start gate's. Not the download: a node that has the files fetches none.
_COLD_START = {"load": "load_s", "warmup": "warmup_s"}
#: One start is measured, and the next one takes another time: so many times as long, and so many seconds more, are declared.
_START_FACTOR, _START_SLACK_S = 1.5, 0.5

#: An envelope's names of what a server holds, and the resources gate's.
_HOST = {"memory_mib_min": "memory_bytes", "shm_mib_min": "shared_bytes"}
_MIB = 2**20


def measured_entry(report: Mapping[str, Any], digest: str) -> dict[str, Any] | None:
    """The entry that a report's body proves; None where its capacity gate proved no rate, or on hardware that nobody named."""
    found = result_with(report, "capacity_per_s")["evidence"]
    proven = [one for one in found.get("points") or () if one["found"] == "proven"]
    proof = max(proven, key=lambda one: one["rate_per_s"], default=None)
    if not found.get("capacity_per_s") or proof is None or not found.get("hardware"):
        return None
    timings = result_with(report, "timings")["evidence"].get("timings") or {}
    cold = {
        name: round(timings[part] * _START_FACTOR + _START_SLACK_S, 1)
        for name, part in _COLD_START.items()
        if part in timings
    }
    errors = share_of(proof["errors"], proof["requests"])
    return {
        "hardware": found["hardware"],
        "workload": _workload(found),
        "source": "measured",
        "load_shape": {"mode": "open", "rate_per_s": proof["rate_per_s"]},
        "latency_ms": proof["latency_ms"],
        "throughput": {"value": found["capacity_per_s"], "unit": "requests_per_s"},
        "error_max_frac": round(errors.high, 6),
        **({"cold_start_s": cold} if cold else {}),
        "evidence": digest,
        "n": proof["requests"],
        "duration_s": proof["seconds"],
    }


def measured_host(report: Mapping[str, Any]) -> dict[str, int] | None:
    """Of an envelope's `host`, what a report's resources gate saw the server hold at most, in whole MiB; None where it saw nothing."""
    peaks = result_with(report, "peaks")["evidence"].get("peaks") or {}
    return {name: math.ceil(peaks[peak] / _MIB) for name, peak in _HOST.items() if peaks.get(peak)} or None


def _workload(found: Mapping[str, Any]) -> str:
    """Which requests were sent, in words: how many of the longest, and the objective that they were held to."""
    longest = f", {found['longest_frac']:.1%} as long as declared" if found.get("longest_frac") else ""
    return f"the gates' examples{longest}; {found['slo_quantile']:.2%} within {found['slo_ms']:g} ms"


def with_measured(performance: Sequence[Mapping[str, Any]], entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An envelope's `performance` with this entry in the place of what was said of requests per second on its hardware."""
    kept = [
        dict(one)
        for one in performance
        if not same_hardware(one["hardware"], entry["hardware"])
        or (one.get("throughput") or {}).get("unit", "requests_per_s") != "requests_per_s"
    ]
    return [*kept, dict(entry)]
