"""What one release changes against another: files, configuration, tensors, tokenizers and gate metrics."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from registry.queries import get_release, releases_of
from serving.queries.routes import all_routes
from validators.queries.release_diff import whole_diff
from web.pages.models import readable_model


@login_required
def release_diff(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Against `?against=r1`; without it, against what an environment serves now, or else against the release before."""
    model = readable_model(request, slug)
    release = get_release(slug, number)
    others = releases_of(model).exclude(pk=release.pk)
    asked = request.GET.get("against", "")
    routes = all_routes().filter(model=model).exclude(stable=release).order_by("environment__slug")
    serving = None if asked else routes.first()
    against = serving.stable if serving else others.filter(number__lt=number).first()
    if asked:
        against = get_release(slug, asked)
    told = whole_diff(against, release) if against else None
    return render(
        request,
        "registry/diff.html",
        {"release": release, "against": against, "serving": serving, "diff": told, "others": others[:100]},
    )
