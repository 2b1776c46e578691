"""Two releases' gates, metric by metric with their intervals: what is better, what is worse, what is noise.

A difference counts only where both intervals are known and do not overlap, and both were measured alike. Everything
else says why it does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from validators.core.compare import agreement, share_of
from validators.core.expiry import NONE, results_of


@dataclass(frozen=True)
class Metric:
    """One number of one gate. `low` and `high` are None where no interval is known. `under`: what it was measured under."""

    gate: str
    name: str
    unit: str  # frac, ms, s, MiB, /s
    higher_is_better: bool
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None
    under: tuple[tuple[str, Any], ...] = ()


#: Gates whose figures depend on the machine.
_OF_MACHINE: Final = frozenset({"cold_start", "load", "resources", "capacity"})
#: Every (gate, name) that `metrics_of` may yield.
METRICS: Final = (
    ("golden", "accuracy"),
    ("golden", "batch flips"),
    ("load", "errors"),
    ("load", "over the objective"),
    ("load", "latency p50"),
    ("load", "latency p95"),
    ("load", "latency p99"),
    ("cold_start", "total"),
    ("cold_start", "first"),
    ("cold_start", "steady"),
    ("resources", "most memory"),
    ("resources", "cpu time per request"),
    ("capacity", "proven rate"),
)


def compare_reports(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any]:
    """{"gates": [{gate, old, new}], "metrics": [{gate, metric, unit, old, new, says}], "agreement"} of two reports' bodies.

    None is a release that has no report. `says`: better, worse, no clear difference, or why it cannot be told.
    """
    before, after = _gates(old), _gates(new)
    named = [*before, *(gate for gate in after if gate not in before)]
    known = [_metrics(one) for one in (old, new)]
    metrics = []
    for key in [*known[0], *(key for key in known[1] if key not in known[0])]:
        a, b = known[0].get(key), known[1].get(key)
        told = a or b
        assert told is not None  # the key is of one of them
        metrics.append(
            {
                "gate": told.gate,
                "metric": told.name,
                "unit": told.unit,
                "old": _shown(a),
                "new": _shown(b),
                "says": _says(a, b),
            }
        )
    return {
        "gates": [
            {"gate": gate, "old": _verdict(before.get(gate)), "new": _verdict(after.get(gate))} for gate in named
        ],
        "metrics": metrics,
        "agreement": _agreement(before.get("golden"), after.get("golden")),
    }


def _gates(report: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    return {gate["gate"]: gate for gate in report["gates"]} if report else {}


def _verdict(gate: Mapping[str, Any] | None) -> str | None:
    return str(gate["verdict"]) if gate else None


def _metrics(report: Mapping[str, Any] | None) -> dict[tuple[str, str], Metric]:
    named = []
    for gate in results_of(report or {}):
        under = (("hardware", _hardware(gate["measured"])),) if gate["gate"] in _OF_MACHINE else ()
        found = metrics_of(gate["gate"], gate["evidence"])
        named += [Metric(**{**asdict(one), "under": (*one.under, *under)}) for one in found]
    return {(metric.gate, metric.name): metric for metric in named}


def _hardware(measured: Mapping[str, Any]) -> str | None:
    """What the gate ran on, in words; None where the report does not contain it."""
    told = [measured.get(name) for name in ("gpu", "driver", "cpu_model", "cpu_count")]
    return "; ".join(str(one) for one in told if one not in (None, NONE)) or None


def metrics_of(gate: str, evidence: Mapping[str, Any]) -> Iterator[Metric]:
    """Every number that the gate's evidence holds."""
    if gate == "golden":
        yield from _golden(evidence)
    elif gate == "load":
        yield from _load(evidence)
    elif gate == "cold_start":
        for name in ("total_s", "first_ms", "steady_ms"):
            if isinstance(value := evidence.get(name), int | float):
                yield Metric(gate, name.rpartition("_")[0], name.rpartition("_")[2], False, value)
    elif gate == "resources":
        if isinstance(held := (evidence.get("peaks") or {}).get("memory_bytes"), int):
            yield Metric(gate, "most memory", "MiB", False, held / 2**20)
        if isinstance(value := evidence.get("cpu_ms_per_request"), int | float):
            yield Metric(gate, "cpu time per request", "ms", False, value, n=evidence.get("requests"))
    elif gate == "capacity" and isinstance(rate := evidence.get("capacity_per_s"), int | float):
        objective = "objective", (evidence.get("slo_ms"), evidence.get("slo_quantile"))
        under = (objective, _protocol(evidence), _sizes(evidence))
        yield Metric(gate, "proven rate", "/s", True, rate, under=under)


def _golden(evidence: Mapping[str, Any]) -> Iterator[Metric]:
    under = (
        ("golden set", evidence.get("golden_set")),
        ("output", evidence.get("output")),
        ("comparison", evidence.get("compare", "label")),
        ("limit", evidence.get("right_within")),
    )
    accuracy, flips = evidence.get("accuracy") or {}, evidence.get("batch_invariance") or {}
    if isinstance(accuracy.get("value"), int | float):
        interval = accuracy.get("low"), accuracy.get("high"), accuracy.get("n")
        yield Metric("golden", "accuracy", "frac", True, accuracy["value"], *interval, under)
    if flips.get("asked_alone"):
        share = flips["flipped"] / flips["asked_alone"]
        yield Metric(
            "golden", "batch flips", "frac", False, share, flips["low"], flips["high"], flips["asked_alone"], under
        )


def _load(evidence: Mapping[str, Any]) -> Iterator[Metric]:
    requests = evidence.get("requests") or 0
    # The rate that was asked for: what a run offered is a random count, and differs in each of two equal runs.
    rate = evidence.get("rate_per_s", evidence.get("offered_per_s"))
    under = (("rate", rate), _protocol(evidence), _sizes(evidence))
    asked = (*under, ("objective", evidence.get("slo_ms")))
    phi = max(1.0, float(evidence.get("phi") or 1.0))
    for name, count, conditions in (("errors", "errors", under), ("over the objective", "over", asked)):
        if requests and isinstance(evidence.get(count), int):
            share = share_of(
                round(evidence[count] / phi), max(1, round(requests / phi))
            )  # clustered requests weigh less
            value = evidence[count] / requests
            yield Metric("load", name, "frac", False, value, share.low, share.high, requests, conditions)
    for says, times in (("latency", "latency_ms"), ("first token", "ttft_ms"), ("between tokens", "itl_ms")):
        for name in ("p50", "p95", "p99"):
            if isinstance(value := (evidence.get(times) or {}).get(name), int | float):
                yield Metric("load", f"{says} {name}", "ms", False, value, n=requests, under=under)


def _protocol(evidence: Mapping[str, Any]) -> tuple[str, Any]:
    """Over which requests were sent; it was gRPC before that was told."""
    return "protocol", evidence.get("protocol", "grpc")


def _sizes(evidence: Mapping[str, Any]) -> tuple[str, Any]:
    """Whether requests were as large as users' or as the examples; they were as the examples before that was told."""
    return "mix of sizes", evidence.get("sizes_from", "examples")


def _shown(metric: Metric | None) -> dict[str, Any] | None:
    return None if metric is None else {"value": metric.value, "low": metric.low, "high": metric.high, "n": metric.n}


def _says(old: Metric | None, new: Metric | None) -> str:
    if old is None or new is None:
        return f"only the {'newer' if old is None else 'older'} release was measured"
    for (name, before), (_, after) in zip(old.under, new.under, strict=True):
        if before != after:
            return f"not comparable: another {name}"
    if old.low is None or old.high is None or new.low is None or new.high is None:
        return "same" if old.value == new.value else "no interval is known"
    if old.low <= new.high and new.low <= old.high:
        return "no clear difference"
    return "better" if (new.value > old.value) == new.higher_is_better else "worse"


def _agreement(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How often both gave the same answer to the same golden set; None where they were not asked the same."""
    if old is None or new is None:
        return None
    a, b = old["evidence"], new["evidence"]
    is_one = all(a.get(name) is not None and a.get(name) == b.get(name) for name in ("golden_set", "output"))
    before, after = a.get("predictions") or [], b.get("predictions") or []
    if not is_one or not before or len(before) != len(after):
        return None
    share = agreement(after, before)
    return {"value": share.value, "low": share.low, "high": share.high, "n": share.n}
