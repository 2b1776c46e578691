"""The plots of a gate run: latency against its objective, rates and the search for capacity, memory, and the golden set's slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from accounts.core.quantities import share_text
from validators.core.compare import Paired, drop_interval
from validators.core.gates import GATES
from web.plots import (
    Axis,
    Estimate,
    Kind,
    Limit,
    LoadPoint,
    Mark,
    Panel,
    Plot,
    Series,
    Unit,
    forest,
    lines,
    panels,
    rate_latency,
)

Evidence = Mapping[str, Any]
_MIB = 2**20


def plots_of(gate: str, evidence: Evidence, policy: Mapping[str, Any], others: Sequence[Evidence] = ()) -> list[Plot]:
    """The figures of the gate's evidence. `others`: the same gate's evidence of other runs of the release."""
    kinds = GATES[gate].figures if gate in GATES else ()
    return [plot for kind in kinds for plot in FIGURES[kind](evidence, policy, others) if plot is not None]


def draws_others(gate: str) -> bool:
    """Whether a figure of the gate also shows other runs of the release."""
    return gate in GATES and "rate" in GATES[gate].figures


def latency_plot(evidence: Evidence) -> Plot | None:
    """The share of answers that came within each time, with the objective; None for a run that kept no histogram."""
    counts, edges = evidence.get("latency_counts") or (), evidence.get("latency_edges_ms") or ()
    answered = sum(counts)
    if not answered or len(counts) != len(edges) + 1:
        return None
    within, points = 0, []
    for edge, count in zip(edges, counts, strict=False):
        within += count
        points.append((edge / 1000, within / answered))
    first = next(at for at, count in enumerate(counts) if count)
    last = next((at for at, (_, share) in enumerate(points) if share >= 1.0), len(points) - 1)
    shown = points[max(0, first - 1) : last + 1]
    slo_ms, quantile = evidence.get("slo_ms"), evidence.get("slo_quantile")
    marks = [Mark(slo_ms / 1000, f"objective {slo_ms:g} ms")] if slo_ms else []
    limits = [Limit(quantile, f"{share_text(quantile)} are asked")] if slo_ms and quantile else []
    caption = f"Of {answered} answers, from when each request was due."
    return lines(
        "Latency",
        caption,
        [Series("answers within", shown, "candidate", kind=Kind.STEP)],
        x=Axis("latency", Unit.DURATION, is_log=True),
        y=Axis("share of answers", Unit.SHARE, lo=0.0, hi=1.0),
        limits=limits,
        marks=marks,
        name="latency",
    )


def rate_plot(evidence: Evidence, others: Sequence[Evidence] = ()) -> Plot | None:
    """Latency over the offered rate, of this run and of the release's others, and how much a full server did."""
    points = [point for one in (evidence, *others) if (point := _point(one)) is not None]
    if not points:
        return None
    slo_ms, full = evidence.get("slo_ms"), evidence.get("full_per_s")
    many = f"Of {len(points)} runs of this release." if len(points) > 1 else "One run, so one rate."
    does = f" With a queue before it the server did {full:g} requests a second." if full else ""
    return rate_latency(
        "Rate and capacity", f"{many}{does}", points, limit_s=slo_ms / 1000 if slo_ms else None, capacity_per_s=full, name="rate"
    )  # fmt: skip


def _declared(evidence: Evidence, field: str) -> float | None:
    """The envelope's declaration of the field with this ending, on the measured hardware, or None."""
    rows = [
        row for row in evidence.get("envelope") or () if row["field"].endswith(field) and row["measured"] is not None
    ]
    return max((row["declared"] for row in rows if row["declared"] is not None), default=None)


def capacity_plot(evidence: Evidence) -> Plot | None:
    """Latency and answers in time over every rate that the search measured, with the rate that was proven; None without any."""
    points = [
        LoadPoint(one["rate_per_s"], {name: ms / 1000 for name, ms in one["latency_ms"].items()}, one["goodput_per_s"])
        for one in evidence.get("points") or ()
    ]
    if not points:
        return None
    proven, declared = evidence.get("capacity_per_s"), _declared(evidence, ".throughput")
    says = f"Proven: {proven:g} requests a second" if proven else "No rate is proven"
    declares = f"; the envelope declares {declared:g}" if declared else ""
    return rate_latency(
        "Capacity",
        f"{says}{declares}. Of {len(points)} rates; served are the answers within the objective.",
        points,
        limit_s=evidence["slo_ms"] / 1000,
        capacity_per_s=proven,
        name="capacity",
    )


def stage_plot(evidence: Evidence) -> Plot | None:
    """The server's time by part over every rate, and the items per run; None if the server reports none."""
    told = sorted(
        ((one["rate_per_s"], one["stages"]) for one in evidence.get("points") or () if one.get("stages")),
        key=lambda one: one[0],
    )
    if not told:
        return None

    def over_rate(*names: str, unit: float = 1.0) -> list[tuple[float, float | None]]:
        return [(rate, sum(stages[name] for name in names) * unit) for rate, stages in told]

    waits = [
        Series("queue", over_rate("queue_ms", unit=0.001), "worse"),
        Series("model", over_rate("input_ms", "infer_ms", "output_ms", unit=0.001), "candidate"),
        Series("the rest", over_rate("overhead_ms", unit=0.001), "s3"),
    ]
    runs = [Series("items in a run", over_rate("mean_batch"), "stable")]
    return panels(
        "Where its time goes",
        "Means for each request, by the server's own counters: the queue also holds the wait for companions of a batch.",
        [
            Panel(waits, Axis("for each request", Unit.DURATION), height=150),
            Panel(runs, Axis("items in a run"), height=90),
        ],
        x=Axis("offered requests a second", lo=0.0),
        name="stages",
    )


def _point(evidence: Evidence) -> LoadPoint | None:
    rate, latency = evidence.get("offered_per_s"), evidence.get("latency_ms") or {}
    if not rate or not latency:
        return None
    named = {name: latency[name] / 1000 for name in ("p50", "p95", "p99") if name in latency}
    return LoadPoint(float(rate), dict(named), evidence.get("achieved_per_s"))


def slice_plot(evidence: Evidence, policy: Mapping[str, Any]) -> Plot | None:
    """How far the accuracy dropped below the baseline's, over all and by slice, with the limit."""
    paired, slices = evidence.get("paired"), evidence.get("slices") or {}
    if not paired:
        return None
    rows = [_estimate("all", int(paired["n"]), int(paired["lost"]), int(paired["won"]), "")]
    for name, one in slices.items():
        if "lost" in one and one.get("items"):
            note = "" if one.get("is_judged") else "too few items to be judged"
            rows.append(_estimate(name, int(one["items"]), int(one["lost"]), int(one["won"]), note))
    limit = policy.get("max_accuracy_drop")
    caption = (
        f"Accuracy of {evidence.get('baseline')} less that of this release, with 95 % intervals; right of 0 is worse."
    )
    return forest(
        "Accuracy drop by slice",
        caption,
        rows,
        x_label="drop",
        limit=limit,
        limit_label="limit over all",
        name="slices",
    )


def memory_plot(evidence: Evidence) -> Plot | None:
    """The server's resources after each number of requests, beside the declaration and the growth."""
    points = evidence.get("points") or ()
    if not points:
        return None
    growth, declared = evidence.get("growth"), _declared(evidence, "host.memory_mib_min")
    series = [
        Series("all memory", [(x, _mib(whole)) for x, whole, _ in points], "stable"),
        Series("allocated", [(x, _mib(own)) for x, _, own in points], "candidate"),
    ]
    if growth:
        series.append(Series("its growth", [(x, _mib(y)) for x, y in growth["line"]], "worse"))
    limits = [Limit(declared, f"{declared:.0f} MiB are declared")] if declared else []
    caption = f"Read {evidence['readings']} times while it answered {evidence['requests']} requests."
    y = Axis("MiB", lo=0.0)
    return lines("Memory", caption, series, x=Axis("requests answered"), y=y, limits=limits, name="memory")


def _mib(size: float | None) -> float | None:
    return None if size is None else round(size / _MIB, 2)


def _estimate(name: str, n: int, lost: int, won: int, note: str) -> Estimate:
    paired = Paired(n, 0, lost, won)
    low, high = drop_interval(paired)
    said = f"{lost} lost, {won} won of {n}"
    return Estimate(name, paired.drop, low, high, "candidate", f"{said}; {note}" if note else said)


Figure = Callable[[Evidence, Mapping[str, Any], Sequence[Evidence]], Iterable[Plot | None]]
#: Kinds of figure that gates declare: (evidence, the gate's section, other runs' evidence) → plots.
FIGURES: Final[Mapping[str, Figure]] = {
    "latency": lambda evidence, policy, others: [latency_plot(evidence)],
    "rate": lambda evidence, policy, others: [rate_plot(evidence, others)],
    "capacity": lambda evidence, policy, others: [capacity_plot(evidence)],
    "stages": lambda evidence, policy, others: [stage_plot(evidence)],
    "slices": lambda evidence, policy, others: [slice_plot(evidence, policy)],
    "memory": lambda evidence, policy, others: [memory_plot(evidence)],
}
