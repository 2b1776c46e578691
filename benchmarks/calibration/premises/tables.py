"""The tables of docs/premises.json in Markdown: one for each group of scenarios."""

from __future__ import annotations

from typing import Any

from benchmarks.calibration.page import percent
from benchmarks.calibration.premises.walking import OTHERS
from benchmarks.calibration.simulate import OURS

Found = dict[str, Any]
TITLES = {
    "lag": "Failures end at once, answers later",
    "gateways": "Two gateways of different regions, one follows weights late",
    "bad client": "A client whose every request fails",
    "servers": "Servers with spells of their own",
    "cold": "A new server that warms up",
    "fix": "Stable is over its objective of 1 %",
    "alike": "Both arms alike, or just within the tolerance",
    "poison": "Requests that fail wherever they go, and are retried",
    "history": "Stable failed in bursts before the start",
    "clumps late": "A fault that begins late, in clumps",
    "fault": "Faults that nothing hides",
}
NAMES = {"argo_0": "Argo-shaped, limit 0", "argo_3": "Argo-shaped, limit 3", "flagger_5": "Flagger-shaped, 5 in all"}


def of_group(found: list[Found]) -> str:
    """A table of the healthy ones and one of the faulty ones, as far as there are any."""
    healthy = [one for one in found if "bad_requests" not in one]
    return "\n\n".join(table(part) for table, part in ((_healthy, healthy), (_faulty, _rest(found))) if part)


def _rest(found: list[Found]) -> list[Found]:
    return [one for one in found if "bad_requests" in one]


def _healthy(found: list[Found]) -> str:
    header = ["scenario", "req/s", "n", "rolled back (95 % interval)", "why", "promoted", "held for 10 s or more by"]
    rows = [
        [
            one["kind"],
            f"{one['rate_per_s']:g}",
            str(one["runs"]),
            _share(one["rules"][OURS]["false"], interval=True),
            _codes(one["reasons"]),
            _share(one["promoted"]),
            _codes(one["held_by"]),
            *(_share(one["rules"][rule]["false"]) for rule in OTHERS),
        ]
        for one in found
    ]
    return _table([*header, *(NAMES[rule] for rule in OTHERS)], rows)


def _faulty(found: list[Found]) -> str:
    header = [
        "scenario",
        "req/s",
        "n",
        "found after, median / 95 %",
        "bad requests",
        "missed (95 % interval)",
        "promoted",
    ]
    header += ["too soon", "why", "held for 10 s or more by"]
    rows = [
        [
            one["kind"],
            f"{one['rate_per_s']:g}",
            str(one["runs"]),
            _delay(one["rules"][OURS]),
            _pair(one["bad_requests"]),
            _share(one["rules"][OURS]["missed"], interval=True),
            _share(one["promoted"]),
            _share(one["rules"][OURS]["false"]),
            _codes(one["reasons"]),
            _codes(one["held_by"]),
            *(f"{_delay(one['rules'][rule])}, missed {_share(one['rules'][rule]['missed'])}" for rule in OTHERS),
        ]
        for one in found
    ]
    return _table([*header, *(NAMES[rule] for rule in OTHERS)], rows)


# --- fields -----------------------------------------------------------------------------------------------------------


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


def _share(found: Found, *, interval: bool = False) -> str:
    """A share of the runs, with its 95 % interval in percent; a dash where there was none to tell."""
    if not found["n"]:
        return "–"
    said = percent(found["count"] / found["n"])
    return f"{said} ({found['low'] * 100:.2g}–{min(99.9, found['high'] * 100):.3g})" if interval else said


def _pair(values: list[float | None]) -> str:
    return " / ".join("never" if one is None else f"{one:.0f}" for one in values)


def _delay(rule: Found) -> str:
    return f"{_pair(rule['delay_s'])} s" if rule["missed"]["n"] else "–"


def _codes(counts: dict[str, int]) -> str:
    return ", ".join(f"`{code}` {count}" for code, count in counts.items() if code != "need_more") or "–"
