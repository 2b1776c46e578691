"""Form posts: call an action, and show a refusal on the page with what was typed."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from ledger.core.errors import DomainError, Invalid

LONGEST_REASON = 2000


def act(
    request: HttpRequest, verb: Callable[[], object], *, done: str, then: str, page: Callable[[], HttpResponse]
) -> HttpResponse:
    """Runs the verb, says `done` and sends the browser to `then`; or `refused`."""
    try:
        verb()
    except DomainError as error:
        return refused(request, error, page)
    messages.success(request, done)
    return redirect(then)


def refused(request: HttpRequest, error: DomainError, page: Callable[[], HttpResponse]) -> HttpResponse:
    """The form's page with why not; its template fills the fields from `request.POST`, so that nothing is typed twice."""
    messages.error(request, f"{error.message} ({error.code})")
    answer = page()
    answer.status_code = error.status
    return answer


def version_in(request: HttpRequest) -> int:
    """The version that the page showed, from its hidden field. Raises Invalid when it is not a number."""
    raw = request.POST.get("version", "")
    if not re.fullmatch("[0-9]{1,9}", raw):
        raise Invalid(
            "version_missing", "The form did not say which version it was made for; reload the page and try again."
        )
    return int(raw)


def reason_in(request: HttpRequest) -> str:
    """The reason typed, trimmed. Raises Invalid when it is empty or too long."""
    reason = request.POST.get("reason", "").strip()
    if not reason:
        raise Invalid("reason_missing", "Say why, in the reason field; it is kept with the decision.")
    if len(reason) > LONGEST_REASON:
        raise Invalid("reason_too_long", f"The reason has {len(reason)} characters; {LONGEST_REASON} are the most.")
    return reason
