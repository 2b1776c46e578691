"""The demo's report: what happened, from the API's records and the users' log. Everything in it was measured."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sluicegate.cli.diagnose import clock, totals
from sluicegate.cli.rollout import name_of
from sluicegate.demo.traffic import Record

#: How each release's rollout must end; None: there must be no rollout, and never a request.
EXPECTED: dict[str, str | None] = {
    "r1": "promoted",
    "r2": "promoted",
    "r3": None,
    "r4": "rolled_back",
    "r5": "rolled_back",
}
_SHOWN_FAILURES = 5


def read_log(path: Path) -> list[Record]:
    """The users' requests in the order in which they ended. A line cut short by a kill is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(Record(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return records


def of_users(records: Iterable[Record]) -> list[Record]:
    """Without those that measured what can be served: they wait for each other's answers, as no user does."""
    return [record for record in records if not record.is_measuring]


def client_part(records: Sequence[Record]) -> dict[str, Any]:
    """What the users saw. `failed` counts every answer that was no 200 (gRPC OK) or was wrong.

    So many failed of the measurement too, where they were not shed: nothing may fail here. All else is of users alone.
    """
    failures = [record for record in records if not (record.ok or (record.is_measuring and record.is_shed))]
    records = of_users(records)
    latencies = sorted(record.latency_ms for record in records)
    answered = Counter(record.release or "unknown" for record in records if record.ok)
    return {
        "requests": len(records),
        "failed": len(failures),
        "p50_ms": percentile(latencies, 0.50),
        "p99_ms": percentile(latencies, 0.99),
        "by_release": dict(sorted(answered.items())),
        "by_protocol": dict(sorted(Counter(record.protocol for record in records).items())),
        "failures": [{"at": _utc(r.at), "release": r.release, "error": r.error} for r in failures[:_SHOWN_FAILURES]],
    }


def percentile(ordered: Sequence[float], quantile: float) -> float | None:
    """The nearest-rank percentile in ms, rounded to 0.1; None for nothing."""
    if not ordered:
        return None
    rank = max(0, min(len(ordered) - 1, -(-int(quantile * 1e6) * len(ordered) // 1_000_000) - 1))
    return round(ordered[rank], 1)


def release_part(release: dict[str, Any], gate_run: dict[str, Any] | None) -> dict[str, Any]:
    gates = [] if gate_run is None else gate_run.get("gates", [])
    return {
        "number": release["number"],
        "digest": release["digest"],
        "state": release["state"],
        "gates": [{"gate": g["gate"], "verdict": g["verdict"] or "skipped", "reason": g["reason"]} for g in gates],
        "envelope": [
            {name: row[name] for name in ("field", "declared", "measured", "unit", "verdict")}
            for gate in gates
            for row in (gate.get("evidence") or {}).get("envelope", ())
            if row["declared"] is not None
        ],
    }


def rollout_part(
    view: dict[str, Any], observations: Sequence[dict[str, Any]], records: Iterable[Record]
) -> dict[str, Any]:
    """One rollout: its steps as the engine observed them, and the clock of its rollback with the users' cross-check."""
    counts = totals(view, observations)["candidate"]
    measured = clock(view)
    candidate = name_of(view.get("candidate"))
    rolled_back = view["state"] == "rolled_back"
    return {
        "candidate": candidate,
        "stable": name_of(view.get("stable")) or None,
        "outcome": view["state"],
        "reason": view.get("reason", ""),
        "started_at": view.get("started_at") or view.get("created_at"),
        "ended_at": view.get("ended_at"),
        "steps": steps(view, observations),
        "fault_to_zero_weight_s": _rounded(measured.get("fault_to_zero_weight")) if rolled_back else None,
        "decision_to_zero_weight_s": _rounded(measured.get("decision_to_zero_weight")) if rolled_back else None,
        "fault_to_decision_s": _rounded(measured.get("fault_to_decision")) if rolled_back else None,
        "last_candidate_request_after_decision_s": _last_request_after(view, candidate, records)
        if rolled_back
        else None,
        "candidate_attempts": counts["attempts"],
        # an attempt that timed out is an error and slow too, so the guards' counts overlap: the largest is the least there were
        "bad_candidate_attempts": max(counts["bad"].values(), default=0),
        "bad_by_guard": counts["bad"],
    }


def steps(view: dict[str, Any], observations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """[{weight_pct, at}]: each weight and when a tick first saw it; each 0, when gateways acknowledged it."""
    found: list[dict[str, Any]] = []
    before = 0.0
    for observation in sorted(observations, key=lambda o: int(o["tick"])):
        weight = int(observation["weight_bp"]) / 100
        if weight > 0 and weight != before:
            found.append({"weight_pct": weight, "at": observation["at"]})
        before = weight
    clock = view.get("clock") or view
    second = view.get("second_look") or {}
    for away in [*(second.get("crossings") or [clock]), second.get("conviction") or {}]:
        if zero_at := away.get("zero_at"):
            found.append({"weight_pct": 0.0, "at": zero_at})
    return sorted(found, key=lambda step: str(step["at"]))


def _last_request_after(view: dict[str, Any], candidate: str, records: Iterable[Record]) -> float | None:
    """Seconds from the first decision to take traffic away to the start of the last request before another look began.

    Negative when the last one began before the decision. It is the users' word on how fast the gate shut.
    """
    source = {**view, **(view.get("clock") or {})}
    decided = source.get("decided_at")
    again_at = _begun_again_at(view)
    started = [record.sent_at for record in records if record.release == candidate and record.sent_at < again_at]
    if not decided or not started:
        return None
    return round(max(started) - datetime.fromisoformat(decided).timestamp(), 3)


def _begun_again_at(view: dict[str, Any]) -> float:
    """When the look after the first crossing began, seconds since the epoch (UTC); infinite if none did."""
    crossings = (view.get("second_look") or {}).get("crossings") or []
    if not crossings:
        return math.inf
    crossed = datetime.fromisoformat(crossings[0]["decided_at"])
    begun = [datetime.fromisoformat(one["at"]) for one in view["decisions"] if one["action"] in {"start", "shadow"}]
    return min((at.timestamp() for at in begun if at > crossed), default=math.inf)


def differences(report: dict[str, Any]) -> list[str]:
    """What is not as it should be, one sentence each; empty when the demo succeeded."""
    wrong = []
    outcomes = {rollout["candidate"]: rollout for rollout in report["rollouts"]}
    verdicts = {f"r{r['number']}": {g["gate"]: g["verdict"] for g in r["gates"]} for r in report["releases"]}
    for name, expected in EXPECTED.items():
        if name not in verdicts:
            wrong.append(f"{name} was never sealed.")
        elif expected is None:
            wrong += _stopped_by_golden(name, verdicts[name], outcomes, report)
        elif name not in outcomes:
            wrong.append(f"{name} had no rollout; its gates said {verdicts[name]}.")
        elif outcomes[name]["outcome"] != expected:
            wrong.append(f"{name} ended {outcomes[name]['outcome']}, not {expected}: {outcomes[name]['reason']}")
        elif expected == "rolled_back":
            missing = [k for k in ("fault_to_zero_weight_s", "decision_to_zero_weight_s") if outcomes[name][k] is None]
            wrong += [f"{name} was rolled back, but its {key} was not measured." for key in missing]
    client = report["client"]
    if client["failed"]:
        wrong.append(
            f"{client['failed']} of {client['requests']} user requests failed, such as {client['failures'][:1]}."
        )
    if not client["requests"]:
        wrong.append("There was no user request at all.")
    return wrong


def _stopped_by_golden(
    name: str, verdicts: dict[str, str], outcomes: dict[str, Any], report: dict[str, Any]
) -> list[str]:
    wrong = []
    if verdicts.get("golden") != "failed":
        wrong.append(f"{name} should have failed the golden gate; it was {verdicts.get('golden', 'not run')}.")
    if name in outcomes:
        wrong.append(f"{name} should have had no rollout; it ended {outcomes[name]['outcome']}.")
    if answered := report["client"]["by_release"].get(name):
        wrong.append(f"{name} should never have had traffic; it answered {answered} requests.")
    return wrong


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _utc(unix_s: float) -> str:
    from datetime import UTC

    return datetime.fromtimestamp(unix_s, UTC).isoformat()
