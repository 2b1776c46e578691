"""How one likes the pages: scheme, times and single keys, kept in a cookie of this browser. Nothing here needs a script."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_http_methods

from accounts.api.requests import actor_of
from rollouts.queries.inbox import Counted, counted_for
from web.pages.session import live

COOKIE: Final = "looks"
_A_YEAR_S: Final = 365 * 86_400
#: What each may be; the first is what everybody has who chose nothing.
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "scheme": ("system", "light", "dark"),
    "times": ("ago", "utc"),
    "keys": ("on", "off"),
}


@dataclass(frozen=True)
class Looks:
    """One of `CHOICES` for each."""

    scheme: str = "system"
    times: str = "ago"
    keys: str = "on"

    def as_cookie(self) -> str:
        return ".".join(getattr(self, field.name) for field in fields(self))


def looks_of(request: HttpRequest) -> Looks:
    """The browser's choice by its cookie; the defaults if it has none or an unknown value."""
    said = request.COOKIES.get(COOKIE, "").split(".")
    known = {name: value for (name, choices), value in zip(CHOICES.items(), said, strict=False) if value in choices}
    return Looks(**known)


def shell(request: HttpRequest) -> dict[str, Any]:
    """Context processor: what `base.html` needs on every page. What waits for the person is counted when it is shown, and by one
    query; a page with the answer passes it in its facts."""
    return {
        "looks": looks_of(request),
        "approvals_waiting": SimpleLazyObject(lambda: _counted(request).waiting),
        "lost_models": SimpleLazyObject(lambda: _counted(request).lost),
        "live_alarms": SimpleLazyObject(lambda: _counted(request).alarms),
    }


def _counted(request: HttpRequest) -> Counted:
    """Counted once for each request."""
    known = getattr(request, "_counted", None)
    if known is None:
        known = counted_for(actor_of(request)) if request.user.is_authenticated else Counted()
        request._counted = known  # type: ignore[attr-defined]
    return known


@live
def main_links(request: HttpRequest) -> HttpResponse:
    """The main navigation with its numbers, for the page at `?at=`."""
    return render(request, "_parts/main_links.html", {"nav_path": request.GET.get("at", "/")})


@require_http_methods(["GET", "HEAD", "POST"])
def choose(request: HttpRequest) -> HttpResponse:
    """Stores the form's choice, and returns to the page that sent it."""
    then = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(then, allowed_hosts=None):
        then = reverse("overview")
    answer = redirect(then)
    if request.method == "POST":
        now = looks_of(request)
        chosen = {
            name: value if (value := request.POST.get(name, "")) in choices else getattr(now, name)
            for name, choices in CHOICES.items()
        }
        answer.set_cookie(
            COOKIE,
            Looks(**chosen).as_cookie(),
            max_age=_A_YEAR_S,
            samesite="Lax",
            httponly=True,
            secure=request.is_secure(),
        )
        messages.success(request, "The pages look as you chose, in this browser.")
    return answer
