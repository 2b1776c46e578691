"""Settings, Storage: which bytes may go, which stay and why, and a run of the collection.

The page shows what the last plan of a worker amounts to; what it is asked about one thing, or about a fate, it plans at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache

from accounts.api.requests import actor_of
from accounts.core.quantities import size_text
from ledger.core.errors import DomainError
from ledger.queries.jobs import unfinished_job
from registry import actions
from registry.core.garbage_collection import Fate, Item
from registry.queries import gc_plan
from web.pages.forms import act, refused
from web.pages.settings_frame import ask_first, render_settings, require_administrator

ITEMS_PER_PAGE = 50
_LEAST_TO_FIND = 4
#: What a run does with each fate, in the order of the page.
_FATES = {
    Fate.DELETE: "deleted by the next run: nobody wanted them back in time",
    Fate.MARK: "marked by the next run: nobody needs them any more",
    Fate.WAIT: "marked before, and still to be had back",
    Fate.RESTORE: "unmarked by the next run: something needs them again",
    Fate.KEEP: "kept",
    Fate.RETIRED: "retired releases, whose bytes are judged by themselves",
    Fate.GONE: "deleted by earlier runs",
}


@login_required
@never_cache
def storage(request: HttpRequest) -> HttpResponse:
    require_administrator(request)
    asked, fate = request.GET.get("why", "").strip(), request.GET.get("fate", "")
    fate = fate if fate in set(Fate) else ""
    facts: dict[str, Any] = {
        "rules": gc_plan.rules(), "asked": asked, "fate": fate, "is_short": 0 < len(asked) < _LEAST_TO_FIND,
        "under_way": unfinished_job(actions.PLAN),
    }  # fmt: skip
    if len(asked) >= _LEAST_TO_FIND or fate:
        planned_at, plan = timezone.now(), gc_plan.present_plan()
        found = [item for item in plan.items if _is_asked(item, asked) and (not fate or item.fate == fate)]
        facts["page"] = Paginator(found, ITEMS_PER_PAGE).get_page(request.GET.get("page"))
        facts |= _amounts(planned_at, plan.totals())
    elif kept := gc_plan.kept_plan():
        facts |= _amounts(kept.planned_at, kept.totals)
    return render_settings(request, "settings/storage.html", "settings_storage", facts)


def _amounts(planned_at: datetime, totals: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    rows = [(fate.value, says, totals[fate.value]) for fate, says in _FATES.items()]
    return {"planned_at": planned_at, "fates": rows, "would": _would(totals)}


@login_required
def plan(request: HttpRequest) -> HttpResponse:
    """Has a worker plan anew."""
    return act(
        request,
        lambda: actions.request_storage_plan(actor=actor_of(request)),
        done="A plan is being made. It stands here once it is done.",
        then=reverse("settings_storage"),
        page=lambda: storage(request),
    )


@login_required
def run(request: HttpRequest) -> HttpResponse:
    """Asks once, with what this moment's plan would do; then does it, for up to 1,000 blobs."""
    require_administrator(request)
    if request.POST.get("confirmed") != "yes":
        would = _would(gc_plan.present_plan().totals())
        return ask_first(
            request, "Collect now", would or ["Nothing: there is nothing to delete, to mark or to unmark."]
        )
    try:
        done = actions.collect_unused(actor=actor_of(request))
        actions.request_storage_plan(actor=actor_of(request))
    except DomainError as error:
        return refused(request, error, lambda: storage(request))
    left = f" {done.left} are left: run it again." if done.left else ""
    messages.success(
        request,
        f"Deleted {done.deleted} ({size_text(done.freed_bytes)}), marked {done.marked}, unmarked {done.restored}, and "
        f"discarded {done.drafts} abandoned drafts.{left}",
    )
    return redirect("settings_storage")


def _would(totals: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What a run would do, in sentences; empty for nothing. `totals`: of a plan."""
    words = {
        Fate.DELETE: "Deleted for good: {size} (blobs: {n}).",
        Fate.MARK: "Marked, and to be had back until their time is over: {size} (blobs: {n}).",
        Fate.RESTORE: "Unmarked, since something needs them again: {size} (blobs: {n}).",
    }
    told = []
    for fate, words_of_fate in words.items():
        if blobs := totals[fate]["blobs"]:
            told.append(words_of_fate.format(n=blobs, size=size_text(totals[fate]["bytes"])))
    drafts = totals[Fate.DELETE]["releases"]
    return [*told, *([f"Discarded: abandoned drafts ({drafts})."] if drafts else [])]


def _is_asked(item: Item, asked: str) -> bool:
    return not asked or item.subject.startswith(asked.removeprefix("sha256:"))
