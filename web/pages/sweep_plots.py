"""The plots of a capacity gate's sweep: what each batching did at the greatest rate, and how much more or less than the release's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from validators.core.batch_sweep import words
from web.plots import Axis, Estimate, Panel, Plot, Series, Unit, forest, panels

#: Looks of lines: a policy names four batch sizes at most, and the release's own may be another.
_LOOKS = ("s1", "s2", "s3", "s4", "stable")


def sweep_plots(sweep: Mapping[str, Any]) -> list[Plot]:
    """Those that can be drawn; none where nothing was measured."""
    rows = [row for row in sweep.get("rows") or () if row["points"]]
    return [plot for plot in (batching_plot(rows), difference_plot(rows)) if plot is not None]


def batching_plot(rows: Sequence[Mapping[str, Any]]) -> Plot | None:
    """Answers in time, p95 and items in a run: over the queue delay, a line for each batch size, or over the size alone."""
    once = [row for at, row in enumerate(rows) if not (row["is_own"] and at)]  # not the release's own again
    if len(once) < 2:
        return None
    is_by_delay = len({row["max_queue_delay_us"] for row in once}) > 1
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(once, key=lambda row: (row["max_batch_size"], row["max_queue_delay_us"] or 0)):
        lines.setdefault(f"max_batch_size {row['max_batch_size']}" if is_by_delay else "each", []).append(row)

    def drawn(read: Callable[[Mapping[str, Any]], float | None]) -> list[Series]:
        return [
            Series(name, [(_across(row, is_by_delay), read(row["points"][-1])) for row in own], look)
            for (name, own), look in zip(lines.items(), _LOOKS, strict=False)
        ]

    def p95_s(point: Mapping[str, Any]) -> float | None:
        p95_ms = point["latency_ms"]["p95"]
        return None if p95_ms is None else p95_ms / 1000

    last = once[0]["points"][-1]["rate_per_s"]
    return panels(
        "Other batchings",
        f"At {last:g} requests a second, the greatest rate that was asked, the same requests each.",
        [
            Panel(drawn(lambda point: point["goodput_per_s"]), Axis("in time a second"), height=110),
            Panel(drawn(p95_s), Axis("p95", Unit.DURATION), height=110),
            Panel(drawn(lambda point: point["mean_batch"]), Axis("items in a run"), height=90),
        ],
        x=Axis("max_queue_delay_us" if is_by_delay else "max_batch_size"),
        name="sweep",
    )


def difference_plot(rows: Sequence[Mapping[str, Any]]) -> Plot | None:
    """How much more each answers in time than the release's own, with the interval; None where nothing was compared."""
    found = []
    for row in rows:
        again = ", again" if row["is_own"] else ""
        for point in row["points"]:
            if more := point["more_per_s"]:
                look = "ok" if more["low"] > 0 else "bad" if more["high"] < 0 else "idle"
                label = f"{row['max_batch_size']} items, {_waiting(row)}{again}, {point['rate_per_s']:g}/s"
                found.append(Estimate(label, more["value"], more["low"], more["high"], look, words(row)))
    if not found:
        return None
    return forest(
        "More in time than by its own batching",
        "Answers within the objective a second, less those of the release's own batching: right of 0 is better, and 0 within the "
        "interval is no difference.",
        found,
        unit=Unit.NUMBER,
        x_label="answers a second",
        looks={"ok": "better", "bad": "worse", "idle": "not told apart"},
        name="sweep-more",
    )


def _across(row: Mapping[str, Any], is_by_delay: bool) -> float:
    """A release without a batcher waits for nobody."""
    return float(row["max_queue_delay_us"] or 0) if is_by_delay else float(row["max_batch_size"])


def _waiting(row: Mapping[str, Any]) -> str:
    delay_us = row["max_queue_delay_us"]
    return "no batcher" if delay_us is None else f"{delay_us} µs"
