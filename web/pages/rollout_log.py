"""A rollout's decisions as a log that can be read: seconds since the beginning, and equal holds folded together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from web.plots import Unit, text_of

HOLD = "hold"


@dataclass(frozen=True)
class Entry:
    """`after`: how long after the beginning, as `+39.5 s`."""

    at: datetime
    after: str
    action: str
    code: str
    reason: str
    actor: str


@dataclass(frozen=True)
class Entries:
    """Successive entries of one kind, the newest first. `is_folded`: several that only hold."""

    entries: tuple[Entry, ...]
    is_folded: bool

    @property
    def span(self) -> str:
        return f"{self.entries[-1].after} to {self.entries[0].after}"


def log_of(decisions: Sequence[dict[str, Any]], began: datetime) -> list[Entries]:
    """Decisions as `view_of` has them (the newest first), folded."""
    entries = [
        Entry(
            at := datetime.fromisoformat(one["at"]),
            after(at, began),
            one["action"],
            one["code"],
            one["reason"],
            one["actor"],
        )
        for one in decisions
    ]
    found = []
    for is_hold, run in groupby(entries, key=lambda one: one.action == HOLD):
        together = tuple(run)
        found += (
            [Entries(together, True)] if is_hold and len(together) > 1 else [Entries((one,), False) for one in together]
        )
    return found


def after(at: datetime, began: datetime) -> str:
    """`+39.5 s`: seconds up to ten minutes, as on-call counts them, then minutes and hours."""
    seconds = (at - began).total_seconds()
    if abs(seconds) < 600:
        return f"{seconds:+.1f} s"
    return f"{'+' if seconds > 0 else '-'}{text_of(abs(seconds), Unit.DURATION)}"


def at_decision(decisions: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The counts of the guard that rolled back, at that moment: later answers would add to them, and tables show more.

    `{"guard", "counter", "bad", "attempts", "bad_stable", "stable"}`, the counts of the decision's own sentence. `counter` is the guard's
    name or another of its thresholds. None if evidence rolled nothing back.
    """
    for one in decisions:
        name = one["facts"].get("guard")
        counted = one["facts"].get("guards", {}).get(name)
        if one["action"] == "roll_back" and counted:
            counter, counts = name, [counted[each] for each in ("bad_candidate", "candidate", "bad_stable", "stable")]
            if one["code"] == "worse_than_stable" and "convinced" in counted:
                counter, counts = (
                    counted["convinced"]["counter"],
                    [round(each) for each in counted["convinced"]["counts"]],
                )
            names = ("bad", "attempts", "bad_stable", "stable")
            return {"guard": name, "counter": counter, **dict(zip(names, counts, strict=True))}
    return None


def counted_at_zero(live: Mapping[str, Any]) -> dict[str, Any] | None:
    """The counts behind the clock of `live`: those of the first crossing, else those of the rollback; None without evidence."""
    for crossing in live["second_look"]["crossings"]:
        counts = crossing["counts"]
        names = {"bad": "bad_candidate", "attempts": "candidate", "bad_stable": "bad_stable", "stable": "stable"}
        return {"counter": crossing["words"], **{name: counts[own] for name, own in names.items()}} if counts else None
    return at_decision(live["decisions"])


def as_decided(guard: dict[str, Any], decided: dict[str, Any] | None) -> dict[str, Any]:
    """The guard; a guard that rolled back as of that moment. Its evidence begins anew afterwards, and would look fine."""
    if decided is None or decided["guard"] != guard["name"]:
        return guard
    if decided["counter"] != guard["name"]:
        return {**guard, "has_rolled_back": True, "worse_progress": 1.0, "fine_progress": 0.0, "is_fine": False}
    attempts, stable = decided["attempts"], decided["stable"]
    return {
        **guard, "has_rolled_back": True, "bad_candidate": decided["bad"], "candidate": attempts,
        "bad_stable": decided["bad_stable"], "stable": stable,
        "rate_candidate": decided["bad"] / attempts if attempts else None,
        "rate_stable": decided["bad_stable"] / stable if stable else None,
        "worse_progress": 1.0, "fine_progress": 0.0, "is_fine": False,
    }  # fmt: skip
