"""The capacity gate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from registry.core.schema import Number, Problem, Record, may
from validators.core.envelope_values import Observed, Reader, times
from validators.core.gates.fields import CONFIDENCE, UNDECIDED, OrNone
from validators.core.gates.gate import Demand, Evidence, Gate, Metric, Plan, Section, sentence, wrongly
from validators.core.gates.load import protocol_of, sizes_of
from validators.core.verdict import Verdict


def _complete(own: Section, stated: Section, read: Mapping[str, Any], objectives: Mapping[str, Any]) -> Section:
    first = own["first_per_s"]
    return {**own, "first_per_s": read["load"]["rate_per_s"] if first is None else first}


def _contradictions(read: Mapping[str, Any]) -> Iterator[Problem]:
    own = read.get("capacity") or {}
    if "capacity" in (read.get("gates") or ()) and own.get("budget_s", 0) > read.get("gate_timeout_s", 0):
        fix = "Raise gate_timeout_s to more than that, or search for a shorter time."
        yield Problem("capacity.budget_s", "it is longer than any gate may take, gate_timeout_s.", fix)


def _explain(own: Section, plan: Plan) -> Iterator[Demand]:
    demands = "The objective holds at some rate."
    certifies = f"the objective at the proven rate, up to {own['most_per_s']:g}/s, {wrongly(own['confidence'])}; not that higher rates fail"
    yield Demand("capacity", "capacity.budget_s", demands, sentence(certifies), None, float(own["budget_s"]))


def _metrics(evidence: Evidence) -> Iterator[Metric]:
    if isinstance(rate := evidence.get("capacity_per_s"), int | float):
        objective = "objective", (evidence.get("slo_ms"), evidence.get("slo_quantile"))
        under = (objective, protocol_of(evidence), sizes_of(evidence))
        yield Metric("capacity", "proven rate", "/s", True, rate, under=under)


def _of_points(share: str) -> Reader:
    """A quantile of the latency at every rate that was measured."""
    read = times("latency_ms", share)

    def read_points(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
        for point in evidence.get("points") or ():
            yield from (replace(one, is_overload=True) for one in read(point, verdict, declared))

    return read_points


def _searched_rate(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
    """Requests per second: the rate that is proven, and each rate that is refuted. A request of the gates has one item."""
    if declared["unit"] == "tokens_per_s":
        return
    refuted = [float(one["rate_per_s"]) for one in evidence.get("points") or () if one.get("found") == "refuted"]
    proven = evidence.get("capacity_per_s")
    if proven is not None or refuted:
        yield Observed(proven, bound=min(refuted, default=None))


CAPACITY: Final = Gate(
    name="capacity",
    section=Record(
        {
            "first_per_s": may(OrNone(Number(0.1, 10_000, unit="requests per second")), None),
            "most_per_s": may(Number(0.1, 10_000, unit="requests per second"), 1000),
            "budget_s": may(Number(20, 3600, unit="seconds"), 600),
            "confidence": may(CONFIDENCE, 0.9),
            "undecided": may(UNDECIDED, "block"),
        }
    ),
    explain=_explain,
    on_demand=True,
    complete=_complete,
    contradictions=_contradictions,
    runs_alone=True,
    is_watched=True,
    searches=True,
    metric_names=("proven rate",),
    metrics=_metrics,
    reads={
        **{f"latency_ms.{share}": _of_points(share) for share in ("p50", "p95", "p99")},
        "throughput": _searched_rate,
    },
    figures=("capacity", "stages"),
)
