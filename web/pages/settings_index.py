"""What there is to set, and what the reader may do on each of these pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse

from accounts.api.requests import actor_of
from accounts.core.access import EVERY_TEAM, Actor, Verb, may, teams_where
from web.pages.settings_frame import pages_of_settings, render_settings


@dataclass(frozen=True)
class SettingsPage:
    """A page of settings. `url` is empty for one that the reader may not open."""

    label: str
    url: str
    holds: str
    can: str


def _administers(actor: Actor) -> bool:
    return may(actor, Verb.ADMINISTER, EVERY_TEAM)


def _of_teams(actor: Actor) -> str:
    teams = teams_where(actor, Verb.MANAGE_WEBHOOKS)
    if teams is None:
        return "You may make, change and delete those of every team."
    if teams:
        return f"You may make, change and delete those of team {', '.join(sorted(teams))}."
    return "You may do nothing here: it takes the role model_team or release_manager."


def _else_read(done: str) -> Callable[[Actor], str]:
    def can(actor: Actor) -> str:
        return f"You may {done}." if _administers(actor) else f"You may read them; only an administrator may {done}."

    return can


def _alone(done: str) -> Callable[[Actor], str]:
    def can(actor: Actor) -> str:
        return f"You may {done}." if _administers(actor) else "Only an administrator may open it."

    return can


#: By the name of the page: what it holds, and what an actor may do there.
_SAID: Final[Mapping[str, tuple[str, Callable[[Actor], str]]]] = {
    "people": ("Who has an account, with which roles, tokens and sessions.", _alone("make accounts, give roles and shut people out")),
    "teams": ("Who owns models, and who is in which team with which role.", _else_read("make teams and give roles")),
    "tokens": ("Every token of everybody: its scope, when it was used last and when it ends.", _alone("revoke any of them")),
    "webhooks": ("Who is told of what: webhooks, chat and e-mail, with the log of every delivery.", _of_teams),
    "settings_environments": (
        "Staging, production and others: their rules for entering, their freezes and their gateways.",
        _else_read("make environments and change their rules"),
    ),
    "status": ("Whether our own processes are about: engine, control plane, agents, workers.", lambda _: "You may read it."),
}  # fmt: skip


@login_required
def settings(request: HttpRequest) -> HttpResponse:
    """Every page of settings, also those that the reader may not open, so that who may is known."""
    actor = actor_of(request)
    entries = []
    for name, label, url, is_open in pages_of_settings(is_admin=_administers(actor)):
        holds, can = _SAID[name]
        entries.append(SettingsPage(label, url if is_open else "", holds, can(actor)))
    return render_settings(request, "settings/index.html", "settings", {"entries": entries})
