"""The three plots of docs/calibration.md, drawn from docs/calibration.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.calibration.cells import RATES
from benchmarks.calibration.simulate import OURS
from benchmarks.calibration.svg import Drawing, LogScale

RULES = {
    OURS: "Sluicegate",
    "argo_0": "Argo-shaped, limit 0",
    "argo_3": "Argo-shaped, limit 3",
    "flagger_5": "Flagger-shaped, 5 in all",
    "row_3": "3 bad minutes in a row",
    "z_test": "z-test each 15 s",
}


def write_plots(results: dict[str, Any], folder: Path) -> list[Path]:
    """Writes the plots and returns where they are."""
    drawn = {
        "calibration-false.svg": false_rollbacks(results),
        "calibration-detection.svg": detection(results),
        "calibration-evidence.svg": evidence(results),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in drawn.items():
        (folder / name).write_text(text)
    return [folder / name for name in drawn]


def _legend(d: Drawing, x: float, y: float, width: float) -> None:
    for i, words in enumerate(RULES.values()):
        left = x + (i % 3) * width
        top = y + (i // 3) * 18
        d.mark(left, top - 4, i)
        d.text(left + 10, top, words)


def _rate_words(rate: float) -> str:
    return f"{rate:g} request{'s' if rate != 1 else ''}/s on the candidate at first"


# --- false rollbacks --------------------------------------------------------------------------------------------------


def false_rollbacks(results: dict[str, Any]) -> str:
    """A dot for each rule in each healthy cell; a panel for each rate."""
    cells = [cell for cell in results["cells"] if cell["group"] in {"healthy", "stress"}]
    kinds = list(dict.fromkeys(cell["kind"] for cell in cells))
    row, left, panel, gap, top = 22.0, 250.0, 190.0, 44.0, 110.0
    height = top + row * len(kinds) + 58
    d = Drawing(
        left + 3 * (panel + gap) - 10, height, "Share of healthy rollouts that each rule rolls back, by traffic"
    )
    d.text(12, 22, "Healthy rollouts that were rolled back", kind="title")
    _legend(d, 18, 48, 200)
    d.text(left - 14, top - 8, "requests/s on the candidate at first:", kind="small soft", anchor="end")
    d.text(18, height - 14, f"hollow: none of {results['runs']:,}", kind="small soft")
    for i, kind in enumerate(kinds):
        d.text(left - 14, top + row * i + 15, kind, anchor="end")
    for i, rate in enumerate(RATES):
        x0 = left + i * (panel + gap)
        mine = {cell["kind"]: cell for cell in cells if cell["rate_per_s"] == rate}
        _false_panel(d, [mine.get(kind) for kind in kinds], x0, panel, top, row)
        d.text(x0 + panel / 2, top - 8, f"{rate:g}", anchor="middle")
        d.text(x0 + panel / 2, height - 14, "share rolled back (log scale)", kind="small soft", anchor="middle")
    return d.done()


def _false_panel(d: Drawing, cells: list[Any], x0: float, width: float, top: float, row: float) -> None:
    scale = LogScale(0.0003, 1.0, x0, x0 + width)
    bottom = top + row * len(cells)
    for share, words in ((0.0003, "0"), (0.001, "0.1 %"), (0.01, "1 %"), (0.1, "10 %"), (1.0, "100 %")):
        d.line(scale(share), top, scale(share), bottom, "goal" if share == 0.01 else "grid")
        kind = "small goaltext" if share == 0.01 else "small"
        d.text(scale(share), bottom + 15, words, kind=kind, anchor="middle")
    for i, cell in enumerate(cells):
        y = top + row * i + row / 2
        if i % 2 == 0:
            d.line(x0, y + row / 2, x0 + width, y + row / 2)
        for series, rule in reversed(list(enumerate(RULES))):
            if cell is not None:
                false = cell["rules"][rule]["false"]
                d.mark(scale(false["count"] / false["n"]), y, series, is_open=not false["count"])


# --- time to detection ------------------------------------------------------------------------------------------------


def detection(results: dict[str, Any]) -> str:
    """Median seconds over the failing share; a panel for each rate."""
    cells = [cell for cell in results["cells"] if cell["group"] == "errors"]
    left, panel, top, tall = 62.0, 250.0, 100.0, 270.0
    d = Drawing(left + 3 * (panel + 24) + 6, top + tall + 60, "Median time to roll back, by failing share and traffic")
    d.text(12, 22, "Median time until a failing release is rolled back (stable fails 0.5 %)", kind="title")
    _legend(d, 18, 48, 220)
    for i, rate in enumerate(RATES):
        x0 = left + i * (panel + 24)
        mine = [cell for cell in cells if cell["rate_per_s"] == rate]
        d.text(x0 + panel / 2, top - 10, _rate_words(rate), anchor="middle")
        _detection_panel(d, mine, x0, panel, top, tall, is_first=i == 0)
    return d.done()


_SECONDS = ((1, "1 s"), (3, "3 s"), (10, "10 s"), (30, "30 s"), (60, "1 min"), (300, "5 min"), (1800, "30 min"))


def _detection_panel(
    d: Drawing, cells: list[Any], x0: float, width: float, top: float, tall: float, *, is_first: bool
) -> None:
    across = LogScale(0.0085, 1.15, x0, x0 + width)
    up = LogScale(0.8, 1800, top + tall, top + 22)
    for seconds, words in _SECONDS:
        d.line(x0, up(seconds), x0 + width, up(seconds))
        if is_first:
            d.text(x0 - 6, up(seconds) + 4, words, kind="small", anchor="end")
    if is_first:
        d.text(x0 - 6, top + 8, "missed", kind="small", anchor="end")
    for share in (0.01, 0.02, 0.05, 0.2, 1.0):
        d.text(across(share), top + tall + 16, f"{share:.0%}".replace("%", " %"), kind="small", anchor="middle")
    d.text(x0 + width / 2, top + tall + 36, "share of the candidate's requests that fail", kind="small soft", anchor="middle")  # fmt: skip
    for series, rule in reversed(list(enumerate(RULES))):
        points = []
        for cell in cells:
            median = cell["rules"][rule]["delay_s"][0]
            share = float(cell["kind"].rstrip("%")) / 100
            y = top + 4 if median is None else up(median)
            points.append((across(share), y))
            d.mark(across(share), y, series, is_open=median is None)
        d.path([point for point in points if point[1] > top + 4], series)


# --- evidence ---------------------------------------------------------------------------------------------------------


def evidence(results: dict[str, Any]) -> str:
    """How E grows for one healthy and one bad rollout, with the bar."""
    curves = results["curves"]
    left, top, width, tall = 74.0, 62.0, 690.0, 250.0
    d = Drawing(left + width + 20, top + tall + 52, "Evidence that the candidate is worse, second by second")
    d.text(12, 22, "Evidence that the candidate is worse than stable, for one rollout each", kind="title")
    seconds = max(len(curve["log10_e"]) for curve in curves.values())
    bar = curves["bad"]["bar_log10"]
    low, high = -2.0, bar + 0.4

    def at(second: float, value: float) -> tuple[float, float]:
        clipped = min(high, max(low, value))
        return left + width * second / seconds, top + tall * (high - clipped) / (high - low)

    for power in range(int(low), int(high) + 1):
        y = at(0, power)[1]
        d.line(left, y, left + width, y)
        d.text(left - 8, y + 4, "1" if power == 0 else f"{10.0**power:g}", kind="small", anchor="end")
    for second in range(0, seconds + 1, 60):
        x = at(second, low)[0]
        d.text(x, top + tall + 18, f"{second:g}", kind="small", anchor="middle")
    d.text(left + width / 2, top + tall + 38, "seconds at the first weight", kind="small soft", anchor="middle")
    d.text(16, top + tall / 2, "E (log scale)", kind="small soft", anchor="middle", turn=-90)
    d.line(left, at(0, bar)[1], left + width, at(0, bar)[1], "goal")
    said = f"roll back at E = {10**bar:.0f}"
    d.text(left + width - 6, at(0, bar)[1] - 6, said, kind="small goaltext", anchor="end")
    for i, (name, series) in enumerate((("bad", 1), ("healthy", 0))):
        curve = curves[name]
        d.path([at(second + 1, value) for second, value in enumerate(curve["log10_e"])], series)
        d.mark(24 + i * 330, 44, series)
        d.text(34 + i * 330, 48, curve["words"])
    return d.done()
