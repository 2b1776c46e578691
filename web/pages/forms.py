"""Form posts: call an action, and show a refusal on the page with the person's input."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from ledger.core.errors import DomainError, Invalid

LONGEST_REASON = 2000
#: The reason of who shuts without typing one: nothing may stand between a person and that.
NO_REASON = "no reason was given."


def posted(view: Callable[..., HttpResponse], page: str, *kept: str) -> Callable[..., HttpResponse]:
    """The view of a form's post. A GET of its address, as after a refusal that stayed in the address bar or after
    signing in again, comes to the form's page: that of the name `page`, with those arguments of the address that are `kept`."""

    @require_http_methods(["GET", "HEAD", "POST"])
    def answer(request: HttpRequest, **named: Any) -> HttpResponse:
        if request.method != "POST":
            return redirect(page, **{name: named[name] for name in kept})
        return view(request, **named)

    return answer


def act(
    request: HttpRequest,
    verb: Callable[[], object],
    *,
    done: str,
    then: str | Callable[[], str],
    page: Callable[[], HttpResponse],
) -> HttpResponse:
    """Runs the verb, shows `done` and redirects to `then`, called after the verb if it is a function; or `refused`."""
    try:
        verb()
    except DomainError as error:
        return refused(request, error, page)
    messages.success(request, done)
    return redirect(then() if callable(then) else then)


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
        raise Invalid("version_missing", "The form has no version. Reload the page and try again.")
    return int(raw)


def reason_in(request: HttpRequest) -> str:
    """The reason typed, trimmed. Raises Invalid when it is empty or too long."""
    reason = optional_reason_in(request)
    if not reason:
        raise Invalid("reason_missing", "Say why, in the reason field; it is kept with the decision.")
    return reason


def optional_reason_in(request: HttpRequest) -> str:
    """The typed reason, trimmed, or an empty string. Raises Invalid if it is too long."""
    reason = request.POST.get("reason", "").strip()
    if len(reason) > LONGEST_REASON:
        raise Invalid("reason_too_long", f"The reason has {len(reason)} characters; {LONGEST_REASON} are the most.")
    return reason
