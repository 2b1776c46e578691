"""One validation with its gates and all of their evidence."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.core.errors import NotFound
from validators.models import Validation
from web.pages.models import readable_model


def _validation(request: HttpRequest, pk: int) -> Validation:
    found = (
        Validation.objects.select_related("release__model", "baseline")
        .prefetch_related("gate_runs")
        .filter(pk=pk)
        .first()
    )
    if found is None:
        raise NotFound("gate_run_unknown", f"There is no gate run {pk}.")
    readable_model(request, found.release.model.slug)
    return found


@login_required
def gate_run(request: HttpRequest, pk: int) -> HttpResponse:
    validation = _validation(request, pk)
    return render(
        request, "validators/gate_run.html", {"validation": validation, "report": getattr(validation, "report", None)}
    )


@login_required
def gates_live(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "validators/_gates.html", {"validation": _validation(request, pk)})
