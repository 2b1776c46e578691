"""How a page's form calls an action: the refusal becomes a sentence on the page, and nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from accounts.core.errors import DomainError, Invalid

LONGEST_REASON = 2000


def act(request: HttpRequest, verb: Callable[[], object], *, done: str, then: str) -> HttpResponse:
    """Runs the verb, says `done` or why not, and sends the browser to `then`."""
    try:
        verb()
    except DomainError as error:
        messages.error(request, f"{error.message} ({error.code})")
    else:
        messages.success(request, done)
    return redirect(then)


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
