"""Settings, Issuers: identity providers, the rules of each, and the token that a claim would get."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from accounts.actions import issuers as actions
from accounts.actions import token_rules as rules
from accounts.actions.token_exchange import explain
from accounts.adapters.issuer_keys import ISSUERS
from accounts.api.requests import actor_of
from accounts.core.access import EVERY_TEAM, Role
from accounts.core.claims import BOUND, LASTING, IssuerKind
from accounts.models import Issuer, TokenRule
from accounts.queries import active_users, teams
from accounts.queries import issuers as queries
from ledger.core.errors import Invalid
from web.pages.forms import act, version_in
from web.pages.settings_frame import act_confirmed, lines_of, render_settings, require_administrator, words_of

_FLAGS = ("is_for_people", "creates_accounts")
_TEXTS = ("title", "client_id", "audience")


@login_required
def issuers(request: HttpRequest) -> HttpResponse:
    require_administrator(request)
    facts = {
        "rows": queries.issuers(actor_of(request)),
        "kinds": list(IssuerKind),
        "row": dict.fromkeys((*_TEXTS, *_FLAGS, "client_secret", "session_hours"), ""),
        "form": request.POST,
        "return_address": request.build_absolute_uri(reverse("issuer_return", args=[0])).replace("/0/", "/N/"),
    }
    return render_settings(request, "settings/issuers.html", "issuers", facts)


@sensitive_post_parameters("client_secret")
@login_required
def create(request: HttpRequest) -> HttpResponse:
    made: list[Issuer] = []
    given = request.POST

    def verb() -> None:
        made[:] = [
            actions.create_issuer(
                actor=actor_of(request),
                url=given.get("url", "").strip(),
                kind=given.get("kind", ""),
                **_values(request),
            )
        ]

    return act_confirmed(
        request, verb, title="Add this issuer", says=lambda: _says(made[0]), done="Done. Ask it now whether it answers.",
        then=lambda: reverse("issuer", args=[made[0].pk]), page=lambda: issuers(request),
    )  # fmt: skip


@login_required
@never_cache
def issuer(request: HttpRequest, pk: int) -> HttpResponse:
    actor = actor_of(request)
    row = queries.get_issuer(actor, pk)
    kind = IssuerKind(row.kind)
    facts = {
        "row": row,
        "token_rules": queries.token_rules(row),
        "role_rules": queries.role_rules(row),
        "identities": queries.identities_of(row)[:200],
        "robots": [user for user in active_users() if not user.is_superuser and not user.has_usable_password()],
        "teams": teams(),
        "roles": list(Role),
        "lasting": LASTING[kind],
        "bound": BOUND[kind],
        "problem": ISSUERS.problem(row.url),
        "form": request.POST,
        "return_address": request.build_absolute_uri(reverse("issuer_return", args=[row.pk])),
    }
    return render_settings(request, "settings/issuer.html", "issuers", facts)


@login_required
def check(request: HttpRequest, pk: int) -> HttpResponse:
    actor = actor_of(request)
    row = queries.get_issuer(actor, pk)
    found: list[int] = []

    def verb() -> None:
        found.append(actions.check_issuer(actor=actor, issuer=row)[1])

    return act(
        request, verb, done="It answers, calls itself as we do, and publishes its keys.",
        then=reverse("issuer", args=[pk]), page=lambda: issuer(request, pk),
    )  # fmt: skip


@sensitive_post_parameters("client_secret")
@login_required
def change(request: HttpRequest, pk: int) -> HttpResponse:
    actor, row = actor_of(request), queries.get_issuer(actor_of(request), pk)
    changed: list[Issuer] = []

    def verb() -> None:
        changed[:] = [
            actions.change_issuer(
                actor=actor, issuer=row, expected_version=version_in(request), changes=_values(request)
            )
        ]

    return act_confirmed(
        request, verb, title="Change this issuer", says=lambda: _says(changed[0]), done="The issuer is changed.",
        then=lambda: reverse("issuer", args=[pk]), page=lambda: issuer(request, pk),
    )  # fmt: skip


@login_required
def turn_off(request: HttpRequest, pk: int) -> HttpResponse:
    """Acts at once and at any version, since it removes access."""
    actor = actor_of(request)
    row = queries.get_issuer(actor, pk)
    return act(
        request,
        lambda: actions.change_issuer(actor=actor, issuer=row, expected_version=None, changes={"is_active": False}),
        done="The issuer is disabled. Its sessions and the tokens of its rules have ended, and so have the tokens of people "
        "without another way to sign in.",
        then=reverse("issuer", args=[pk]),
        page=lambda: issuer(request, pk),
    )


@login_required
def turn_on(request: HttpRequest, pk: int) -> HttpResponse:
    actor = actor_of(request)
    row = queries.get_issuer(actor, pk)
    changed: list[Issuer] = []

    def verb() -> None:
        changed[:] = [
            actions.change_issuer(
                actor=actor, issuer=row, expected_version=version_in(request), changes={"is_active": True}
            )
        ]

    return act_confirmed(
        request, verb, title="Turn this issuer on", says=lambda: _says(changed[0]), done="It is on.",
        then=lambda: reverse("issuer", args=[pk]), page=lambda: issuer(request, pk),
    )  # fmt: skip


@login_required
def create_rule(request: HttpRequest, pk: int) -> HttpResponse:
    actor = actor_of(request)
    row, given = queries.get_issuer(actor, pk), request.POST
    made: list[TokenRule] = []

    def verb() -> None:
        made[:] = [
            rules.create_token_rule(
                actor=actor,
                issuer=row,
                title=given.get("rule_title", "").strip(),
                claims=lines_of(given.get("claims", ""), what="Claims"),
                username=given.get("username", ""),
                verbs=words_of(given.get("verbs", "")),
                models=words_of(given.get("models", "")) or None,
                life_s=_minutes(given.get("life_min", "")) * 60,
            )
        ]

    return act_confirmed(
        request, verb, title="Create this rule", says=lambda: _rule_says(made[0]), done="The rule is there.",
        then=lambda: reverse("issuer", args=[pk]) + "#rules", page=lambda: issuer(request, pk),
    )  # fmt: skip


@login_required
def turn_rule(request: HttpRequest, pk: int, rule: int, to: str) -> HttpResponse:
    """`to` off: at once; on: after a question; delete: at once, since it shuts as well."""
    actor = actor_of(request)
    row = queries.get_token_rule(actor, rule)
    if to not in {"on", "off", "delete"}:
        raise Http404
    then = reverse("issuer", args=[row.issuer_id]) + "#rules"
    if to == "delete":
        return act(
            request, lambda: rules.delete_token_rule(actor=actor, rule=row, expected_version=None),
            done="The rule is gone, and its tokens have ended.", then=then, page=lambda: issuer(request, row.issuer_id),
        )  # fmt: skip

    def verb() -> None:
        version = version_in(request) if to == "on" else None
        rules.change_token_rule(actor=actor, rule=row, expected_version=version, changes={"is_active": to == "on"})

    if to == "on":
        return act_confirmed(
            request, verb, title="Turn this rule on", says=lambda: _rule_says(row), done="The rule is on.",
            then=lambda: then, page=lambda: issuer(request, row.issuer_id),
        )  # fmt: skip
    return act(
        request, verb, done="The rule is off, and its tokens have ended.", then=then,
        page=lambda: issuer(request, row.issuer_id),
    )  # fmt: skip


@login_required
def create_role_rule(request: HttpRequest, pk: int) -> HttpResponse:
    actor = actor_of(request)
    row, given = queries.get_issuer(actor, pk), request.POST
    team, role = given.get("team", ""), given.get("role", "")

    def verb() -> None:
        claims = lines_of(given.get("role_claims", ""), what="Claims")
        rules.create_role_rule(actor=actor, issuer=row, claims=claims, team=team, role=role)

    where = "in every team" if team == EVERY_TEAM else f"in team {team}"
    told = " and ".join(given.get("role_claims", "").split("\n")).strip()
    return act_confirmed(
        request, verb, title="Create this rule",
        says=lambda: [f"Whoever signs in with {row.title} and has {told} holds the role {role} {where}.",
                      "A sign-in without them takes it away again."],
        done="The rule holds from the next sign-in on.",
        then=lambda: reverse("issuer", args=[pk]) + "#roles", page=lambda: issuer(request, pk),
    )  # fmt: skip


@login_required
def delete_role_rule(request: HttpRequest, pk: int, rule: int) -> HttpResponse:
    actor = actor_of(request)
    row = queries.get_role_rule(actor, rule)
    return act(
        request, lambda: rules.delete_role_rule(actor=actor, rule=row),
        done="The rule is gone. People lose the role at their next sign-in; take it away under People to end it now.",
        then=reverse("issuer", args=[pk]) + "#roles", page=lambda: issuer(request, pk),
    )  # fmt: skip


@login_required
def prepare(request: HttpRequest, pk: int) -> HttpResponse:
    actor, given = actor_of(request), request.POST
    row = queries.get_issuer(actor, pk)
    username, sub = given.get("person", "").strip(), given.get("sub", "").strip()
    return act_confirmed(
        request, lambda: actions.prepare_identity(actor=actor, issuer=row, username=username, sub=sub),
        title="Prepare this account", says=lambda: [f"Whom {row.title} calls {sub} signs in as {username}, with all its roles."],
        done="The account is prepared.", then=lambda: reverse("issuer", args=[pk]) + "#people",
        page=lambda: issuer(request, pk),
    )  # fmt: skip


@login_required
def remove(request: HttpRequest, pk: int, identity: int) -> HttpResponse:
    actor = actor_of(request)
    row = queries.get_identity(actor, identity)
    return act(
        request, lambda: actions.remove_identity(actor=actor, identity=row),
        done="The issuer no longer signs that user in, and sessions that it began have ended; all tokens, too, if there is no other "
        "way to sign in.",
        then=reverse("issuer", args=[pk]) + "#people", page=lambda: issuer(request, pk),
    )  # fmt: skip


@sensitive_post_parameters("id_token")
@login_required
@never_cache
def try_token(request: HttpRequest) -> HttpResponse:
    """What would this token get? Nothing is used up, and nothing of it is kept."""
    require_administrator(request)
    actor, given = actor_of(request), request.POST
    told = given.get("id_token", "").strip()
    explanation = None
    if request.method == "POST" and told:
        claims, row = None, None
        if told.startswith("{"):
            row = (
                queries.get_issuer(actor, int(given.get("issuer") or 0))
                if given.get("issuer", "").isdecimal()
                else None
            )
            claims = _json(told)
        explanation = explain(actor=actor, id_token=told, issuer=row, claims=claims)
    facts: dict[str, Any] = {
        "explanation": explanation,
        "rows": queries.issuers(actor),
        "form": given,
        "asked": bool(told),
    }
    return render_settings(request, "settings/try_token.html", "issuers", facts)


def _values(request: HttpRequest) -> dict[str, Any]:
    """The form's fields. An empty secret keeps the old secret."""
    given = request.POST
    values: dict[str, Any] = {name: given.get(name, "").strip() for name in _TEXTS}
    values |= {name: given.get(name) == "on" for name in _FLAGS}
    hours = given.get("session_hours", "12").strip()
    values["session_hours"] = int(hours) if hours.isdecimal() and len(hours) < 6 else 0
    if given.get("client_secret"):
        values["client_secret"] = given["client_secret"]
    return values


def _says(row: Issuer) -> list[str]:
    told = []
    if row.is_for_people:
        who = "all its people, each with a new account without roles" if row.creates_accounts else "prepared accounts"
        told.append(f"{row.url} signs in {who}, for {row.session_hours} hours at a time.")
    else:
        told.append(f"{row.url} signs no people in.")
    if row.audience:
        told.append(f"Programs with its identity tokens for {row.audience} get tokens by the rules that you write.")
    else:
        told.append("No programs get tokens by it, since it has no audience.")
    return told


def _rule_says(row: TokenRule) -> list[str]:
    demanded = ", ".join(f"{name} = {value}" for name, value in sorted(row.claims.items()))
    models = "all models" if row.scope_models is None else ", ".join(row.scope_models)
    return [
        f"A program with an identity token of {row.issuer.title} with {demanded} gets a token of {row.user.username}.",
        f"The token lives {row.life_s // 60} minutes and may {', '.join(row.scope_verbs)} on {models}, as far as "
        f"{row.user.username} may.",
    ]


def _minutes(text: str) -> int:
    """Raises Invalid."""
    if not text.isdecimal() or len(text) > 4:
        raise Invalid("invalid", "A token's life is a whole number of minutes, 15 to 60.")
    return int(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return []
