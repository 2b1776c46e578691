"""One gate run: live while its gates run, with the server's log, and each gate's evidence as soon as it is judged."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from serving.environments.queries.inventory import log_of
from validators.actions import cancel_gate_run
from validators.core.gate_diff import metrics_of
from validators.core.lifecycle import UNFINISHED
from validators.models import GateResult, GateRun
from validators.queries import gate_runs, visible_gate_run
from web.pages.forms import act, optional_reason_in
from web.pages.gate_plots import draws_others, plots_of
from web.pages.session import live

#: Other runs of the release whose evidence is drawn beside this one's; entries of a list in evidence that the page prints.
MOST_OTHERS, LONGEST_LIST = 10, 50


def _live_facts(request: HttpRequest, found: GateRun) -> dict[str, Any]:
    is_over = found.state not in UNFINISHED
    return {
        "gate_run": found,
        "is_over": is_over,
        "log": log_of(found.release, found.environment, found.ended_at),
        "may_cancel": not is_over and may(actor_of(request), Verb.RUN_GATES, *_owner(found)),
    }


def _owner(found: GateRun) -> tuple[str, str]:
    return found.release.model.team.slug, found.release.model.slug


def _judged(found: GateRun) -> list[GateResult]:
    return [run for run in found.results.all() if run.verdict or run.evidence]


def _evidence_facts(found: GateRun) -> dict[str, Any]:
    judged = _judged(found)
    others: list[GateRun] = []
    if any(run.evidence and draws_others(run.gate) for run in judged):
        rows = gate_runs().filter(release=found.release_id).exclude(pk=found.pk).order_by("-pk")
        others = list(rows[:MOST_OTHERS])
    measured = []
    for run in judged:
        if run.evidence:
            measured_beside = (one for other in others for one in other.results.all() if not one.reused_from_id)
            beside = [one.evidence for one in measured_beside if one.gate == run.gate]
            plots = plots_of(run.gate, run.evidence, found.policy.get(run.gate) or {}, beside)
            measured.append((run, list(metrics_of(run.gate, run.evidence)), plots, shortened(run.evidence)))
    return {
        "gate_run": found,
        "measured": measured,
        "judged": len(judged),
        "is_over": found.state not in UNFINISHED,
        "report": getattr(found, "report", None),
    }


def shortened(evidence: Any) -> Any:
    """The evidence with its long lists cut and marked: a golden set has an answer for each of its items."""
    if isinstance(evidence, dict):
        return {name: shortened(value) for name, value in evidence.items()}
    if isinstance(evidence, list) and len(evidence) > LONGEST_LIST:
        return [*map(shortened, evidence[:LONGEST_LIST]), f"… and {len(evidence) - LONGEST_LIST} more"]
    return evidence


@login_required
def gate_run(request: HttpRequest, pk: int) -> HttpResponse:
    found = visible_gate_run(actor_of(request), pk)
    return render(request, "validators/gate_run.html", {**_live_facts(request, found), **_evidence_facts(found)})


@live
def gates_live(request: HttpRequest, pk: int) -> HttpResponse:
    """The table of gates, on other pages than the run's own."""
    return render(request, "validators/_gates.html", {"gate_run": visible_gate_run(actor_of(request), pk)})


@live
def gate_run_live(request: HttpRequest, pk: int) -> HttpResponse:
    """The run as it is: gates, progress, the log's end, the way to cancel it."""
    found = visible_gate_run(actor_of(request), pk)
    return render(request, "validators/_gate_run_live.html", _live_facts(request, found))


@live
def evidence_live(request: HttpRequest, pk: int) -> HttpResponse:
    """The evidence, once it has more gates than the page: `?judged=` is the number on the page."""
    found = visible_gate_run(actor_of(request), pk)
    judged = len(_judged(found))
    if found.state in UNFINISHED and request.GET.get("judged", "") == str(judged):
        return HttpResponse(status=204)
    return render(request, "validators/_evidence.html", _evidence_facts(found))


@login_required
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """Whatever the run has become meanwhile: it shuts, so it asks for no version."""
    actor = actor_of(request)
    found = visible_gate_run(actor, pk)
    return act(
        request,
        lambda: cancel_gate_run(actor=actor, gate_run=found, reason=optional_reason_in(request)),
        done=f"Gate run {pk} is cancelled.",
        then=reverse("gate_run", args=[pk]),
        page=lambda: gate_run(request, pk),
    )
