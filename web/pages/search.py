"""The search's page, and its fragment for the palette."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.api.requests import actor_of
from web.pages.session import live
from web.search import LONGEST_TEXT, search


@login_required
def search_page(request: HttpRequest) -> HttpResponse:
    text = request.GET.get("q", "").replace("\0", "")[:LONGEST_TEXT]
    return render(request, "web/search.html", {"text": text, "hits": search(actor_of(request), text)})


@live
def search_fragment(request: HttpRequest) -> HttpResponse:
    hits = search(actor_of(request), request.GET.get("q", ""))
    answer = render(request, "web/_hits.html", {"hits": hits})
    answer["Cache-Control"] = "no-store"
    return answer
