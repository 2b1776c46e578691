"""Settings, Storage: which bytes may go, which stay and why, and a run of the collection."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache

from accounts.api.requests import actor_of
from accounts.core.quantities import size_text
from ledger.core.errors import DomainError
from registry import actions
from registry.core.garbage_collection import Fate, Item, Kind, Plan
from registry.queries import gc_plan
from web.pages.forms import refused
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
    plan, asked = gc_plan.present_plan(), request.GET.get("why", "").strip()
    fate = request.GET.get("fate", "")
    totals = plan.totals()
    facts: dict[str, Any] = {
        "fates": [(one.value, says, totals[one.value]) for one, says in _FATES.items()],
        "rules": gc_plan.rules(),
        "asked": asked,
        "fate": fate if fate in set(Fate) else "",
        "is_short": 0 < len(asked) < _LEAST_TO_FIND,
        "would": _would(plan),
    }
    if len(asked) >= _LEAST_TO_FIND or facts["fate"]:
        found = [item for item in plan.items if _is_asked(item, asked) and (not facts["fate"] or item.fate == fate)]
        facts["page"] = Paginator(found, ITEMS_PER_PAGE).get_page(request.GET.get("page"))
    return render_settings(request, "settings/storage.html", "settings_storage", facts)


@login_required
def run(request: HttpRequest) -> HttpResponse:
    """Asks once, with what this moment's plan would do; then does it, for up to 1,000 blobs."""
    require_administrator(request)
    if request.POST.get("confirmed") != "yes":
        would = _would(gc_plan.present_plan())
        return ask_first(
            request, "Collect now", would or ["Nothing: there is nothing to delete, to mark or to unmark."]
        )
    try:
        done = actions.collect_unused(actor=actor_of(request))
    except DomainError as error:
        return refused(request, error, lambda: storage(request))
    left = f" {done.left} are left: run it again." if done.left else ""
    messages.success(
        request,
        f"Deleted {done.deleted} ({size_text(done.freed_bytes)}), marked {done.marked}, unmarked {done.restored}, and "
        f"discarded {done.drafts} abandoned drafts.{left}",
    )
    return redirect("settings_storage")


def _would(plan: Plan) -> list[str]:
    """What a run would do, in sentences; empty for nothing."""
    words = {
        Fate.DELETE: "Deleted for good: {size} (blobs: {n}).",
        Fate.MARK: "Marked, and to be had back until their time is over: {size} (blobs: {n}).",
        Fate.RESTORE: "Unmarked, since something needs them again: {size} (blobs: {n}).",
    }
    told = []
    for fate, words_of_fate in words.items():
        items = plan.of(Kind.BLOB, fate) + plan.of(Kind.BYTES, fate)
        if items:
            told.append(words_of_fate.format(n=len(items), size=size_text(sum(item.size_bytes for item in items))))
    drafts = plan.of(Kind.RELEASE, Fate.DELETE)
    return [*told, *([f"Discarded: abandoned drafts ({len(drafts)})."] if drafts else [])]


def _is_asked(item: Item, asked: str) -> bool:
    return not asked or item.subject.startswith(asked.removeprefix("sha256:"))
