"""Facts of the page that compares two releases: the verdict in a sentence, metrics with their differences, plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accounts.core.quantities import share_text
from validators.queries.disagreements import Compared
from web.plots import Estimate, Plot, forest


@dataclass(frozen=True)
class MetricRow:
    """One metric of both releases. `delta` is the newer less the older, in words; `kind` colours it: ok, bad or ""."""

    gate: str
    metric: str
    unit: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None
    delta: str
    kind: str
    says: str


def metric_rows(told: Mapping[str, Any]) -> list[MetricRow]:
    """The metrics, informative ones first."""
    rows = [_row(one) for one in told["metrics"]]
    weight = {"worse": 0, "better": 1}
    return sorted(rows, key=lambda row: weight.get(row.says, 2))


def _row(one: Mapping[str, Any]) -> MetricRow:
    old, new = one["old"], one["new"]
    kind = {"better": "ok", "worse": "bad"}.get(one["says"], "")
    delta = _delta(new["value"] - old["value"], one["unit"]) if old and new else ""
    return MetricRow(one["gate"], one["metric"], one["unit"], old, new, delta, kind, one["says"])


def _delta(value: float, unit: str) -> str:
    if unit == "frac":
        return f"{value * 100:+.2f} points"
    return f"{value:+.3g} {unit}"


def verdict_of(told: Mapping[str, Any], answers: Compared, rows: Sequence[MetricRow]) -> list[tuple[str, str]]:
    """(kind, sentence) for a reviewer, the worst first."""
    return sorted(_findings(told, answers, rows), key=lambda one: ("bad", "waiting", "idle", "ok").index(one[0]))


def _findings(told: Mapping[str, Any], answers: Compared, rows: Sequence[MetricRow]) -> Iterator[tuple[str, str]]:
    new, old = told["new"]["name"], told["old"]["name"]
    if told["is_same"]:
        yield "idle", f"{new} and {old} are the same bytes."
    if told["coupled"]["warning"]:
        yield "waiting", told["coupled"]["warning"]
    if told["new"]["verdict"] is None:
        yield "waiting", f"No gate run of {new} has a report."
    else:
        kind = {"passed": "ok", "failed": "bad"}.get(told["new"]["verdict"], "waiting")
        yield kind, f"The gates of {new} {_ended(told['new']['verdict'])}."
    for says, kind in (("worse", "bad"), ("better", "ok")):
        named = [f"{row.metric} ({row.delta})" for row in rows if row.says == says]
        if named:
            yield kind, f"{new} is {says} in {_listed(named)}."
    yield from _unclear(rows)
    if answers.items:
        hows = dict(answers.by_how)
        lost, won = hows.get("lost", 0), hows.get("won", 0)
        share = share_text(1 - answers.total / answers.items)
        yield (
            "bad" if lost > 2 * won and lost > 10 else "idle",
            f"{answers.total} of {answers.items} golden answers differ ({lost} lost, {won} won); {share} are equal.",
        )


def _unclear(rows: Sequence[MetricRow]) -> Iterator[tuple[str, str]]:
    """How many metrics do not differ clearly, how many nothing could judge, and which of these changed most."""
    judged = [row for row in rows if row.says in _JUDGED]
    if judged and not any(row.kind for row in rows):
        yield "idle", f"No judged metric differs clearly: {len(judged)} of {len(rows)} were judged."
    open_rows = [row for row in rows if row.says not in _JUDGED]
    if not open_rows:
        return
    were = "metric was" if len(open_rows) == 1 else "metrics were"
    changes = [(abs(change), row.metric, change) for row in open_rows if (change := _relative(row)) is not None]
    largest = max(changes, default=None)
    most = f"; largest change: {largest[1]} {largest[2]:+.0%}" if largest is not None and largest[0] else ""
    kind = "waiting" if largest is not None and largest[0] >= MUCH else "idle"
    yield kind, f"{len(open_rows)} {were} not judged{most.replace('%', ' %').replace('-', '−')}."


#: Verdicts on a metric with an interval in both releases.
_JUDGED = frozenset({"better", "worse", "same", "no clear difference"})
#: A relative change from which a reviewer is asked to look, though nothing judges it.
MUCH = 0.2


def _relative(row: MetricRow) -> float | None:
    """The change as a share of the older value; None if either is missing, the older is 0, or the two are not comparable."""
    if not row.old or not row.new or not row.old["value"] or row.says.startswith("not comparable"):
        return None
    return float(row.new["value"] / row.old["value"] - 1)


def _ended(verdict: str) -> str:
    return {"passed": "passed", "failed": "failed", "errored": "broke"}.get(verdict, f"ended {verdict}")


def _listed(words: Sequence[str]) -> str:
    shown = list(words[:4])
    more = f" and {len(words) - 4} more" if len(words) > 4 else ""
    return ", ".join(shown) + more


def interval_plot(told: Mapping[str, Any]) -> Plot | None:
    """Shares with their intervals, of both releases under each other, or None if no metric has an interval."""
    names = told["old"]["name"], told["new"]["name"]
    rows = [
        Estimate(f"{one['metric']} {name}", one[side]["value"], one[side]["low"], one[side]["high"], look, one["says"])
        for one in told["metrics"]
        if one["unit"] == "frac"
        for side, name, look in (("old", names[0], "stable"), ("new", names[1], "candidate"))
        if one[side] and one[side]["low"] is not None
    ]
    if not rows:
        return None
    caption = "Gate measurements of each release, with 95 % intervals."
    looks = {"stable": names[0], "candidate": names[1]}
    return forest("Shares with their intervals", caption, rows, zero=None, looks=looks, name="shares")
