"""The post-mortem of an ended rollout: a page to share, and the same as one file of HTML or markdown."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.contrib.staticfiles import finders
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse

from accounts.api.requests import actor_of
from ledger.core.errors import DomainError, Invalid
from rollouts.models import Rollout
from rollouts.queries import get_rollout
from web.pages.rollout_plots import plots_of
from web.post_mortem import markdown_of, post_mortem_of

#: The sheets that one file of HTML carries in itself.
_SHEETS = ("tokens", "base", "parts", "plots", "rollout")


@login_required
def post_mortem(request: HttpRequest, pk: int) -> HttpResponse:
    """The page; with `?format=html` or `md` a file to keep or send. A running rollout gets a notice instead."""
    found = get_rollout(actor_of(request), pk)
    address = request.build_absolute_uri(reverse("post_mortem", args=[pk]))
    try:
        facts: dict[str, Any] = {"rollout": found, "found": post_mortem_of(found), "plots": plots_of(found)}
        wanted = request.GET.get("format", "")
        if wanted:
            return _file(found, document(found, facts["found"], wanted, address), wanted)
    except DomainError as error:
        return render(request, "rollouts/post_mortem.html", {"rollout": found, "error": error}, status=error.status)
    return render(request, "rollouts/post_mortem.html", facts)


def document(rollout: Rollout, found: dict[str, Any], kind: str, address: str = "") -> str:
    """The whole post-mortem as one text. `kind`: `html`, which needs nothing from elsewhere, or `md`. Raises Invalid."""
    if kind == "md":
        return markdown_of(found, address)
    if kind != "html":
        raise Invalid("no_such_format", "A post-mortem is written as html or md.")
    facts = {"rollout": rollout, "found": found, "plots": plots_of(rollout), "sheets": _sheets(), "address": address}
    return render_to_string("rollouts/post_mortem_file.html", facts)


def _sheets() -> str:
    parts = []
    for name in _SHEETS:
        path = finders.find(f"web/{name}.css")
        if isinstance(path, str):
            with open(path, encoding="utf-8") as file:
                parts.append(file.read())
    return "\n".join(parts).replace("</", "<\\/")


def _file(rollout: Rollout, text: str, kind: str) -> HttpResponse:
    types = {"html": "text/html; charset=utf-8", "md": "text/markdown; charset=utf-8"}
    answer = HttpResponse(text, content_type=types[kind])
    answer["Content-Disposition"] = f'attachment; filename="post-mortem-{rollout.pk}.{kind}"'
    return answer
