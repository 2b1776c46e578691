"""One validation with its gates and all of their evidence."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.api import actor_of
from validators.core.gate_diff import metrics_of
from validators.models import Validation
from validators.queries import visible_validation


def _validation(request: HttpRequest, pk: int) -> Validation:
    return visible_validation(actor_of(request), pk)


@login_required
def gate_run(request: HttpRequest, pk: int) -> HttpResponse:
    validation = _validation(request, pk)
    measured = [(run, list(metrics_of(run.gate, run.evidence))) for run in validation.gate_runs.all() if run.evidence]
    facts = {"validation": validation, "report": getattr(validation, "report", None), "measured": measured}
    return render(request, "validators/gate_run.html", facts)


@login_required
def gates_live(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "validators/_gates.html", {"validation": _validation(request, pk)})
