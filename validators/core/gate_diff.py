"""Two releases' gates, metric by metric with their intervals: what is better, what is worse, what is noise.

A difference counts only where both intervals are known and do not overlap, and both were measured alike. Everything
else says why it does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from validators.core.compare import agreement
from validators.core.expiry import NONE, results_of
from validators.core.gates import GATES
from validators.core.gates.gate import FACTS, Metric

#: Every (gate, name) that a condition on releases may name.
METRICS: Final = tuple((gate.name, name) for gate in GATES.values() for name in gate.metric_names)


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
        "agreement": next((found for gate in before if (found := _agreement(before[gate], after.get(gate)))), None),
    }


def _gates(report: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    return {gate["gate"]: gate for gate in report["gates"]} if report else {}


def _verdict(gate: Mapping[str, Any] | None) -> str | None:
    return str(gate["verdict"]) if gate else None


def _metrics(report: Mapping[str, Any] | None) -> dict[tuple[str, str], Metric]:
    named = []
    for gate in results_of(report or {}):
        found = list(metrics_of(gate["gate"], gate["evidence"]))
        is_of_machine = found and GATES[gate["gate"]].depends == set(FACTS)
        under = (("hardware", _hardware(gate["measured"])),) if is_of_machine else ()
        named += [Metric(**{**asdict(one), "under": (*one.under, *under)}) for one in found]
    return {(metric.gate, metric.name): metric for metric in named}


def _hardware(measured: Mapping[str, Any]) -> str | None:
    """What the gate ran on, in words; None where the report does not contain it."""
    told = [measured.get(name) for name in ("gpu", "driver", "cpu_model", "cpu_count")]
    return "; ".join(str(one) for one in told if one not in (None, NONE)) or None


def metrics_of(gate: str, evidence: Mapping[str, Any]) -> Iterator[Metric]:
    """Every number that the gate's evidence holds."""
    return GATES[gate].metrics(evidence) if gate in GATES else iter(())


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


def _agreement(old: Mapping[str, Any], new: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How often both gave the same answer to the same golden set; None where they were not asked the same."""
    if new is None:
        return None
    a, b = old["evidence"], new["evidence"]
    is_one = all(a.get(name) is not None and a.get(name) == b.get(name) for name in ("golden_set", "output"))
    before, after = a.get("predictions") or [], b.get("predictions") or []
    if not is_one or not before or len(before) != len(after):
        return None
    share = agreement(after, before)
    return {"value": share.value, "low": share.low, "high": share.high, "n": share.n}
