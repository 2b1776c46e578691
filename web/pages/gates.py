"""One gate run with its gates and all of their evidence."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.api.requests import actor_of
from validators.core.gate_diff import metrics_of
from validators.core.lifecycle import GateRunState
from validators.models import GateRun
from validators.queries import visible_gate_run
from web.pages.session import live


def _gate_run(request: HttpRequest, pk: int) -> GateRun:
    return visible_gate_run(actor_of(request), pk)


@login_required
def gate_run(request: HttpRequest, pk: int) -> HttpResponse:
    gate_run = _gate_run(request, pk)
    measured = [(run, list(metrics_of(run.gate, run.evidence))) for run in gate_run.results.all() if run.evidence]
    facts = {"gate_run": gate_run, "report": getattr(gate_run, "report", None), "measured": measured}
    return render(request, "validators/gate_run.html", facts)


@live
def gates_live(request: HttpRequest, pk: int) -> HttpResponse:
    """The gates as they are. Once the run has ended, the run's own page is loaded anew, as its evidence is there then."""
    found = _gate_run(request, pk)
    answer = render(request, "validators/_gates.html", {"gate_run": found})
    asking = urlsplit(request.headers.get("HX-Current-URL", "")).path
    if found.state not in {GateRunState.QUEUED, GateRunState.RUNNING} and asking == reverse("gate_run", args=[pk]):
        answer["HX-Refresh"] = "true"
    return answer
