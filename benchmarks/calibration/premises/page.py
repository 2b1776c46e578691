"""The figures of docs/premises.md, made from docs/premises.json: every block from `<!-- begin NAME -->` to `<!-- end NAME -->`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.calibration.page import GOAL, filled, percent
from benchmarks.calibration.premises.tables import NAMES, TITLES, of_group
from benchmarks.calibration.premises.walking import OTHERS
from benchmarks.calibration.simulate import OURS

Found = dict[str, Any]


def write_page(results: Found, page: Path) -> None:
    """Replaces the page's blocks; the words between them stay as they are."""
    blocks = {"made by": made_by, "summary": summary} | {group: partial(_table, group) for group in TITLES}
    page.write_text(filled(results, page.read_text(), blocks))


def made_by(results: Found) -> str:
    scenarios = results["scenarios"]
    rollouts, minutes = sum(one["runs"] for one in scenarios), round(results["took_s"] / 60)
    return (
        f"`{results['command']}` · {rollouts:,} rollouts in {len(scenarios)} scenarios · seed {results['seed']} · "
        f"numpy {results['numpy']} · {minutes} minutes on two processor cores"
    )


def summary(results: Found) -> str:
    """How many scenarios each rule gets right, and which ones the product does not."""
    healthy = [one for one in results["scenarios"] if "bad_requests" not in one]
    faulty = [one for one in results["scenarios"] if "bad_requests" in one]
    over = [one for one in healthy if _false(one, OURS) > GOAL]
    missed = [one for one in faulty if _missed(one, OURS) > 0]
    calm, sure = len(healthy) - len(over), len(faulty) - len(missed)
    return "\n".join(
        [
            f"- **Healthy releases rolled back in at most 1 %**: in {calm} of {len(healthy)} scenarios. {_listed(over, _false)}",
            f"- **Faults found each time** within what was watched: in {sure} of {len(faulty)} scenarios. {_listed(missed, _missed)}",
            f"- **The other rules**: {'; '.join(_other(rule, healthy, faulty) for rule in OTHERS)}.",
        ]
    )


def _false(one: Found, rule: str) -> float:
    found = one["rules"][rule]["false"]
    return float(found["count"] / found["n"])


def _missed(one: Found, rule: str) -> float:
    found = one["rules"][rule]["missed"]
    return float(found["count"] / found["n"]) if found["n"] else 0.0


def _listed(some: list[Found], share: Callable[[Found, str], float]) -> str:
    """The scenarios with the share of each; by group, as the tables have them."""
    if not some:
        return "None is missed."
    said = [f"{one['group']}, {one['kind']} at {one['rate_per_s']:g}/s: {percent(share(one, OURS))}" for one in some]
    return f"Not in: {'; '.join(said)}."


def _other(rule: str, healthy: list[Found], faulty: list[Found]) -> str:
    calm = sum(_false(one, rule) <= GOAL for one in healthy)
    sure = sum(_missed(one, rule) == 0 for one in faulty)
    return f"{NAMES[rule]} leaves healthy releases alone in {calm}, and finds the fault each time in {sure}"


def _table(group: str, results: Found) -> str:
    return of_group([one for one in results["scenarios"] if one["group"] == group])
