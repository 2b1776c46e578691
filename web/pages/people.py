"""People and teams: who may come in, with which roles, and everything that ends that."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache

from accounts import actions, queries
from accounts.api.requests import actor_of
from accounts.core.access import CROSS_TEAM, EVERY_TEAM, Role, Verb, may, require
from accounts.models import User
from ledger.core.errors import DomainError, Invalid
from web.listing import Filter, asked
from web.pages.forms import act, optional_reason_in, refused
from web.pages.settings_frame import act_confirmed, render_settings, require_administrator
from web.pages.token_facts import token_facts

PEOPLE_PER_PAGE = 50
STATES = (("active", "may come in"), ("inactive", "shut out"), ("administrators", "administrators"))
#: Purpose of each role, for the form.
ROLE_TEXTS = {
    Role.VIEWER: "reads, and nothing else",
    Role.MODEL_TEAM: "makes models, pushes, starts rollouts",
    Role.CI: "pushes, runs gates, starts rollouts",
    Role.RELEASE_MANAGER: "approves, advances, waives, promotes",
}


@dataclass(frozen=True)
class Ask:
    """A verb of a person's page, as `_parts/dialog.html` asks for it, with its effect."""

    id: str
    label: str
    says: str
    action: str
    is_danger: bool = False
    has_no_reason: bool = True
    reason: str = ""

    @property
    def button_class(self) -> str:
        return "danger" if self.is_danger else ""


def _asks(user: User) -> list[Ask]:
    """The verbs that there are for this person now."""
    address = {
        name: reverse(f"person_{name}", args=[user.username])
        for name in ("deactivate", "reactivate", "password", "administer", "end-administration")
    }
    name = user.username
    out = f"Every session, open page and token of {name} ends at once. Roles and what {name} did stay."
    again = f"{name} may come in again, with the roles below. Tokens and sessions of before stay ended."
    anew = f"A new password is made and shown to you once. The old one, every session and every token of {name} end."
    every = f"{name} may do everything in every team, give roles, and shut people out."
    no_more = f"{name} keeps the roles below, and administers nothing any more."
    found = []
    if user.is_active:
        out_ask = Ask("deactivate", "Shut out", out, address["deactivate"], True, False, "No longer needed.")
        found += [out_ask, Ask("password", "Give a new password", anew, address["password"])]
    else:
        found += [Ask("reactivate", "Let in again", again, address["reactivate"], has_no_reason=False)]
    if user.is_superuser:
        found += [Ask("no-admin", "End administration", no_more, address["end-administration"], is_danger=True)]
    else:
        found += [Ask("admin", "Make administrator", every, address["administer"])]
    return found


@login_required
def people(request: HttpRequest) -> HttpResponse:
    """Everybody, filtered by name, role and state."""
    require_administrator(request)
    return _people(request, {})


def _people(request: HttpRequest, form: dict[str, Any]) -> HttpResponse:
    filters = asked(
        request,
        Filter("q", "Name", hint="part of a name"),
        Filter("role", "Role", [(role.value, role.value) for role in Role]),
        Filter("state", "State", STATES),
    )
    text, role, state = (one.value for one in filters)
    rows = queries.people(text=text, role=role, state=state)
    facts = {
        "page": Paginator(rows, PEOPLE_PER_PAGE).get_page(request.GET.get("page")),
        "filters": filters,
        "is_filtered": bool(text or role or state),
        "teams": queries.teams(),
        "roles": [(role.value, ROLE_TEXTS[role]) for role in Role],
        "form": form,
    }
    return render_settings(request, "settings/people.html", "people", facts)


@login_required
def create(request: HttpRequest) -> HttpResponse:
    """A new person or robot, at first without a password."""
    require_administrator(request)
    given = {name: request.POST.get(name, "").strip() for name in ("username", "team", "role")}

    def verb() -> None:
        if bool(given["team"]) != bool(given["role"]):
            raise Invalid("invalid", "A role is held in a team: choose both, or neither.")
        actor = actor_of(request)
        actions.create_user(actor=actor, username=given["username"])
        if given["team"]:
            actions.grant_role(actor=actor, username=given["username"], team=given["team"], role=given["role"])

    def says() -> list[str]:
        what = f"with the role {given['role']} in {_team_text(given['team'])}" if given["team"] else "without a role"
        return [
            f"{given['username']} becomes a user, {what}.",
            "Nothing lets the user in yet: give a password, or issue a token, on the page that follows.",
        ]

    return act_confirmed(
        request,
        verb,
        title=f"Create {given['username']}",
        says=says,
        done=f"{given['username']} is created. Give a password or issue a token, so that they can come in.",
        then=lambda: reverse("person", args=[given["username"]]),
        page=lambda: _people(request, given),
    )


@login_required
def person(request: HttpRequest, username: str) -> HttpResponse:
    """One person: roles, tokens, sessions, and what ends each. One's own page is the account's, except for administrators."""
    actor = actor_of(request)
    if actor.name == username and not may(actor, Verb.ADMINISTER, EVERY_TEAM):
        return redirect("account")
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    return show_person(request, queries.get_user(username))


def show_person(request: HttpRequest, user: User) -> HttpResponse:
    """The page of a person, also after a form on it was refused."""
    held = list(user.memberships.select_related("team").order_by("team__slug", "role"))
    facts = {
        "person": user,
        "held": held,
        "asks": _asks(user),
        "teams": queries.teams(),
        "roles": [(role.value, ROLE_TEXTS[role]) for role in Role],
        "cross_team": sorted(role.value for role in CROSS_TEAM),
        "audit_url": audit_url(user.username),
        "is_self": request.user.pk == user.pk,
        **token_facts(request, user),
    }
    return render_settings(request, "settings/person.html", "people", facts)


def audit_url(username: str) -> str:
    """Address of the list of the person's activity."""
    try:
        page = reverse("audit")
    except NoReverseMatch:
        page = reverse("events")
    return f"{page}?{urlencode({'actor': username})}"


def _team_text(team: str) -> str:
    return "every team" if team == EVERY_TEAM else f"team {team}"


@login_required
def change_role(request: HttpRequest, username: str, verb: str) -> HttpResponse:
    """Gives a role, once it was asked; takes one at once."""
    require_administrator(request)
    user, actor = queries.get_user(username), actor_of(request)
    team, role = request.POST.get("team", ""), request.POST.get("role", "")
    what = f"the role {role} in {_team_text(team)}"
    if verb == "take":
        return act(
            request,
            lambda: actions.revoke_role(actor=actor, username=username, team=team, role=role),
            done=f"{username} has no longer {what}.",
            then=reverse("person", args=[username]),
            page=lambda: show_person(request, user),
        )

    def says() -> list[str]:
        every = ["It holds in teams that are made later, too."] if team == EVERY_TEAM else []
        return [f"{username} has {what}: {ROLE_TEXTS[Role(role)]}.", *every, "It counts from the next request on."]

    return act_confirmed(
        request,
        lambda: actions.grant_role(actor=actor, username=username, team=team, role=role),
        title=f"Give {username} {what}",
        says=says,
        done=f"{username} has {what}.",
        then=lambda: reverse("person", args=[username]),
        page=lambda: show_person(request, user),
    )


@login_required
def change_standing(request: HttpRequest, username: str, verb: str) -> HttpResponse:
    """Shuts out, lets in again, makes an administrator, or ends that. The page's button has asked."""
    require_administrator(request)
    user, actor = queries.get_user(username), actor_of(request)
    verbs: dict[str, tuple[Callable[[str], object], str]] = {
        "deactivate": (
            lambda reason: actions.deactivate_user(actor=actor, username=username, reason=reason),
            f"{username} is shut out; sessions and tokens have ended.",
        ),
        "reactivate": (
            lambda reason: actions.reactivate_user(actor=actor, username=username, reason=reason),
            f"{username} may come in again; tokens must be issued anew.",
        ),
        "administer": (
            lambda reason: actions.set_administrator(actor=actor, username=username, is_admin=True),
            f"{username} administers everything.",
        ),
        "end-administration": (
            lambda reason: actions.set_administrator(actor=actor, username=username, is_admin=False),
            f"{username} is no administrator any more.",
        ),
    }
    change, done = verbs[verb]
    return act(
        request,
        lambda: change(optional_reason_in(request)),
        done=done,
        then=reverse("person", args=[username]),
        page=lambda: show_person(request, user),
    )


@login_required
@never_cache
def new_password(request: HttpRequest, username: str) -> HttpResponse:
    """A password made here, which no other page shows; the old one, every session and every token end."""
    require_administrator(request)
    user, password = queries.get_user(username), secrets.token_urlsafe(15)
    try:
        actions.change_password(actor=actor_of(request), user=user, password=password)
    except DomainError as error:
        return refused(request, error, lambda: show_person(request, user))
    facts = {
        "title": f"The password of {username}",
        "secret": password,
        "says": "They should change it after the first sign-in, under “Change your password”.",
        "back": reverse("person", args=[username]),
        "back_label": f"To {username}",
    }
    return render(request, "settings/secret.html", facts)


@login_required
def end_session(request: HttpRequest, username: str, pk: int) -> HttpResponse:
    """Signs out there. One's own from the account's page, others' for administrators."""
    actor = actor_of(request)
    if actor.name != username:
        require_administrator(request)
    user = queries.get_user(username)
    page = reverse("account") if actor.user_id == user.pk else reverse("person", args=[username])
    row = user.sessions.filter(pk=pk).first()
    if row is not None:  # it may have ended meanwhile, as wanted
        actions.end_session(actor=actor, session=row)
    return act(request, lambda: None, done="That session has ended.", then=page, page=lambda: redirect(page))


@login_required
def teams(request: HttpRequest) -> HttpResponse:
    """The visible teams with their members; the person's own first."""
    return _teams(request, {})


def _teams(request: HttpRequest, form: dict[str, Any]) -> HttpResponse:
    actor = actor_of(request)
    rows = queries.teams_with_members(actor)
    facts = {
        "page": Paginator(rows, PEOPLE_PER_PAGE).get_page(request.GET.get("page")),
        "everywhere": list(queries.cross_team_members()) if rows.exists() else [],
        "form": form,
    }
    return render_settings(request, "settings/teams.html", "teams", facts)


@login_required
def create_team(request: HttpRequest) -> HttpResponse:
    """A new team, which has no members yet."""
    require_administrator(request)
    given = {name: request.POST.get(name, "").strip() for name in ("slug", "title")}
    return act_confirmed(
        request,
        lambda: actions.create_team(actor=actor_of(request), **given),
        title=f"Create team {given['slug']}",
        says=lambda: [
            f"There is a team {given['slug']}, without members or models.",
            "Its name stays for good; it stands in the log and in webhooks.",
        ],
        done=f"Team {given['slug']} is created. Give people roles in it.",
        then=lambda: reverse("teams"),
        page=lambda: _teams(request, given),
    )
