"""Tabs of a release beside its summary and its files: all gate runs, its replicas, its signatures."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from accounts.core.addresses import API
from registry.hooks.usage import usages_of
from registry.models import Release
from registry.queries.declared import learn_declared
from registry.queries.signature_state import signatures_of, wrong_manifest_of
from serving.environments.queries.inventory import nodes, replicas_of
from serving.environments.queries.reporting import is_reporting
from serving.targets.queries.node_fit import fits_of
from serving.targets.queries.replicas import observed, plans_of
from serving.traffic.queries.admission import admissions_of, with_proven
from validators.core.lifecycle import UNFINISHED
from validators.queries import gate_runs, latest_report, reports_of
from validators.queries.expiry import expired_of
from web.pages.release_frame import frame, readable_release
from web.pages.releases import run_gates
from web.pages.session import live

#: Gate runs that stand side by side, and rows of a page.
MOST_BESIDE = 5
ROWS_PER_PAGE, MOST_SHOWN = 25, 100


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def gates(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Every gate run of the release, the newest ones side by side, and what expired. POST runs the gates, or only these."""
    if request.method == "POST":
        return run_gates(request, slug, number)
    found = readable_release(actor_of(request), slug, number)
    facts = _gates_facts(request, found)
    return render(request, "registry/release_gates.html", {**frame(found, "release_gates"), **facts})


@live
def gates_live(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """All of the tab that changes while gates run: the newest run, those beside it, what expired, and the buttons."""
    found = readable_release(actor_of(request), slug, number)
    return render(request, "registry/_release_gates.html", {"release": found, **_gates_facts(request, found)})


def _gates_facts(request: HttpRequest, found: Release) -> dict[str, Any]:
    page = Paginator(gate_runs().filter(release=found).order_by("-pk"), ROWS_PER_PAGE).get_page(request.GET.get("page"))
    beside = list(page)[:MOST_BESIDE]
    names = dict.fromkeys(result.gate for run in beside for result in run.results.all())
    by_gate = [
        (gate, [next((one for one in run.results.all() if one.gate == gate), None) for run in beside]) for gate in names
    ]
    newest = latest_report(found)
    is_running = bool(beside) and beside[0].state in UNFINISHED
    return {
        # A run that goes on measures them anew, so nothing is to be run again.
        "expired": expired_of(newest) if newest and not is_running else [],
        "page": page,
        "beside": beside,
        "by_gate": by_gate,
        "may_run_gates": found.state == "sealed"
        and may(actor_of(request), Verb.RUN_GATES, found.model.team.slug, found.model.slug),
    }


@login_required
def replicas(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Its replicas, present and former nodes, its users, and compatible nodes."""
    actor = actor_of(request)
    found = readable_release(actor, slug, number)
    learn_declared(found)
    rows = list(with_proven(observed(replicas_of(found)))[:MOST_SHOWN])
    for one in rows:
        one.release = found
    every = list(nodes())
    admissions = admissions_of(found, rows)
    now = timezone.now()
    silent = {one.name for one in every if not is_reporting(one, now)}
    facts = {
        "no_green": any(one.node_id in silent and one.is_wanted for one in rows),
        "replicas": [(plan, admissions[plan.environment.pk]) for plan in plans_of(rows)],
        "may_scale": may(actor, Verb.SCALE_RELEASE, found.model.team.slug, slug),
        "rows": rows,
        "used_by": usages_of([found.pk]).get(found.pk, []),
        "fits": fits_of(found, every),
    }
    framed = frame(found, "release_replicas")
    facts["no_green"] = facts["no_green"] or framed["no_green"]
    return render(request, "registry/release_replicas.html", {**framed, **facts})


@login_required
def provenance(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Signatures and attestations, each verified now, with their downloads."""
    found = readable_release(actor_of(request), slug, number)
    facts = {
        "manifest": json.loads(found.manifest),
        "signatures": signatures_of(found),
        "wrong_manifest": wrong_manifest_of(found),
        "reports": reports_of(found)[:ROWS_PER_PAGE],
        "api": f"{API}/models/{slug}/releases/{found.name}",
    }
    return render(request, "registry/release_provenance.html", {**frame(found, "release_provenance"), **facts})
