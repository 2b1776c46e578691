"""Comments on a comparison: write or resolve, then return to the page."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from accounts.api.requests import actor_of
from ledger.core.errors import DomainError, Invalid
from registry.actions import comment_on, resolve_comment
from registry.models import Release
from registry.queries import get_release
from registry.queries.reviews import visible_comment
from web.pages.diffs import release_diff
from web.pages.forms import refused
from web.pages.release_frame import readable_release


def _back(release: Release, against: str, at: str = "") -> str:
    query = f"?{urlencode({'against': against})}" if against else ""
    return f"{reverse('release_diff', args=[release.model.slug, release.number])}{query}{at}"


@login_required
def comment(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    actor = actor_of(request)
    found = readable_release(actor, slug, number)
    given = request.POST
    try:
        against = get_release(slug, given["against"]) if given.get("against") else None
        written = comment_on(
            actor=actor,
            release=found,
            against=against,
            section=given.get("section", ""),
            text=given.get("text", ""),
            path=given.get("path", "").strip(),
            side=given.get("side") or "new",
            line=_line(given.get("line", "").strip()),
        )
    except DomainError as error:
        return refused(request, error, lambda: release_diff(request, slug, number))
    messages.success(request, "Your comment is written.")
    return redirect(_back(found, against.name if against else "", f"#comment-{written.pk}"))


def _line(typed: str) -> int | None:
    if not typed:
        return None
    if not typed.isascii() or not typed.isdigit() or len(typed) > 7:
        raise Invalid("invalid_comment", "The line is no number of a line. Write one from 1, or leave it out.")
    return int(typed)


@login_required
def resolve(request: HttpRequest, slug: str, number: int, pk: int) -> HttpResponse:
    actor = actor_of(request)
    found = readable_release(actor, slug, number)
    try:
        settled = resolve_comment(actor=actor, comment=visible_comment(actor, found, pk))
    except DomainError as error:
        return refused(request, error, lambda: release_diff(request, slug, number))
    messages.success(request, "The comment is resolved.")
    return redirect(_back(found, settled.against.name if settled.against else ""))
