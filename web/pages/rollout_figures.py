"""The plots of a rollout, from its moments: evidence against its bars, weights over attempts, latency of both arms.

Moments, windows and marks are arguments; x is seconds since the rollout's beginning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from rollouts.core.timeline import EvidenceAt, Moment
from rollouts.queries.timeline import LatencySpan
from web.plots.axes import Mark
from web.plots.lines import Axis, Kind, Limit, Panel, Series, panels
from web.plots.markup import Point
from web.plots.plot import Plot, empty
from web.plots.scales import Unit, text_of

#: Points of a line: a plot of a live page is sent again and again.
MOST_POINTS = 240
SINCE = Axis("since the rollout began", Unit.DURATION)


@dataclass(frozen=True)
class Guard:
    """A guard by its name, its words, and the bars of log E that it is held against."""

    name: str
    words: str
    bar_worse: float
    bar_fine: float
    is_dry_run: bool = False


@dataclass(frozen=True)
class Story:
    """The releases of the rollout, its start (seconds since the epoch), and the marks on every plot."""

    candidate: str
    stable: str  # empty without one
    began: float
    marks: tuple[Mark, ...] = ()  # x in seconds since `began`


def evidence_plot(story: Story, guard: Guard, moments: Sequence[Moment], *, name: str = "") -> Plot:
    """One guard's log E over time with the bars that end a rollout; cut off well beyond them."""
    title = f"Evidence: {guard.words}"
    seen = [(one.at - story.began, one.evidence.get(guard.name), one.is_blind) for one in moments]
    if not any(evidence for _, evidence, _ in seen):
        return empty(title, "This guard has not counted anything yet.", name=name)

    def line(label: str, look: str, value: str) -> Series:
        points: list[Point] = [
            (at, getattr(found, value) if found is not None and not is_blind else None) for at, found, is_blind in seen
        ]
        return Series(label, points, look)

    series = [line("over the limit", "over", "over"), line("fine", "fine", "fine")]
    if story.stable:
        series.insert(0, line(f"worse than {story.stable}", "worse", "worse"))
    limits = [
        Limit(guard.bar_worse, f"roll back at {guard.bar_worse:.2f}", "worse"),
        Limit(guard.bar_fine, f"go on at {guard.bar_fine:.2f}", "fine"),
    ]
    values = [y for one in series for _, y in one.points if y is not None]
    most = 1.6 * max(guard.bar_worse, guard.bar_fine)
    axis = Axis(
        "log E", lo=max(-guard.bar_worse, min([0.0, *values])), hi=min(most, max([1.15 * guard.bar_worse, *values]))
    )
    return panels(
        title,
        _evidence_caption(story, guard, seen),
        [Panel(series, axis, limits, 170)],
        x=SINCE,
        marks=story.marks,
        most=MOST_POINTS,
        name=name,
    )


def _evidence_caption(story: Story, guard: Guard, seen: Sequence[tuple[float, EvidenceAt | None, bool]]) -> str:
    known = [(at, found) for at, found, _ in seen if found is not None]
    dry = " It is a dry run: it moves nothing." if guard.is_dry_run else ""
    for value, bar, words in (
        ("worse", guard.bar_worse, f"{story.candidate} is worse than {story.stable}"),
        ("over", guard.bar_worse, f"{story.candidate} is over the limit"),
    ):
        first = next((at for at, found in known if getattr(found, value) >= bar), None)
        if first is not None and (value != "worse" or story.stable):
            return f"{words}: that evidence reached its bar {text_of(first, Unit.DURATION)} after the beginning.{dry}"
    last = known[-1][1]
    if last.fine >= guard.bar_fine:
        return f"{story.candidate} is proven fine in the present stage.{dry}"
    highest = max(max(found.worse if story.stable else 0.0, found.over, 0.0) for _, found in known)
    came_to = f"came to {highest / guard.bar_worse:.0%} of its bar at most"
    return f"Nothing is proven yet; the evidence against {story.candidate} {came_to}.{dry}"


def traffic_plot(story: Story, moments: Sequence[Moment], *, name: str = "") -> Plot:
    """Weights desired, acknowledged and observed, over attempts, retried and failed ones a second."""
    title = "Weight and attempts"
    if not moments:
        return empty(title, "No tick of this rollout is stored yet.", name=name)
    xs = [one.at - story.began for one in moments]
    weights = [
        Series("desired", [(x, one.weight) for x, one in zip(xs, moments, strict=True)], "desired", Kind.STEP),
        Series(
            "acknowledged",
            [(x, one.acknowledged) for x, one in zip(xs, moments, strict=True)],
            "acknowledged",
            Kind.STEP,
        ),
        Series("observed", [(x, one.observed) for x, one in zip(xs, moments, strict=True)], "observed"),
    ]
    spans = [max(0.05, then - x) for x, then in zip([xs[0] - _usual(xs), *xs], xs, strict=False)]

    def rate(label: str, look: str, count: str) -> Series:
        points: list[Point] = [
            (x, None if one.is_blind else getattr(one, count) / span)
            for x, span, one in zip(xs, spans, moments, strict=True)
        ]
        return Series(label, points, look, Kind.STEP_AREA)

    counts = [
        rate("attempts", "attempts", "attempts"),
        rate("retried on stable", "retried", "retried"),
        rate("failed", "failed", "failed"),
    ]
    top = max([0.05, *(one.weight for one in moments), *(one.observed or 0.0 for one in moments)])
    total, failed = sum(one.attempts for one in moments), sum(one.failed for one in moments)
    attempts = f"{total} attempts on it so far, {failed} failed"
    shown = moments[-1]
    observed = (
        "its requests are not counted yet"
        if shown.observed is None
        else f"{text_of(shown.observed, Unit.SHARE)} observed"
    )
    caption = f"{story.candidate} at {text_of(shown.weight, Unit.SHARE)} desired, {observed}; {attempts}."
    return panels(
        title,
        caption,
        [
            Panel(weights, Axis("weight", Unit.SHARE, lo=0.0, hi=min(1.0, 1.1 * top)), height=100),
            Panel(counts, Axis("attempts a second on the candidate"), height=80),
        ],
        x=SINCE,
        marks=story.marks,
        most=MOST_POINTS,
        name=name,
    )


def _usual(xs: Sequence[float]) -> float:
    """How far apart ticks are, in seconds."""
    gaps = sorted(then - x for x, then in pairwise(xs) if then > x)
    return gaps[len(gaps) // 2] if gaps else 1.0


def latency_cdf(
    story: Story,
    spans: Sequence[LatencySpan],
    edges_s: Sequence[float],
    *,
    limit_s: float | None = None,
    name: str = "",
) -> Plot:
    """The share of first attempts that were faster, by arm, over the whole rollout."""
    title = "How fast both answer"
    arms = [(story.candidate, "candidate", [one.candidate for one in spans])]
    if story.stable:
        arms.append((story.stable, "stable", [one.stable for one in spans]))
    series, sentences = [], []
    reached = next((i for i, edge in enumerate(edges_s) if limit_s is not None and edge > limit_s), 0)
    for release, look, columns in arms:
        summed = [sum(column) for column in zip(*columns, strict=True)]
        total = sum(summed)
        if not total:
            continue
        under = list(accumulate(summed))[: len(edges_s)]
        reached = max(reached, next((i for i, n in enumerate(under) if n == total), len(under) - 1))
        series.append(Series(release, [(edge, n / total) for edge, n in zip(edges_s, under, strict=True)], look))
        half, most = (_quantile_edge(summed, edges_s, share) for share in (0.5, 0.99))
        sentences.append(
            f"{release}: half under {text_of(half, Unit.DURATION)}, 99 % under {text_of(most, Unit.DURATION)}, {total} counted"
        )
    if not series:
        return empty(title, "No latency was counted of this rollout.", name=name)
    series = [replace(one, points=one.points[: reached + 2]) for one in series]  # beyond it all of them are answered
    marks = [Mark(limit_s, f"slow over {text_of(limit_s, Unit.DURATION)}", "limit")] if limit_s else []
    plot = panels(
        title,
        f"{'; '.join(sentences)}.",
        [Panel(series, Axis("share of first attempts", Unit.SHARE, lo=0.0, hi=1.0), height=150)],
        x=Axis("answered within", Unit.DURATION, is_log=True),
        marks=marks,
        name=name,
    )
    return replace(plot, columns=("Answered within", *plot.columns[1:]))


def _quantile_edge(column: Sequence[int] | None, edges: Sequence[float], share: float) -> float | None:
    """The edge below which at least this share lies: infinity above the last edge, None without counts."""
    total = sum(column or ())
    if not column or not total:
        return None
    seen = 0
    for count, edge in zip(column, [*edges, math.inf], strict=True):
        seen += count
        if seen >= share * total:
            return edge
    return math.inf
