"""`sluicegate diagnose MODEL` and `sluicegate diagnose ROLLOUT`: what changed, or what happened, and on what evidence."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.output import Output, short
from sluicegate.cli.rollout import PRODUCTION, name_of, status_line
from sluicegate.cli.session import connect


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "diagnose",
        help="Explain a model's traffic, or a rollout",
        description="For a model: the start of its trouble, the affected tenants, the stage, and changes at that time. For a rollout, by "
        "its number: the decisions with their reasons, both releases' traffic, and the time of each part of a rollback.",
    )
    parser.add_argument("subject", metavar="MODEL|ROLLOUT")
    parser.add_argument("--environment", default=PRODUCTION)
    parser.add_argument("--since", default="1h", help="an instant, or 1h")
    parser.add_argument("--baseline", default="", help="how much is read before --since, as 1h")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    return _rollout(arguments, output) if arguments.subject.isdecimal() else _model(arguments, output)


def _model(arguments: argparse.Namespace, output: Output) -> int:
    params = {name: getattr(arguments, name) for name in ("environment", "since", "baseline")}
    with connect(arguments.server) as client:
        found = client.get(f"/models/{arguments.subject}/diagnosis", **params)
    output.result(found, explained(found))
    return exits.OK


def explained(found: dict[str, Any]) -> list[str]:
    told = [f"{found['model']} in {found['environment']}: {found['answer']}"]
    for number, one in enumerate(found["hypotheses"], 1):
        told += ["", f"{number}. {one['kind']}: {one['subject']} ({one['score']:.2f})"]
        told += [f"   {sign} {text}" for sign, name in _SIGNS for text in one[name]]
        if one["next_step"]:
            told.append(f"   Next: {one['next_step']}")
    if load := found["load"]:
        capacity = "unknown" if load["capacity_per_s"] is None else f"{load['capacity_per_s']:g}/s"
        full = ", at capacity" if load["at_capacity"] else ""
        told += [
            "",
            f"Load: {load['before_per_s']:.1f}/s before, {load['now_per_s']:.1f}/s now; capacity {capacity}{full}",
        ]
    return [*told, "", *(f"Unknown: {one}" for one in found["missing"])]


_SIGNS = (("+", "evidence_for"), ("-", "against"), ("?", "unknown"))


def _rollout(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        path = f"/rollouts/{arguments.subject}"
        view = client.get(path)
        decisions = sorted(client.pages(f"{path}/decisions"), key=lambda d: str(d["at"]))
        observations = sorted(client.pages(f"{path}/observations"), key=lambda o: int(o["tick"]))
    story = {"rollout": view, "decisions": decisions, "totals": totals(view, observations), "clock": clock(view)}
    output.result(story, lines(view, decisions, observations))
    return exits.OK


def lines(view: dict[str, Any], decisions: list[dict[str, Any]], observations: list[dict[str, Any]]) -> list[str]:
    candidate, stable = name_of(view.get("candidate")), name_of(view.get("stable")) or "nothing"
    told = [f"Rollout {view['id']}: {candidate} against {stable} in {view.get('environment')}", status_line(view), ""]
    told += [
        f"{_time(d['at'])}  {d['action']}  {d['reason']}" + (f"  [{d['actor']}]" if d.get("actor") else "")
        for d in decisions
    ]
    told.append("")
    for arm, counts in totals(view, observations).items():
        bad = ", ".join(f"{count} bad by {guard}" for guard, count in sorted(counts["bad"].items()))
        told.append(f"{arm}: {counts['attempts']} attempts" + (f", {bad}" if bad else ""))
    if blind := sum(1 for o in observations if o.get("problem")):
        kinds = sorted({o["problem"] for o in observations if o.get("problem")})
        told.append(f"{blind} of {len(observations)} ticks could not be judged: {', '.join(kinds)}")
    told += [f"{name.replace('_', ' ')}: {seconds:.2f} s" for name, seconds in clock(view).items()]
    if report := view.get("report"):
        told.append(f"gates report {short(report if isinstance(report, str) else report.get('digest'))}")
    return told


def totals(view: dict[str, Any], observations: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """{"candidate": {attempts, bad: {guard: n}}, "stable": …} over all ticks; without counters beside the guards."""
    guards = {guard["name"] for guard in view["guards"]}
    found: dict[str, dict[str, Any]] = {}
    for arm in ("candidate", "stable"):
        bad: dict[str, int] = {}
        for observation in observations:
            for guard, count in (observation[arm].get("bad") or {}).items():
                if guard in guards:
                    bad[guard] = bad.get(guard, 0) + int(count)
        found[arm] = {"attempts": sum(int(o[arm].get("attempts", 0)) for o in observations), "bad": bad}
    return found


def clock(view: dict[str, Any]) -> dict[str, float]:
    """Seconds between the measured instants of a rollback; only those that are known."""
    source = {**view, **(view.get("clock") or {})}
    at = {name: _instant(source.get(name)) for name in ("first_bad_at", "decided_at", "zero_at", "confirmed_at")}
    pairs = {
        "fault_to_decision": ("first_bad_at", "decided_at"),
        "decision_to_zero_weight": ("decided_at", "zero_at"),
        "fault_to_zero_weight": ("first_bad_at", "zero_at"),
        "decision_to_confirmed": ("decided_at", "confirmed_at"),
    }
    known = {}
    for name, (begin, end) in pairs.items():
        first, last = at[begin], at[end]
        if first is not None and last is not None:
            known[name] = (last - first).total_seconds()
    return known


def _instant(value: Any) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) and value else None


def _time(value: str) -> str:
    instant = _instant(value)
    return instant.strftime("%H:%M:%S") if instant else value
