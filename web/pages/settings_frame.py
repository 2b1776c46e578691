"""Shared parts of the settings pages: tabs, permissions, and the question before a change that opens something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may, require
from ledger.core.canonical import digest_of
from ledger.core.errors import DomainError, Invalid
from web.pages.forms import refused

#: (name of the page's address, its label, whether it is for administrators alone), in the order of the tabs.
_PAGES: tuple[tuple[str, str, bool], ...] = (
    ("people", "People", True),
    ("teams", "Teams", False),
    ("tokens", "Tokens", True),
    ("issuers", "Issuers", True),
    ("webhooks", "Webhooks", False),
    ("settings_environments", "Environments", False),
    ("status", "Status", False),
)


def _tabs(current: str, *, is_admin: bool) -> list[tuple[str, str, bool, None]]:
    """Of `_parts/tabs.html`: the pages of settings that this person may open."""
    return [
        (label, reverse(name), name == current, None)
        for name, label, is_for_administrators in _PAGES
        if is_admin or not is_for_administrators
    ]


def render_settings(
    request: HttpRequest, template: str, current: str, facts: dict[str, Any], status: int = 200
) -> HttpResponse:
    """A page of settings with its tabs."""
    is_admin = may(actor_of(request), Verb.ADMINISTER, "*")
    shared = {"tabs": _tabs(current, is_admin=is_admin), "is_admin": is_admin}
    return render(request, template, {**shared, **facts}, status=status)


def require_administrator(request: HttpRequest) -> None:
    """Raises Refused for everybody else."""
    require(actor_of(request), Verb.ADMINISTER, "*")


def act_confirmed(
    request: HttpRequest,
    verb: Callable[[], object],
    *,
    title: str,
    says: Callable[[], Sequence[str]],
    done: str,
    then: Callable[[], str],
    page: Callable[[], HttpResponse],
    asks_anew: bool = False,
) -> HttpResponse:
    """Runs a verb that opens something, once the person has read what will happen.

    The first time it is tried and undone, so that a refusal comes before the question; then the page shows `says` with a button.
    `asks_anew`: repeats this if `says` no longer matches the page.
    """
    is_confirmed = request.POST.get("confirmed") == "yes"
    try:
        with transaction.atomic():
            verb()
            sentences = list(says())
            if asks_anew and request.POST.get("read", digest := digest_of(sentences)) != digest:
                is_confirmed = False
                messages.warning(
                    request, "What will happen has changed since you read it. Nothing was done; read it again."
                )
            if not is_confirmed:
                transaction.set_rollback(True)
    except DomainError as error:
        return refused(request, error, page)
    if is_confirmed:
        messages.success(request, done)
        return redirect(then())
    return ask_first(request, title, sentences, read=digest_of(sentences) if asks_anew else "")


def ask_first(request: HttpRequest, title: str, sentences: Sequence[str], *, read: str = "") -> HttpResponse:
    """The question with the effect, with the form's data and `confirmed` behind its button.

    No browser keeps the page: the form may hold a secret.
    """
    sent = [(name, value) for name, values in request.POST.lists() for value in values]
    kept = [(name, value) for name, value in sent if name not in {"csrfmiddlewaretoken", "confirmed", "read"}]
    kept += [("read", read)] if read else []
    answer = render(
        request, "settings/confirm.html", {"title": title, "sentences": sentences, "kept": kept, "back": request.path}
    )
    add_never_cache_headers(answer)
    return answer


def lines_of(text: str, *, what: str) -> dict[str, str]:
    """`name = value` on each line. Raises Invalid for a line that is none, and for a name that comes twice."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, sign, value = line.partition("=")
        if not sign or not name.strip() or name.strip() in found:
            raise Invalid(
                "invalid", f"{what}: write name = value, each name once on a line of its own, and not {line[:80]!r}."
            )
        found[name.strip()] = value.strip()
    return found


def words_of(text: str) -> list[str]:
    """Words between blanks, commas or line ends."""
    return text.replace(",", " ").split()
