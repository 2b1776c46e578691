"""Signing in by an issuer: away to it by a link, and back from it. Both are GET: the policy `form-action` knows no issuers."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache

from accounts.actions.issuer_sign_in import Flow, begin_sign_in, finish_sign_in
from accounts.queries.issuers import issuer_for_people
from ledger.core.errors import Refused
from web.pages.session import enter

#: What a session keeps of sign-ins that are under way, by their state; the oldest go when there are more.
_FLOWS, _MOST_FLOWS = "issuer_sign_ins", 5


@never_cache
def leave(request: HttpRequest, pk: int) -> HttpResponse:
    """To the issuer's own sign-in page."""
    issuer = issuer_for_people(pk)
    back = request.build_absolute_uri(reverse("issuer_return", args=[pk]))
    address, flow = begin_sign_in(issuer=issuer, redirect_uri=back)
    kept = _kept(request)
    kept[flow.state] = {**asdict(flow), "next": _safe_next(request, request.GET.get("next", ""))}
    request.session[_FLOWS] = dict(list(kept.items())[-_MOST_FLOWS:])
    return redirect(address)


@never_cache
def come_back(request: HttpRequest, pk: int) -> HttpResponse:
    """Signs in and redirects to the wanted page, or shows the reason of a failure. A flow works once."""
    issuer = issuer_for_people(pk)
    kept = _kept(request)
    found = kept.pop(request.GET.get("state", ""), None)
    request.session[_FLOWS] = kept
    if found is None:
        raise Refused(
            "sign_in_refused",
            "The sign-in was refused: this browser began none that this would be the answer to. Begin again from the sign-in page.",
        )
    then = found.pop("next", "")
    user = finish_sign_in(issuer=issuer, flow=Flow(**found), answer=request.GET.dict())
    enter(request, user, issuer=issuer)
    request.session.pop(_FLOWS, None)
    # A time and no number of seconds, which would begin anew whenever the session is written.
    request.session.set_expiry(timezone.now() + timedelta(hours=issuer.session_hours))
    return redirect(_safe_next(request, then) or "overview")


def _kept(request: HttpRequest) -> dict[str, Any]:
    kept = request.session.get(_FLOWS)
    return dict(kept) if isinstance(kept, dict) else {}


def _safe_next(request: HttpRequest, then: str) -> str:
    """Where to go afterwards: within this installation, or nowhere."""
    own = url_has_allowed_host_and_scheme(then, allowed_hosts={request.get_host()}, require_https=request.is_secure())
    return then if own else ""
