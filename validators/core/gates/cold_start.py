"""The cold start gate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from registry.core.schema import Integer, Record, may
from validators.core.envelope_values import Observed, Reader
from validators.core.gates.fields import MILLISECONDS, SECONDS
from validators.core.gates.gate import Demand, Evidence, FormField, Gate, Metric, Plan, Section, sentence
from validators.core.verdict import Verdict

_NAMES: Final = ("total", "first", "steady")


def _explain(own: Section, plan: Plan) -> Iterator[Demand]:
    one = sentence("one start on one node; not how much starts differ")
    yield Demand("cold_start", "cold_start.max_s", f"Ready within {own['max_s']:g} s.", one, None, float(own["max_s"]))
    excess = f"Of {own['inferences']} inferences the first is at most {own['max_first_excess_ms']:g} ms slower than later ones."
    yield Demand("cold_start", "cold_start.max_first_excess_ms", excess, one)


def _metrics(evidence: Evidence) -> Iterator[Metric]:
    for name in ("total_s", "first_ms", "steady_ms"):
        if isinstance(value := evidence.get(name), int | float):
            yield Metric("cold_start", name.rpartition("_")[0], name.rpartition("_")[2], False, value)


def _timing(part: str) -> Reader:
    def read(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
        if part == "load_s" and (waited_s := evidence.get("still_loading_s")) is not None:
            yield Observed(waited_s, bound=math.nextafter(waited_s, math.inf), proves=False)
            return
        seconds = (evidence.get("timings") or {}).get(part)
        if seconds is not None:
            yield Observed(float(seconds), bound=float(seconds))

    return read


COLD_START: Final = Gate(
    name="cold_start",
    section=Record(
        {
            "max_s": may(SECONDS, 60),
            "inferences": may(Integer(5, 1000), 20),
            "max_first_excess_ms": may(MILLISECONDS, 1000),
            "timeout_s": may(SECONDS, 30),
        }
    ),
    explain=_explain,
    judges_start=True,
    metric_names=_NAMES,
    metrics=_metrics,
    thresholds=lambda own: {"total": own.get("max_s")},
    reads={
        "lifecycle.load_timeout_s": _timing("load_s"),
        "cold_start_s.download": _timing("fetch_s"),
        "cold_start_s.load": _timing("load_s"),
        "cold_start_s.warmup": _timing("warmup_s"),
    },
    form=(FormField("max_s", "Cold start at most", "seconds"),),
)
