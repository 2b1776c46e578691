"""What a report, or a gate run, means to one environment: what holds its release up there, and what only advises."""

from __future__ import annotations

import json

from serving.models import Environment
from validators.core.entry import advisory_anywhere, advisory_in, entry
from validators.core.verdict import Verdict
from validators.models import GateRun, Report


def verdict_there(report: Report, environment: Environment) -> str:
    """The verdict over the gates that hold a release up in the environment, by the policy that the report was made under."""
    body = json.loads(report.body)
    policy = body.get("policy") or {}
    if report.verdict == Verdict.PASSED or not advisory_in(policy, environment.slug):
        return report.verdict
    return entry([(one["gate"], Verdict(one["verdict"])) for one in body["gates"]], policy, environment.slug)[0].value


def advice_of(report: Report, environment: Environment) -> list[tuple[str, str]]:
    """(gate, its reason) of those that only advise in the environment and did not pass."""
    body = json.loads(report.body)
    advisory = advisory_in(body.get("policy") or {}, environment.slug)
    return [
        (one["gate"], one["reason"])
        for one in body.get("gates") or ()
        if one["gate"] in advisory and one["verdict"] != Verdict.PASSED
    ]


def only_advice_failed(gate_run: GateRun) -> bool:
    """Whether every gate that failed only advises somewhere, so that some environment may take the release."""
    failed = {result.gate for result in gate_run.results.all() if result.verdict == Verdict.FAILED}
    return bool(failed) and failed <= advisory_anywhere(gate_run.policy)
