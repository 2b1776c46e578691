"""One release: what it is, what proved it, where it runs, and what may be done with it."""

from __future__ import annotations

import json

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from registry.actions import grant_waiver
from registry.hooks.code_runs import code_runs_of
from registry.models import Release
from registry.queries import get_release, waivers_missing
from registry.queries.file_headers import hidden_of, imports_of
from rollouts.queries.rolled_back import rolled_back_before
from serving.queries.routes import all_routes
from validators.actions import request_gate_run
from web.pages.forms import act, reason_in
from web.pages.models import readable_model


def _release(request: HttpRequest, slug: str, number: int) -> Release:
    readable_model(request, slug)
    return get_release(slug, number)


@login_required
def release(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    found = _release(request, slug, number)
    actor = actor_of(request)
    team = found.model.team.slug
    return render(
        request,
        "registry/release.html",
        {
            "release": found,
            "manifest": json.loads(found.manifest),
            "files": found.files.select_related("blob"),
            "waivers": found.waivers.select_related("granted_by"),
            "gate_run": found.gate_runs.order_by("-pk").first(),
            "gate_runs": found.gate_runs.order_by("-pk")[:10],
            "deployments": found.deployments.exclude(state="gone").select_related("environment", "node"),
            "rollouts": found.rollouts.select_related("model", "environment", "candidate", "stable")[:5],
            "may_run_gates": may(actor, Verb.RUN_GATES, team),
            "waivers_missing": sorted(waivers_missing(found)),
            "imports": imports_of(found),
            "code_runs": code_runs_of(found),
            "hidden": hidden_of(found),
            "may_waive": found.is_code_bearing
            and may(actor, Verb.WAIVE_CODE, team)
            and found.author_id != actor.user_id,
            "may_start": may(actor, Verb.START_ROLLOUT, team),
            "serves": [route.environment.slug for route in all_routes().filter(stable=found) if not route.candidate_bp],
            "rolled_back": rolled_back_before(found),
        },
    )


@login_required
def run_gates(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    found = _release(request, slug, number)
    return act(
        request,
        lambda: request_gate_run(actor=actor_of(request), release=found),
        done=f"The gates of {found.name} are queued.",
        then=reverse("release", args=[slug, number]),
        page=lambda: release(request, slug, number),
    )


@login_required
def waive(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    found = _release(request, slug, number)
    return act(
        request,
        lambda: grant_waiver(actor=actor_of(request), release=found, reason=reason_in(request)),
        done=f"The waiver for {found.name} is recorded.",
        then=reverse("release", args=[slug, number]),
        page=lambda: release(request, slug, number),
    )
