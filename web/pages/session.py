"""Signing in and out, and the page that says what went wrong."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth.views import LoginView, LogoutView
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from ledger.core.errors import DomainError, Invalid

sign_in = LoginView.as_view(template_name="web/sign_in.html", redirect_authenticated_user=True)
sign_out = LogoutView.as_view()


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
