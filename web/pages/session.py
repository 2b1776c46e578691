"""Signing in and out, and the page that says what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import ValidationError
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.actions import sign_in as prove_sign_in
from accounts.api.requests import client_address
from ledger.core.errors import DomainError, Invalid, Throttled, Unavailable

_WRONG = "That name and password do not belong together."


class SignInForm(AuthenticationForm):
    """Name and password, taken no faster than the API takes them."""

    def clean(self) -> dict[str, Any]:
        username, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not username or not password:
            raise ValidationError(_WRONG, code="login_failed")
        address = client_address(self.request) if self.request is not None else ""
        try:
            self.user_cache = prove_sign_in(username=username, password=password, address=address)
        except (Throttled, Unavailable) as error:
            raise ValidationError(error.message, code=error.code, params=error.facts) from None
        if self.user_cache is None:
            raise ValidationError(_WRONG, code="login_failed")
        return self.cleaned_data


class SignInView(LoginView):
    """The sign-in page: 429 with Retry-After after too many wrong passwords, as the API."""

    template_name = "web/sign_in.html"
    redirect_authenticated_user = True
    form_class = SignInForm

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        answer = super().form_invalid(form)
        for error in form.errors.as_data().get("__all__", []):
            wait_s = (error.params or {}).get("retry_after_s")
            if wait_s is not None:
                answer.status_code, answer["Retry-After"] = 429, str(wait_s)
        return answer


sign_in = SignInView.as_view()
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
