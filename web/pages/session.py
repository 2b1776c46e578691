"""Sign-in, sign-out, and the page for a failed sign-in."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login, update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.exceptions import SessionInterrupted
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.exceptions import ValidationError
from django.db import DataError
from django.db import Error as DatabaseError  # also InterfaceError: a connection that is gone
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.template.exceptions import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.views import defaults as default_views
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from accounts import actions
from accounts.actions import change_password, prove_password
from accounts.actions import sign_in as prove_sign_in
from accounts.api.requests import actor_of, client_address
from accounts.models import Issuer, User
from accounts.queries import get_user, issuer_of_session
from accounts.queries.issuers import issuers_for_people
from ledger.adapters.database_errors import unavailable
from ledger.core.errors import DomainError, Invalid, Throttled, Unavailable
from web.pages.forms import refused

log = logging.getLogger(__name__)
#: When the use of the session was last written down; sessions that no sign-in of ours began have none.
_SEEN = "seen_at"
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

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**super().get_context_data(**kwargs), "issuers": issuers_for_people()}

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        answer = super().form_invalid(form)
        for error in form.errors.as_data().get("__all__", []):
            wait_s = (error.params or {}).get("retry_after_s")
            if wait_s is not None:
                answer.status_code = 503 if error.code == "busy" else 429
                answer["Retry-After"] = str(wait_s)
        return answer

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        user = form.get_user()
        assert isinstance(user, User)  # the form's own proof
        enter(self.request, user)
        return redirect(self.get_success_url())


class SignOutView(LogoutView):
    """Ends this browser's session, and its row in the list."""

    def post(self, request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        if isinstance(request.user, User) and request.session.session_key:
            actions.end_session_of(user=request.user, key=request.session.session_key)
        return super().post(request, *args, **named)


sign_in = SignInView.as_view()
sign_out = SignOutView.as_view()


def enter(request: HttpRequest, user: User, *, is_new: bool = True, issuer: Issuer | None = None) -> None:
    """Signs the user in with this browser, and writes down where; for every way of signing in: by the issuer, or by password.

    `is_new` False: the session goes on under a new key, after the password was changed; it is the same issuer's as before.
    """
    if is_new:
        login(request, user, backend=settings.AUTHENTICATION_BACKENDS[0])
    else:
        update_session_auth_hash(request, user)
    key = request.session.session_key
    assert key is not None  # the sign-in above created it
    actions.begin_session(
        user=user,
        key=key,
        address=client_address(request),
        user_agent=request.headers.get("User-Agent", ""),
        is_new=is_new,
        issuer=issuer,
    )
    request.session[_SEEN] = time.time()


class SeenSessions:
    """Middleware: records, every five minutes, that a session is in use; ends a session that was ended elsewhere."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response
        self.sessions = SessionMiddleware(get_response)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self.get_response(request)
        session = request.session
        if session.accessed:  # an anonymous request costs nothing
            was_modified = session.modified
            try:
                if _is_due(session):
                    _note(session)
                    self.sessions.process_response(request, answer)  # saves it, renews its cookie
                    session.modified = False
            except (DatabaseError, SessionInterrupted) as error:  # the work is done; keep its answer
                log.warning("the use of a session was not written down: %s; its next request tries again", error)
                session.modified = was_modified
        return answer


def _is_due(session: SessionBase) -> bool:
    seen = session.get(_SEEN)
    if not isinstance(seen, float) or not session.session_key:
        return False
    return time.time() - seen > actions.SEEN_EVERY.total_seconds()


def _note(session: SessionBase) -> None:
    if actions.note_session(session.session_key or ""):
        session[_SEEN] = time.time()
    else:
        session.flush()


@require_http_methods(["GET", "POST"])
@sensitive_post_parameters("old_password", "password", "again")
@login_required
def password(request: HttpRequest) -> HttpResponse:
    """One's own new password, by the old one. This session goes on; every other one ends, and every token."""

    def page() -> HttpResponse:
        return render(request, "web/password.html")

    if request.method != "POST":
        return page()
    actor, given = actor_of(request), request.POST
    try:
        if given.get("password", "") != given.get("again", ""):
            raise Invalid("passwords_differ", "The two new passwords differ; nothing was changed. Type them again.")
        user = get_user(actor.name)
        issuer = issuer_of_session(
            actions.session_digest(request.session.session_key or "")
        )  # its row ends with the password of before
        prove_password(user=user, password=given.get("old_password", ""), address=client_address(request))
        change_password(actor=actor, user=user, password=given.get("password", ""))
    except DomainError as error:
        return refused(request, error, page)
    enter(request, get_user(actor.name), is_new=False, issuer=issuer)
    messages.success(request, "Your password is changed. Other sessions and all your tokens have ended.")
    return redirect("overview")


def live(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """A fragment that a page fetches again and again: 401 and nothing else for a person who is no longer signed in.

    A redirect would be followed, and a whole sign-in page put into the middle of the page; `web/live.js` reads the 401 and
    offers to sign in instead, and keeps the screen.
    """

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return HttpResponse(status=401, headers={"Cache-Control": "no-store"})
        return view(request, *args, **named)

    return answer


class RefusalPages:
    """Middleware: a DomainError from a page, and a database that does nothing for a moment, become a page with the sentence, never a
    traceback."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if isinstance(error, (DataError, UnicodeEncodeError)):
            error = Invalid(
                "invalid", "A value is too long, out of range or holds a zero byte. Go back and correct it."
            )
        if request.path.startswith("/api/"):
            return None
        if (refusal := unavailable(error)) is not None:
            log.error("%s: %s", refusal.code, error)
            return _refusal_of_a_moment(refusal)
        if isinstance(error, DomainError):
            return render(request, "web/refusal.html", {"error": error}, status=error.status)
        return None


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's `handler500`, for errors outside of views: 503 for those of a moment, else 500."""
    error = sys.exc_info()[1]
    refusal = unavailable(error) if isinstance(error, Exception) else None
    return default_views.server_error(request) if refusal is None else _refusal_of_a_moment(refusal)


def _refusal_of_a_moment(refusal: Unavailable) -> HttpResponse:
    headers = {"Retry-After": str(refusal.facts["retry_after_s"])}
    try:
        page = render_to_string("web/refusal_bare.html", {"error": refusal})  # without a person: it may ask nothing
    except (OSError, MemoryError, TemplateDoesNotExist):  # a template is a file, too
        return HttpResponse(refusal.message, status=refusal.status, headers=headers, content_type="text/plain")
    return HttpResponse(page, status=refusal.status, headers=headers)
