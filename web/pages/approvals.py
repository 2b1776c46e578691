"""The inbox: approvals that wait for the person, the forms that decide in place, and the person's earlier decisions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.api.requests import actor_of
from audit.queries import visible_events
from ledger.core.errors import Invalid
from registry.actions import grant_waiver
from registry.queries import visible_release_by_id
from rollouts import actions
from rollouts.core.approvals import Digests
from rollouts.queries import get_rollout
from rollouts.queries.inbox import MOST_SHOWN, waiting_approvals, waiting_waivers, with_changes
from web.pages.events import cursor_page, with_subjects
from web.pages.forms import act, optional_reason_in, reason_in, version_in
from web.pages.session import live

_DECISIONS = ("rollout.approved", "rollout.rejected", "release.waived")


def _waiting(request: HttpRequest) -> dict[str, Any]:
    actor = actor_of(request)
    approvals, waivers = with_changes(waiting_approvals(actor)), waiting_waivers(actor)
    return {
        "mine": [one for one in approvals if not one.why_not],
        "others": [one for one in approvals if one.why_not],
        "waivers": [one for one in waivers if not one.why_not],
        "other_waivers": [one for one in waivers if one.why_not],
        "is_cut": len(approvals) >= MOST_SHOWN,
        "most": MOST_SHOWN,
    }


@login_required
def approvals(request: HttpRequest) -> HttpResponse:
    actor = actor_of(request)
    decided = visible_events(actor).filter(actor=actor.name, verb__in=_DECISIONS)
    page = cursor_page(request, decided)
    facts = {**_waiting(request), "page": page, "rows": with_subjects(page.rows)}
    return render(request, "rollouts/approvals.html", facts)


@live
def approvals_live(request: HttpRequest) -> HttpResponse:
    return render(request, "rollouts/_approvals_waiting.html", _waiting(request))


@login_required
def decide(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    """A yes to one stage, bound to the digests that the page showed; or the final no."""
    given = request.POST
    done = "Approved." if verb == "approve" else "Rejected."

    def call() -> None:
        actor = actor_of(request)
        rollout = get_rollout(actor, pk)
        if verb == "approve":
            seen = Digests(*(given.get(name, "") for name in ("manifest", "report", "policy")))
            actions.approve(
                actor=actor, rollout=rollout, expected_version=version_in(request), reason=optional_reason_in(request),
                stage=given.get("stage") or None, seen=seen,
            )  # fmt: skip
        elif verb == "reject":
            reason = reason_in(request)
            actions.reject(actor=actor, rollout=rollout, expected_version=version_in(request), reason=reason)
        else:
            raise Invalid("no_such_verb", f"A stage is approved or rejected; “{verb}” is neither.")

    return act(request, call, done=done, then=reverse("approvals"), page=lambda: approvals(request))


@login_required
def waive(request: HttpRequest, release: UUID) -> HttpResponse:
    def call() -> None:
        actor = actor_of(request)
        found = visible_release_by_id(actor, release)
        grant_waiver(actor=actor, release=found, reason=reason_in(request))

    done = "The waiver is recorded."
    return act(request, call, done=done, then=reverse("approvals"), page=lambda: approvals(request))
