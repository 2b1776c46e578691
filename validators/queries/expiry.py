"""Which evidence of a report does not hold any more where its release will serve, and which a later run may take over."""

from __future__ import annotations

import json
from typing import Any

from django.utils import timezone

from ledger.core.errors import Invalid
from registry.models import Release
from registry.queries import manifest_of
from serving.models import Environment
from serving.targets.platforms import platform_of
from serving.targets.port import Forecast, Machine
from validators.core.entry import advisory_in, policy_in
from validators.core.expiry import Expired, expired, measured_together, place_of, results_of, uses_gpu
from validators.core.gates import GATES
from validators.core.policy import Policy
from validators.core.verdict import Verdict
from validators.models import GateRun, Report
from validators.queries.gate_runs import closest_report, is_authentic, reports_of
from validators.queries.model_policy import policy_of


def expired_of(
    report: Report,
    environment: Environment | None = None,
    *,
    release: Release | None = None,
    forecast: Forecast | None = None,
) -> list[Expired]:
    """What of the report does not hold where its release serves or would serve in the environment, under today's gate policy.

    Without an environment: on the machine that a new replica would be given, by the strictest age of any environment.
    `release` is the report's, and `forecast` is its platform's for the environment, where these are at hand.
    """
    release, body = release or report.release, json.loads(report.body)
    try:
        policy = policy_of(release.model)
    except Invalid as error:
        return [Expired("policy", tuple(one["gate"] for one in results_of(body)), error.message.rstrip("."))]
    forecast = forecast or platform_of(environment).forecast(release, environment)
    return _expired(body, release, policy, environment, forecast.machine)


def reusable(release: Release, policy: Policy, baseline: Release | None) -> tuple[Report | None, list[dict[str, Any]]]:
    """(the newest report of these contents, those of its results that hold for another run of the gates).

    They passed, no line of theirs expired, and those that rest on a comparison were compared with this very baseline.
    """
    report = reports_of(release).filter(manifest_digest=release.digest or "").first()
    if report is None or not is_authentic(report):
        return None, []
    body = json.loads(report.body)
    machine = platform_of(None).forecast(release, None).machine
    lost = {gate for line in _expired(body, release, policy, None, machine) for gate in line.gates}
    compared_with = baseline.digest if baseline else None
    held = [
        one
        for one in results_of(body)
        if one["gate"] in policy.gates
        and one["gate"] not in lost
        and one["verdict"] == Verdict.PASSED
        and (not GATES[one["gate"]].is_compared or one["measured"].get("baseline") == compared_with)
    ]
    kept = measured_together([one["gate"] for one in held], policy.gates)
    return report, [one for one in held if one["gate"] in kept]


def passed_gate_run(release: Release, policy_digest: str) -> GateRun | None:
    """The gate run of the release's newest report, if that passed under this gate policy and all of it still holds."""
    report, is_present = closest_report(release, policy_digest)
    if report is None or not is_present or report.verdict != Verdict.PASSED or not is_authentic(report):
        return None
    return None if expired_of(report, release=release) else report.gate_run


def place_on(machine: Machine, release: Release) -> dict[str, str | None]:
    """The place of a measurement, as a report states it."""
    return place_of(machine.name, machine.facts, manifest_of(release)["runtime"]["image"])


def _expired(
    body: dict[str, Any], release: Release, policy: Policy, environment: Environment | None, machine: Machine | None
) -> list[Expired]:
    slug = environment.slug if environment else None
    advisory = advisory_in(policy.document, slug) if slug else frozenset()
    return expired(
        [one for one in results_of(body) if one["gate"] not in advisory],
        judged_by=body.get("policy"),
        policy=policy_in(policy.document, slug),
        place=place_on(machine, release) if machine else None,
        on_gpu=uses_gpu(manifest_of(release)),
        now=timezone.now(),
    )
