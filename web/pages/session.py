"""Signing in and out, and the page that says what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.views import LoginView, LogoutView
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from ledger.core.errors import DomainError, Invalid

sign_in = LoginView.as_view(template_name="web/sign_in.html", redirect_authenticated_user=True)
sign_out = LogoutView.as_view()


def live(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """A fragment that a page fetches again and again: 401 and nothing else for a person who is no longer signed in.

    A redirect would be followed, and a whole sign-in page put into the middle of the page; `web/live.js` reads the 401 and
    offers to sign in instead, without taking away what is on the screen.
    """

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return HttpResponse(status=401, headers={"Cache-Control": "no-store"})
        return view(request, *args, **named)

    return answer


class RefusalPages:
    """Middleware: a DomainError from a page becomes a page with its sentence, never a traceback."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if isinstance(error, (DataError, UnicodeEncodeError)):
            error = Invalid(
                "invalid", "A value is too long, out of range or holds a zero byte. Go back and correct it."
            )
        if isinstance(error, DomainError) and not request.path.startswith("/api/"):
            return render(request, "web/refusal.html", {"error": error}, status=error.status)
        return None
