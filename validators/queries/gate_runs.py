"""Named reads of golden sets, gate runs and reports."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Count, ExpressionWrapper, OuterRef, Prefetch, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from accounts.core.access import Actor, Verb, may
from ledger.core.canonical import sha256_of
from ledger.core.errors import NotFound
from registry.models import Release, ServedModel
from registry.signing import installation_keys
from registry.storage import store
from serving.models import Environment, Route
from serving.traffic.queries.routes import all_routes
from validators.core.gates import REPLAYING
from validators.core.golden_set import GoldenItem, Label, parse_golden_set
from validators.core.lifecycle import UNFINISHED
from validators.models import GateResult, GateRun, GoldenSet, Report

#: The environment whose stable release is the one to compare with, where a model is routed in several.
_FIRST_CHOICE = "production"


def latest_report(release: Release) -> Report | None:
    """The newest report of the release, with any verdict."""
    return release.reports.order_by("-pk").first()


def latest_reports(releases: Iterable[Release]) -> dict[UUID, Report]:
    """`latest_report` of each of these that has one, by release. One query."""
    rows = Report.objects.filter(release__in=list(releases)).order_by("release_id", "-pk").distinct("release_id")
    return {one.release_id: one for one in rows}


def reports_of(release: Release | UUID | OuterRef) -> QuerySet[Report]:
    """The release's reports, the newest first; also within another query."""
    return Report.objects.filter(release=release).order_by("-pk")


def closest_report(release: Release, policy_digest: str) -> tuple[Report | None, bool]:
    """The newest report of exactly the release's contents under this gate policy, and True; else the newest of all. One query."""
    found = list(_closest(release=release.pk, manifest_digest=release.digest or "", policy_digest=policy_digest))
    report = next(iter(found), None)
    return report, report is not None and bool(report.is_present)


def _closest(release: UUID, manifest_digest: str, policy_digest: str) -> QuerySet[Any, Any]:
    is_present = ExpressionWrapper(Q(manifest_digest=manifest_digest, policy_digest=policy_digest), BooleanField())
    return reports_of(release).annotate(is_present=is_present).order_by("-is_present", "-pk")[:1]


def newest_gate_runs() -> QuerySet[GateRun]:
    """Gate runs without what belongs to them, the newest first."""
    return GateRun.objects.order_by("-pk")


def gate_run_progress() -> QuerySet[GateRun, tuple[int, str, int]]:
    """(gate run, model's slug, a number that grows with the progress of its gates) of every unfinished gate run."""
    grown = Coalesce(Sum("results__progress_done"), 0) + Count("results__started_at")
    unfinished = GateRun.objects.filter(state__in=sorted(UNFINISHED)).order_by("pk")
    return unfinished.annotate(grown=grown).values_list("pk", "release__model__slug", "grown")


def gate_runs() -> QuerySet[GateRun]:
    results = Prefetch("results", GateResult.objects.select_related("reused_from").defer("reused_from__body"))
    return GateRun.objects.select_related("release__model__team", "environment", "baseline").prefetch_related(results)


def is_needed_by_another(gate_run: GateRun, release: Release) -> bool:
    """Whether another gate run that has not ended tries the release, or compares with it, in the same environment."""
    others = GateRun.objects.exclude(pk=gate_run.pk).filter(state__in=[s.value for s in UNFINISHED])
    return others.filter(Q(release=release) | Q(baseline=release), environment=gate_run.environment_id).exists()


def visible_gate_run(actor: Actor, pk: int) -> GateRun:
    """Raises NotFound, also when the actor may not see its model."""
    found = gate_runs().filter(pk=pk).first()
    if found is None or not may(actor, Verb.READ, found.release.model.team.slug, found.release.model.slug):
        raise NotFound(
            "no_such_gate_run",
            f"There is no gate run {pk}. Start one with POST …/releases/<rN>/gate-runs.",
            gate_run=pk,
        )
    return found


def gate_run_end(pk: int) -> tuple[int, datetime | None] | None:
    """(its number, when it ended: None while it goes on), or None if there is no such gate run."""
    return GateRun.objects.filter(pk=pk).values_list("pk", "ended_at").first()


def visible_report(actor: Actor, digest: str) -> Report:
    """Raises NotFound, also when the actor may not see its model."""
    found = Report.objects.select_related("release__model__team").filter(digest=digest).first()
    if found is None or not may(actor, Verb.READ, found.release.model.team.slug, found.release.model.slug):
        raise NotFound(
            "no_such_report", f"There is no report {digest}. A finished gate run names its report.", digest=digest
        )
    return found


def is_authentic(report: Report) -> bool:
    """Whether its body still has its digest, this installation's key signed that, and its columns say what the body says."""
    if sha256_of(report.body.encode()) != report.digest:
        return False
    if not installation_keys.verify(report.digest, report.signature, report.key_id):
        return False
    body = json.loads(report.body)
    return all(body[name] == getattr(report, name) for name in ("manifest_digest", "policy_digest", "verdict"))


def accuracies_of(gate_runs: Collection[int]) -> dict[int, dict[str, float]]:
    """{"value", "low", "high", "n"} of the golden gate, by gate run, of those that measured it. One query, without the answers."""
    rows = GateResult.objects.filter(gate_run__in=gate_runs, gate__in=REPLAYING, evidence__has_key="accuracy")
    found = rows.order_by("pk").values_list("gate_run_id", "evidence__accuracy")
    return {run: told for run, told in found if isinstance(told, dict) and {"value", "low", "high"} <= told.keys()}


def golden_sets_of(model: ServedModel) -> QuerySet[GoldenSet]:
    return GoldenSet.objects.filter(model=model).select_related("blob").order_by("-pk")


def golden_items(model: ServedModel, digest: str) -> tuple[GoldenItem, ...]:
    """The items of one of the model's golden sets. Raises NotFound."""
    return parse_golden_set(golden_lines(model, digest))


def golden_lines(model: ServedModel, digest: str) -> bytes:
    """The JSON lines of one of the model's golden sets. Raises NotFound."""
    found = golden_sets_of(model).filter(digest=digest).first()
    if found is None:
        raise NotFound(
            "no_such_golden_set",
            f"{model.slug} has no golden set {digest}. Upload it to the model's golden-sets, or correct golden.set in its gate policy.",
            digest=digest,
        )
    with store().open(found.blob_id) as stream:
        return stream.read()


def under_way_in(environment: Environment) -> list[GateRun]:
    """The gate runs there that have not ended, with their releases."""
    rows = GateRun.objects.filter(environment=environment, state__in=[state.value for state in UNFINISHED])
    return list(rows.select_related("release__model").order_by("pk"))


def stable_route(model: ServedModel) -> Route | None:
    """Where the model's users are served now: its route in production, else in any other routed environment."""
    return min(
        all_routes().filter(model=model, environment__is_routed=True),
        key=lambda route: (route.environment.slug != _FIRST_CHOICE, route.environment.slug),
        default=None,
    )


def stored_predictions(release: Release, *, golden_set: str, output: str, items: int) -> Sequence[Label | None] | None:
    """What the release answered to this golden set in its last report that asked; None if none did, or not to every item."""
    runs = GateResult.objects.filter(
        gate_run__release=release,
        gate_run__report__isnull=False,
        gate__in=REPLAYING,
        evidence__golden_set=golden_set,
        evidence__output=output,
    ).order_by("-gate_run__report__pk")
    for run in runs[:5]:
        found: list[Label | None] = run.evidence.get("predictions") or []
        if len(found) == items and None not in found:
            return found
    return None
