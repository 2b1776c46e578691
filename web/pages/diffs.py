"""What one release changes against another: files, configuration, tensors, tokenizers and gate metrics."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from registry.queries import get_release, releases_of
from validators.comparing import whole_diff
from web.pages.models import readable_model


@login_required
def release_diff(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Against `?against=r1`; without it, against the release before."""
    model = readable_model(request, slug)
    release = get_release(slug, number)
    others = releases_of(model).exclude(pk=release.pk)
    asked = request.GET.get("against", "")
    against = get_release(slug, asked) if asked else others.filter(number__lt=number).first()
    told = whole_diff(against, release) if against else None
    return render(
        request,
        "registry/diff.html",
        {"release": release, "against": against, "diff": told, "others": others[:100]},
    )
