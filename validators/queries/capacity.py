"""What a release's reports prove of its capacity: for a plan, and for the envelope of the next release."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from ledger.core.errors import NotFound
from registry.models import Release
from registry.queries import manifest_of
from serving.traffic.core.admission import Proof
from validators.core.capacity import hardware_name
from validators.core.capacity_plan import Basis, basis_of
from validators.core.expiry import uses_gpu
from validators.core.full_server import measured_when_full
from validators.core.gpu_health import counts
from validators.core.measured_envelope import measured_entry, measured_host, with_measured
from validators.models import Report
from validators.queries.gate_runs import is_authentic, reports_of

#: Older reports than so many are not looked at.
_MOST_REPORTS = 20
_T = TypeVar("_T")


@dataclass(frozen=True)
class PlanBasis:
    """What a plan rests on, and when that was measured."""

    basis: Basis
    measured_at: datetime


def plan_basis_of(release: Release) -> PlanBasis | None:
    """What the newest report with a capacity proves, else the newest whose load gate passed; None where there is neither."""
    hardware = partial(_hardware, on_gpu=uses_gpu(manifest_of(release)))
    found = [
        PlanBasis(basis, report.created_at)
        for report, basis in _read(_counting(release), lambda body, digest: basis_of(body, digest, hardware(body)))
    ]
    return next((one for one in found if one.basis.is_limit), next(iter(found), None))


def proven_per_s(release: Release) -> float | None:
    """Requests a second that one server of the release is proven for, by the newest authentic report with a capacity; None where
    nothing proves one. What a load gate held is no limit."""
    found = plan_basis_of(release)
    return found.basis.per_s if found is not None and found.basis.is_limit else None


def admission_proof(release: Release) -> Proof | None:
    """The same, with the time in which its requests were answered: the basis of a gateway's bound. Without a proven
    capacity: the newest measurement of a full server by a load gate that passed."""
    found = plan_basis_of(release)
    if found is None or not found.basis.is_limit:
        return next((full for _, full in _read(_counting(release), measured_when_full)), None)
    return Proof(found.basis.per_s, found.basis.slo_ms / 1000, found.basis.report)


def measured_envelope(release: Release) -> dict[str, Any]:
    """The release's envelope as far as it was measured, each part by the newest report that tells it. Raises NotFound.

    `performance`, where a capacity is proven, and `host`, where the resources gate saw what the server held; what else was
    declared stays beside it.
    """
    declared = manifest_of(release).get("envelope") or {}
    found: dict[str, Any] = {}
    reports = _counting(release)
    for _, host in _read(reports, lambda body, _: measured_host(body))[:1]:
        found["host"] = {**(declared.get("host") or {}), **host}
    for _, entry in _read(reports, measured_entry)[:1]:
        found["performance"] = with_measured(declared.get("performance") or (), entry)
    if found:
        return found
    raise NotFound(
        "no_capacity_measured",
        f"No report of {release.name} proves a capacity on hardware with a name, or tells what its server held. "
        "Put capacity and resources into the policy's gates and run them.",
        release=release.name,
    )


def _counting(release: Release) -> list[tuple[Report, dict[str, Any]]]:
    """The release's authentic reports whose measurements count, with their bodies, the newest first."""
    reports = [one for one in reports_of(release)[:_MOST_REPORTS] if is_authentic(one)]
    bodies = [(report, json.loads(report.body)) for report in reports]
    return [(report, body) for report, body in bodies if counts(body)]


def _read(
    reports: list[tuple[Report, dict[str, Any]]], read: Callable[[dict[str, Any], str], _T | None]
) -> list[tuple[Report, _T]]:
    """What can be read from them, in their order."""
    found = [(report, read(body, report.digest)) for report, body in reports]
    return [(report, one) for report, one in found if one is not None]


def _hardware(body: dict[str, Any], *, on_gpu: bool) -> str:
    return hardware_name((body.get("hardware") or {}).get("facts") or {}, on_gpu=on_gpu)
