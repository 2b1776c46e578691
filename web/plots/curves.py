"""Plots that have a subject: the plan of a rollout, how fast a policy finds a fault, how latency grows with load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from web.plots.axes import Mark
from web.plots.lines import Axis, Kind, Limit, Panel, Series, lines, panels
from web.plots.markup import Markup, Point
from web.plots.plot import Plot, empty
from web.plots.scales import Unit, text_of


@dataclass(frozen=True)
class PlannedStep:
    """`seconds`: expected duration; None if unknown (then `least_s` is drawn and marked)."""

    name: str
    share: float
    seconds: float | None
    least_s: float = 1.0
    approvals: int = 0


def staircase(title: str, caption: str, steps: Sequence[PlannedStep], *, name: str = "") -> Plot:
    """The candidate's share over expected time, a tread for each step, with marks where approvals are waited for."""
    if not steps:
        return empty(title, "There is no step.", name=name)
    at = 0.0
    points: list[Point] = []
    guessed: list[Point] = []
    marks: list[Mark] = []
    for step in steps:
        if step.approvals:
            marks.append(Mark(at, f"{step.approvals} approval{'s' if step.approvals > 1 else ''}", "waiting"))
        points.append((at, step.share))
        if step.seconds is None:
            guessed.append((at, step.share))
        at += max(1.0, step.seconds if step.seconds is not None else step.least_s)
        if step.seconds is None:
            guessed += [(at, step.share), (at, None)]
    points.append((at, steps[-1].share))
    series = [Series("share of the traffic", points, "candidate", Kind.STEP_AREA)]
    series += [Series("at least this long", guessed, "limit", Kind.STEP)] if guessed else []
    axis = Axis("expected time since the start", Unit.DURATION, lo=0.0)
    plot = lines(
        title,
        caption,
        series,
        x=axis,
        y=Axis("traffic", Unit.SHARE, lo=0.0, hi=1.0),
        marks=marks,
        height=130,
        name=name,
    )
    rows = [(step.name, text_of(step.share, Unit.SHARE), _lasts(step), str(step.approvals or "–")) for step in steps]
    return _with_rows(plot, ("Step", "Traffic", "Expected time", "Approvals"), rows)


def _lasts(step: PlannedStep) -> str:
    return (
        text_of(step.seconds, Unit.DURATION)
        if step.seconds is not None
        else f"not known; {text_of(step.least_s, Unit.DURATION)} at least"
    )


def _with_rows(plot: Plot, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Plot:
    """The plot with another table, whose rows have no place on the x axis."""
    svg, narrow = (Markup(one.replace(' tabindex="0"', "")) for one in (plot.svg, plot.narrow))
    return replace(plot, svg=svg, narrow=narrow, columns=tuple(columns), rows=tuple(tuple(row) for row in rows), at=())


@dataclass(frozen=True)
class LoadPoint:
    """Measurements at an offered rate (requests a second): latencies in seconds by quantile, and the served rate."""

    rate_per_s: float
    latency_s: dict[str, float | None]
    served_per_s: float | None = None


def rate_latency(
    title: str, caption: str, points: Sequence[LoadPoint], *, limit_s: float | None = None, limit_label: str = "objective",
    capacity_per_s: float | None = None, name: str = "",
) -> Plot:  # fmt: skip
    """Latency by quantile over the offered rate, and beneath it the served rate beside the offered rate."""
    ordered = sorted(points, key=lambda one: one.rate_per_s)
    quantiles = list(dict.fromkeys(q for one in ordered for q in one.latency_s))
    latency = [
        Series(q, [(one.rate_per_s, one.latency_s.get(q)) for one in ordered], f"s{1 + i % 4}")
        for i, q in enumerate(quantiles)
    ]
    limits = [Limit(limit_s, f"{limit_label} {text_of(limit_s, Unit.DURATION)}")] if limit_s is not None else []
    stack = [Panel(latency, Axis("latency", Unit.DURATION, is_log=True), limits, 150)]
    served = [(one.rate_per_s, one.served_per_s) for one in ordered]
    if any(y is not None for _, y in served):
        offered = Series("offered", [(one.rate_per_s, one.rate_per_s) for one in ordered], "limit")
        stack.append(Panel([offered, Series("served", served, "stable")], Axis("served a second"), height=90))
    marks = [Mark(capacity_per_s, f"capacity {text_of(capacity_per_s)}/s")] if capacity_per_s is not None else []
    return panels(title, caption, stack, x=Axis("offered requests a second", lo=0.0), marks=marks, name=name)
