"""The figures of docs/calibration.md, made from docs/calibration.json: every block from `<!-- begin NAME -->` to `<!-- end NAME -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.calibration.cells import RATES
from benchmarks.calibration.plots import RULES
from benchmarks.calibration.simulate import OURS

Found = dict[str, Any]
Results = dict[str, Any]
GOAL = 0.01


def write_page(results: Results, page: Path) -> None:
    """Replaces the page's blocks; the words between them stay as they are."""
    page.write_text(filled(results, page.read_text()))


def filled(results: Results, text: str, blocks: Mapping[str, Callable[[Results], str]] | None = None) -> str:
    """The page with every block made anew. Raises KeyError for a block that nobody makes."""
    makers = BLOCKS if blocks is None else blocks

    def made(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- begin {name} -->\n{makers[name](results)}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (?P<name>[\w ]+) -->.*?<!-- end (?P=name) -->", made, text, flags=re.S)


def _of(results: Results, group: str) -> list[Found]:
    return [cell for cell in results["cells"] if cell["group"] == group]


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float) -> str:
    """With as many digits as 2,000 runs carry."""
    return f"{share * 100:.3g} %" if share >= 0.1 else f"{share * 100:.2g} %"


def _share(found: Found, *, interval: bool = False) -> str:
    said = percent(found["count"] / found["n"])
    return f"{said} ({found['low'] * 100:.2g}–{found['high'] * 100:.2g})" if interval else said


def _judged(found: Found) -> str:
    """A share with its interval, bold where it misses the goal."""
    said = _share(found, interval=True)
    return f"**{said}**" if found["count"] / found["n"] > GOAL else said


def _seconds(pair: list[float | None]) -> str:
    return " / ".join("never" if one is None else f"{one:.0f}" for one in pair)


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


# --- blocks -----------------------------------------------------------------------------------------------------------


def summary(results: Results) -> str:
    """Goals and what came of them, counted."""
    healthy = _of(results, "healthy") + _of(results, "held")
    over = [cell for cell in healthy if _false(cell) > GOAL]
    sure = sum(cell["rules"][OURS]["false"]["high"] <= GOAL for cell in healthy)
    lines = [
        f"- **False rollbacks ≤ 1 %**: kept in {len(healthy) - len(over)} of {len(healthy)} healthy cells; in {sure} of them the whole "
        f"95 % interval lies below 1 %. {_named(over)}",
        f"- **Shared incidents rolled back ≤ 1 %**: {_incidents(healthy, 'incident, 5 %')} {_incidents(healthy, 'incident, 50 %')}",
        f"- **Detection no worse than the goals**: {_versus_goals(results)}",
        f"- **The other rules**, in the same {len(healthy)} cells: {_others(healthy)}.",
    ]
    beyond = [cell for cell in _of(results, "stress") if _false(cell) > GOAL]
    if beyond:
        lines.append(f"- **Known limits**, beyond what is promised. {_named(beyond)}")
    return "\n".join(lines)


def _false(cell: Found, rule: str = OURS) -> float:
    found = cell["rules"][rule]["false"]
    return float(found["count"] / found["n"])


def _named(over: list[Found]) -> str:
    """The cells in which more were rolled back, with the reasons."""
    if not over:
        return "None is missed."
    return f"Over it: {'; '.join(f'{cell_name(cell)}: {percent(_false(cell))} ({_reasons(cell)})' for cell in over)}."


def _incidents(cells: list[Found], kind: str) -> str:
    mine = [cell for cell in cells if cell["kind"].startswith(kind)]
    worst = max(mine, key=_false)
    frozen = sorted(cell["frozen_both_arms_bad"]["count"] / cell["runs"] for cell in mine)
    return (
        f"at {kind.split(', ')[1]} in both arms, {percent(_false(worst))} in the worst of {len(mine)} cells ({cell_name(worst)}); "
        f"held with `both_arms_bad` in {percent(frozen[0])} to {percent(frozen[-1])} of the rollouts, in the others no breach came near."
    )


def _others(cells: list[Found]) -> str:
    said = [
        f"{words} keeps 1 % in {sum(_false(cell, rule) <= GOAL for cell in cells)}"
        for rule, words in RULES.items()
        if rule != OURS
    ]
    return ", ".join(said)


#: Median seconds at 2, 5 and 20 % failures: the goals, from a simulation of the bare test (alpha 1 %, nothing tolerated).
GOALS_S = {1.0: (461, 98, 17), 10.0: (47, 11, 3)}
GOALS_CLUMPED_S = {10.0: (377, 80, 14)}


def _versus_goals(results: Results) -> str:
    said = []
    for group, goals in (
        ("bare", GOALS_S),
        ("bare clumped", GOALS_CLUMPED_S),
        ("errors", GOALS_S),
        ("clumped", GOALS_CLUMPED_S),
    ):
        cells = [cell for cell in _of(results, group) if cell["kind"] in {"2%", "5%", "20%"}]
        pairs = [
            (cell["rules"][OURS]["delay_s"][0], goals[cell["rate_per_s"]][["2%", "5%", "20%"].index(cell["kind"])])
            for cell in cells
            if cell["rate_per_s"] in goals
        ]
        kept = sum(ours is not None and ours <= goal for ours, goal in pairs)
        said.append(f"{GROUPS[group]} kept in {kept} of {len(pairs)} cells")
    return "; ".join(said) + "."


GROUPS = {
    "bare": "with the goals' own settings",
    "bare clumped": "with these and clumps of 8",
    "errors": "with `standard`",
    "clumped": "with `standard` and clumps of 8",
}


def cell_name(cell: Found) -> str:
    """`clumps of 8 at 10/s`."""
    held = ", half an hour at 5 %" if cell["group"] == "held" else ""
    return f"{cell['kind']} at {cell['rate_per_s']:g}/s{held}"


def false(*groups: str) -> Callable[[Results], str]:
    """Rows of kinds, with ours at every rate and the other rules beside it."""

    def made(results: Results) -> str:
        cells = [cell for group in groups for cell in _of(results, group)]
        rows = []
        for cell in sorted(cells, key=lambda cell: [one["kind"] for one in cells].index(cell["kind"])):
            rules = cell["rules"]
            others = [_share(rules[rule]["false"]) for rule in RULES if rule != OURS]
            rows.append([cell["kind"], f"{cell['rate_per_s']:g}", _judged(rules[OURS]["false"]), *others])
        words = list(RULES.values())
        return _table(["traffic", "req/s", f"{words[0]} (95 % interval)", *words[1:]], rows)

    return made


def ends(results: Results) -> str:
    """How whole healthy rollouts ended, and how long they took."""
    rows = [
        [
            cell["kind"],
            f"{cell['rate_per_s']:g}",
            _share(cell["promoted"]),
            " / ".join("–" if one is None else f"{one / 60:.0f}" for one in cell["promoted_after_s"]),
            _share(cell["frozen_both_arms_bad"]),
            _reasons(cell),
        ]
        for cell in _sorted(_of(results, "healthy") + _of(results, "stress"))
    ]
    return _table(
        [
            "traffic",
            "req/s",
            "promoted",
            "after, min: median / 90 %",
            "held once with `both_arms_bad`",
            "rolled back by",
        ],
        rows,
    )


def _sorted(cells: list[Found]) -> list[Found]:
    kinds = list(dict.fromkeys(cell["kind"] for cell in cells))
    return sorted(cells, key=lambda cell: kinds.index(cell["kind"]))


def _reasons(cell: Found) -> str:
    return ", ".join(f"`{code}` {count}" for code, count in cell["reasons"].items()) or "–"


def found(*groups: str) -> Callable[[Results], str]:
    """How soon each rule finds a fault, what it misses, and what that costs."""

    def made(results: Results) -> str:
        rows = []
        for cell in _sorted([cell for group in groups for cell in _of(results, group)]):
            ours = cell["rules"][OURS]
            rows.append(
                [
                    cell["kind"].replace("%", " %").replace("  ", " "),
                    f"{cell['rate_per_s']:g}",
                    f"**{_seconds(ours['delay_s'])}**",
                    _share(ours["missed"]),
                    " / ".join(_count(one) for one in ours["bad_requests"]),
                    *(_rival(cell["rules"][rule]) for rule in RULES if rule != OURS),
                ]
            )
        words = list(RULES.values())
        header = ["fault", "req/s", "s to roll back: median / 90 %", "missed", "bad requests: median / 90 %"]
        return _table([*header, *(f"{name}: s, missed" for name in words[1:])], rows)

    return made


def _rival(rule: Found) -> str:
    """Median seconds; the missed share where there is one."""
    median, missed = rule["delay_s"][0], rule["missed"]
    said = "never" if median is None else f"{median:.0f}"
    return f"{said}, {_share(missed)}" if missed["count"] else said


def early(results: Results) -> str:
    """Late onset: detections after it, and false alarms in the half hour before it."""
    rows = [
        [
            cell["kind"].replace("%", " %"),
            f"{cell['rate_per_s']:g}",
            f"**{_seconds(ours['delay_s'])}**",
            _share(ours["missed"]),
            _count(ours["bad_requests"][0]),
            _share(ours["false"]),
            _seconds(_at_once(results, cell)),
        ]
        for cell in _sorted(_of(results, "late"))
        for ours in [cell["rules"][OURS]]
    ]
    header = [
        "fault from minute 30 on",
        "req/s",
        "s after its onset: median / 90 %",
        "missed in half an hour",
        "bad requests",
    ]
    return _table([*header, "false alarm before it", "the same fault from the start: s"], rows)


def _at_once(results: Results, late: Found) -> list[float | None]:
    same = [c for c in _of(results, "errors") if (c["kind"], c["rate_per_s"]) == (late["kind"], late["rate_per_s"])]
    return same[0]["rules"][OURS]["delay_s"] if same else [None, None]


def whole(results: Results) -> str:
    """What becomes of mild faults when the weights may grow."""
    rows = [
        [
            cell["kind"].replace("%", " %"),
            f"{cell['rate_per_s']:g}",
            percent(1 - ours["missed"]["count"] / ours["missed"]["n"]),
            _seconds(ours["delay_s"]),
            _count(ours["bad_requests"][0]),
            _share(cell["promoted"]),
        ]
        for cell in _sorted(_of(results, "whole"))
        for ours in [cell["rules"][OURS]]
    ]
    header = ["candidate fails", "req/s", "rolled back", "after, s: median / 90 %", "bad requests (median)", "promoted"]
    return _table(header, rows)


def whole_late(results: Results) -> str:
    """Faults that begin in minute 20 of a whole rollout."""
    rows = [
        [
            cell["kind"].replace("%", " %"),
            f"{cell['rate_per_s']:g}",
            f"**{_seconds(ours['delay_s'])}**",
            _share(ours["missed"]),
            _count(ours["bad_requests"][0]),
            _share(ours["false"]),
            _reasons(cell),
        ]
        for cell in _sorted(_of(results, "whole, late"))
        for ours in [cell["rules"][OURS]]
    ]
    header = ["fault from minute 20 on", "req/s", "s after its onset: median / 90 %", "missed", "bad requests (median)"]
    return _table([*header, "rolled back before", "rolled back by"], rows)


def versus_goals(results: Results) -> str:
    """Median seconds beside the goals."""
    rows = []
    for rate in RATES:
        for i, kind in enumerate(("2%", "5%", "20%")):
            row = [kind.replace("%", " %"), f"{rate:g}", str(GOALS_S[rate][i]) if rate in GOALS_S else "–"]
            row += [_median(results, group, kind, rate) for group in ("bare", "errors")]
            row.append(str(GOALS_CLUMPED_S[rate][i]) if rate in GOALS_CLUMPED_S else "–")
            row += [_median(results, group, kind, rate) for group in ("bare clumped", "clumped")]
            rows.append(row)
    header = ["candidate fails", "req/s", "goal, s", "same settings, s", "`standard`, s", "goal with clumps of 8, s"]
    return _table([*header, "same settings, s", "`standard`, s"], rows)


def _median(results: Results, group: str, kind: str, rate: float) -> str:
    cells = [c for c in _of(results, group) if (c["kind"], c["rate_per_s"]) == (kind, rate)]
    median = cells[0]["rules"][OURS]["delay_s"][0] if cells else None
    return "never" if median is None else f"{median:.0f}"


def guide(results: Results) -> str:
    """For a release manager: rows of traffic, columns of faults."""
    rows = []
    for rate in RATES:
        row = [f"{rate:g}", f"{rate * 20:g}"]
        for kind in ("1%", "2%", "5%", "20%", "100%"):
            cell = next(c for c in _of(results, "errors") if (c["kind"], c["rate_per_s"]) == (kind, rate))
            ours = cell["rules"][OURS]
            median, bad = ours["delay_s"][0], ours["bad_requests"][0]
            row.append("not within 30 min" if median is None else f"{_duration(median)}, {bad:.0f} bad")
        rows.append(row)
    header = ["req/s on the candidate", "req/s in all", *(f"{share} % fail" for share in (1, 2, 5, 20, 100))]
    return _table(header, rows)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def presets(results: Results) -> str:
    """The other presets in short."""
    rows = []
    for preset in ("careful", "fast"):
        for cell in _of(results, f"preset {preset}"):
            ours = cell["rules"][OURS]
            is_healthy = "delay_s" not in ours
            rows.append(
                [
                    f"`{preset}`",
                    "healthy, " + cell["kind"] if is_healthy else cell["kind"].replace("%", " % fail"),
                    _judged(ours["false"]) if is_healthy else "",
                    "" if is_healthy else _seconds(ours["delay_s"]),
                    "" if is_healthy else _share(ours["missed"]),
                ]
            )
    header = ["preset", "traffic, 10 req/s on the candidate at first", "false rollback (95 % interval)"]
    return _table([*header, "s to roll back: median / 90 %", "missed"], rows)


def made_by(results: Results) -> str:
    """Which command, how many runs, which seed, how long."""
    took = f"{results['took_s'] / 60:.0f} minutes on two processor cores"
    return (
        f"`{results['command']}` · {results['runs']:,} rollouts in each of {len(results['cells'])} cells · seed {results['seed']} "
        f"· numpy {results['numpy']} · {took}"
    )


BLOCKS: dict[str, Callable[[Results], str]] = {
    "made by": made_by,
    "summary": summary,
    "guide": guide,
    "false": false("healthy"),
    "stress": false("stress"),
    "held": false("held"),
    "ends": ends,
    "errors": found("errors"),
    "clumped": found("clumped"),
    "low base": found("low base"),
    "slow": found("slow"),
    "strict": found("slow, strict"),
    "late": early,
    "whole": whole,
    "whole late": whole_late,
    "goals": versus_goals,
    "presets": presets,
}
