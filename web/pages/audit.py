"""The log of events: who did what, when and why; searched, opened, checked and taken away."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

from accounts.api.requests import actor_of
from accounts.core.access import EVERY_TEAM, Verb, may, require
from accounts.core.instants import EXAMPLES, read_instant
from audit.actions import request_check
from audit.queries import visible_events
from audit.queries.event_search import SUBJECT_TYPES, Found, Search, search_events, search_from
from audit.queries.log_checks import CHECK, last_check
from ledger.core.chain import GENESIS
from ledger.core.errors import Invalid, NotFound
from ledger.core.verbs import EventVerb
from ledger.queries.chain_verification import link_of, verify_part
from ledger.queries.jobs import unfinished_job
from serving.targets.queries import environment_titles
from web.listing import Filter, asked
from web.pages.events import cursor_page, with_subjects
from web.pages.forms import act

#: Events that one press of a button checks.
VERIFIED_AT_ONCE = 300


def _filters(request: HttpRequest) -> list[Filter]:
    kinds = sorted({verb.value.partition(".")[0] for verb in EventVerb})
    verbs = [(f"{kind}.*", f"{kind}: all") for kind in kinds] + [(verb.value, verb.value) for verb in EventVerb]
    return asked(
        request,
        Filter("q", "Words, or a value from a row", hint="rollout 3, my-model/r4, r4, ada, a digest"),
        Filter("actor", "Who"),
        Filter("verb", "What", sorted(verbs)),
        Filter("subject_type", "Subject", [(kind, kind.replace("_", " ")) for kind in SUBJECT_TYPES]),
        Filter("model", "Model"),
        Filter("environment", "Environment", environment_titles()),
        Filter("since", "From (UTC)", hint="2h, or 2026-03-01 12:00"),
        Filter("until", "Until (UTC)", hint="2026-03-01 13:00"),
    )


def found_in(request: HttpRequest, given: dict[str, str]) -> tuple[Search, Found]:
    """Raises Invalid for a time that is none."""
    now, instants = timezone.now(), {}
    for name in ("since", "until"):
        try:
            instants[name] = read_instant(given.get(name, ""), now)
        except (ValueError, OverflowError):
            said = f"“{given[name]}” is no instant. Write {EXAMPLES}."
            raise Invalid("not_an_instant", said, field=name) from None
    search = search_from(given, **instants)
    return search, search_events(actor_of(request), search)


def given_in(request: HttpRequest) -> dict[str, str]:
    """The address's filters; `subject` is the former name of `q`."""
    given = {name: str(value)[:300] for name, value in request.GET.items()}
    return {**given, "q": given.get("q") or given.get("subject", "")}


@login_required
def audit(request: HttpRequest) -> HttpResponse:
    filters = _filters(request)
    facts: dict[str, Any] = {"filters": filters, "is_filtered": any(one.value for one in filters)}
    status = 200
    try:
        search, found = found_in(request, given_in(request))
        page = cursor_page(request, found.events)
        facts |= {"page": page, "rows": with_subjects(page.rows), "read_as": found.read_as, "search": search}
        facts |= {"verify_from": page.rows[-1].seq if page.rows else 1}
    except Invalid as error:
        facts |= {"error": error}
        status = error.status
    query = {name: str(value) for name, value in request.GET.items() if name not in ("before", "after")}
    facts |= {"query": urlencode(query), "may_verify": _may_verify(request)}
    return render(request, "audit/audit.html", facts, status=status)


@login_required
def moved(request: HttpRequest) -> HttpResponse:
    """Redirects the log's former address: `?subject=` is `?q=` now."""
    query = {("q" if name == "subject" else name): str(value) for name, value in request.GET.items()}
    return redirect(reverse("audit") + (f"?{urlencode(query)}" if query else ""), permanent=True)


@login_required
def event(request: HttpRequest, seq: int) -> HttpResponse:
    """An event in full. 404 if it does not exist or the person may not read it."""
    readable = visible_events(actor_of(request))
    found = readable.filter(seq=seq).first() if seq < 2**63 else None
    if found is None:
        raise NotFound("no_such_event", f"There is no event {seq} that you may see.", seq=seq)
    ((_, subject, url),) = with_subjects([found])
    facts = {
        "event": found, "subject": subject, "url": url, "is_intact": link_of(found).expected_hash() == found.hash,
        "act": with_subjects(readable.filter(act_id=found.act_id).exclude(seq=seq).order_by("seq")[:50])
        if found.act_id else [],
        "older": readable.filter(seq__lt=seq).order_by("-seq").values_list("seq", flat=True).first(),
        "newer": readable.filter(seq__gt=seq).order_by("seq").values_list("seq", flat=True).first(),
        "verified_at_once": VERIFIED_AT_ONCE,
    }  # fmt: skip
    return render(request, "audit/event.html", facts | {"may_verify": _may_verify(request)})


def _may_verify(request: HttpRequest) -> bool:
    return may(actor_of(request), Verb.ADMINISTER, EVERY_TEAM)


@login_required
def verify(request: HttpRequest) -> HttpResponse:
    """Checks a stretch of the log, from `?from=SEQ` or from the end of the last full check. Shows only numbers
    and hashes. For administrators, as is the check over REST."""
    require(actor_of(request), Verb.ADMINISTER, EVERY_TEAM)
    text, last = request.GET.get("from", ""), last_check()
    noted = (last.seq, last.hash) if last and last.is_whole else (0, GENESIS)
    first = max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 19 else noted[0] + 1
    goes_on = first == noted[0] + 1
    report = verify_part(first, VERIFIED_AT_ONCE, noted=noted if goes_on else None)
    facts = {
        "report": report, "first": first, "is_more": report.events == VERIFIED_AT_ONCE, "next": report.head_seq + 1,
        "last": last, "goes_on": goes_on and first > 1, "under_way": unfinished_job(CHECK),
    }  # fmt: skip
    return render(request, "audit/verified.html", facts)


@login_required
def check(request: HttpRequest) -> HttpResponse:
    """Has a worker check the whole log."""
    return act(
        request,
        lambda: request_check(actor=actor_of(request)),
        done="The whole log is being checked. This page and the log show the result when the check ends.",
        then=reverse("audit_verify"),
        page=lambda: verify(request),
    )
