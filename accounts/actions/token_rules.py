"""The verbs of rules: which identity tokens get which token, and which people which role."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from accounts.actions.issuers import end_tokens
from accounts.core.access import CROSS_TEAM, EVERY_TEAM, MAY, Actor, Role, Verb, require, require_version, scope_from
from accounts.core.claims import IssuerKind, life_problem, rule_problems
from accounts.models import Issuer, RoleRule, Team, Token, TokenRule, User
from ledger.actions import append_event
from ledger.core.errors import Invalid, field_error

MOST_RULES = 200
#: What no program of somebody else's gets: the account's own tokens, from which it could make longer ones, the installation, and
#: what people answer for: approving, waiving, and promoting without the evidence.
NEVER = frozenset({Verb.ADMINISTER, Verb.MANAGE_ACCOUNT, Verb.APPROVE_ROLLOUT, Verb.WAIVE_CODE, Verb.PROMOTE_NOW})
CHANGEABLE = ("title", "claims", "username", "verbs", "models", "life_s", "is_active")


@transaction.atomic
def create_token_rule(*, actor: Actor, issuer: Issuer, **values: Any) -> TokenRule:
    """The rule; `values` is of CHANGEABLE. Raises Refused, Invalid with every mistake of the claims."""
    require(actor, Verb.ADMINISTER, "*")
    if TokenRule.objects.filter(issuer=issuer).count() >= MOST_RULES:
        raise Invalid("too_many_rules", f"There are {MOST_RULES} rules already. Delete one that nobody needs.")
    row = TokenRule(issuer=issuer, created_by=actor.name)
    _fill(row, {"claims": {}, "username": "", "verbs": [], "title": "", **values})
    row.save(force_insert=True)
    _tell("token_rule.created", row, actor)
    return row


@transaction.atomic
def change_token_rule(
    *, actor: Actor, rule: TokenRule, expected_version: int | None, changes: dict[str, Any]
) -> TokenRule:
    """The rule with other values of CHANGEABLE; tokens that it gave before end, so that none has more than it gives now.

    Raises Refused, Stale, Invalid.
    """
    require(actor, Verb.ADMINISTER, "*")
    row = (
        TokenRule.objects.select_for_update(no_key=True, of=("self",)).select_related("issuer", "user").get(pk=rule.pk)
    )
    require_version(row.version, expected_version, f"rule {row.pk}")
    before = _facts(row)
    _fill(row, changes)
    if _facts(row) == before:
        return row
    row.version += 1
    row.save()
    _tell("token_rule.changed", row, actor, tokens_ended=end_tokens(Token.objects.filter(exchanged__rule=row)))
    return row


@transaction.atomic
def delete_token_rule(*, actor: Actor, rule: TokenRule, expected_version: int | None) -> None:
    """No token is given by it any more, and those that were end. Raises Refused, Stale."""
    require(actor, Verb.ADMINISTER, "*")
    row = (
        TokenRule.objects.select_for_update(no_key=True, of=("self",)).select_related("issuer", "user").get(pk=rule.pk)
    )
    require_version(row.version, expected_version, f"rule {row.pk}")
    _tell("token_rule.deleted", row, actor, tokens_ended=end_tokens(Token.objects.filter(exchanged__rule=row)))
    row.delete()


@transaction.atomic
def create_role_rule(*, actor: Actor, issuer: Issuer, claims: Any, team: str, role: str) -> RoleRule:
    """Whoever signs in with such claims holds the role, until a sign-in without them. `*` is every team. Raises Refused, Invalid."""
    require(actor, Verb.ADMINISTER, "*")
    if problems := rule_problems(claims, IssuerKind(issuer.kind), is_for_people=True):
        raise _invalid(problems)
    if role not in set(Role):
        raise field_error("role", f"{role!r:.40} is no role.", f"Use one of {', '.join(Role)}.")
    its_team = Team.objects.filter(slug=team).first() if team.isprintable() else None
    if its_team is None and team != EVERY_TEAM:
        raise field_error("team", f"There is no team {team[:50]}.", "Create the team first.")
    if its_team is None and role not in CROSS_TEAM:
        raise field_error("role", f"The role {role} is held team by team.", "Name the team.")
    if RoleRule.objects.filter(issuer=issuer).count() >= MOST_RULES:
        raise Invalid("too_many_rules", f"There are {MOST_RULES} rules already. Delete one that nobody needs.")
    row = RoleRule.objects.create(issuer=issuer, claims=claims, team=its_team, role=role, created_by=actor.name)
    _tell_role_rule("role_rule.created", row, actor)
    return row


@transaction.atomic
def delete_role_rule(*, actor: Actor, rule: RoleRule) -> None:
    """No role is given by it any more; each person loses it at the next sign-in, when no other rule gives it. Raises Refused."""
    require(actor, Verb.ADMINISTER, "*")
    _tell_role_rule("role_rule.deleted", rule, actor)
    rule.delete()


def _fill(row: TokenRule, values: dict[str, Any]) -> None:
    """Raises Invalid with every mistake."""
    problems: list[dict[str, str]] = []
    if unknown := sorted(set(values) - set(CHANGEABLE)):
        problems.append(_problem(unknown[0], "This cannot be set.", f"What can is {', '.join(CHANGEABLE)}."))
    row.claims = values.get("claims", row.claims)
    if "claims" in values or values.get("is_active"):
        problems += row.problems
    if "username" in values:
        problems += _take_robot(row, values["username"])
    if "verbs" in values or "models" in values:
        problems += _take_scope(row, values.get("verbs", row.scope_verbs), values.get("models", row.scope_models))
    for name in ("title", "life_s", "is_active"):
        if name in values:
            setattr(row, name, values[name])
    if not 1 <= len(row.title) <= 100 or not row.title.isprintable():
        problems.append(_problem("title", "A title has 1 to 100 printable characters.", "Say what the rule is for."))
    if problem := life_problem(row.life_s):
        problems.append(_problem("life_s", problem, "Choose a time in between."))
    if problems:
        raise _invalid(problems)


def _take_robot(row: TokenRule, username: str) -> list[dict[str, str]]:
    user = User.objects.filter(username=username, is_active=True).first() if username.isprintable() else None
    if user is None:
        return [_problem("username", f"There is no active user {username[:150]}.", "Create the robot first.")]
    if user.is_superuser or user.has_usable_password():
        return [
            _problem(
                "username",
                f"{username} is a person or an administrator, who would answer for what a program does.",
                "Name a user without a password, with a role in the teams that it works for.",
            )
        ]
    row.user = user
    return []


def _take_scope(row: TokenRule, verbs: Any, models: Any) -> list[dict[str, str]]:
    if not verbs:
        return [
            _problem("verbs", "The rule gives no verb.", "Name verbs, or the role whose verbs it gives, such as ci.")
        ]
    try:
        scope = scope_from(verbs, models or None)
    except Invalid as error:
        found: list[dict[str, str]] = error.facts["errors"]
        return found
    if taken := sorted(NEVER & (scope.verbs or frozenset())):
        return [_problem("verbs", f"No rule gives {taken[0]}.", f"Leave it out, or name one of {_roles_to_give()}.")]
    row.scope_verbs = sorted(scope.verbs or ())
    row.scope_models = None if scope.models is None else sorted(scope.models)
    return []


def _roles_to_give() -> str:
    return ", ".join(role for role, verbs in MAY.items() if not NEVER & verbs)


def _invalid(problems: list[dict[str, str]]) -> Invalid:
    told = " ".join(f"{one['message']} {one['fix']}" for one in problems)
    return Invalid("invalid", told, errors=problems)


def _problem(field: str, message: str, fix: str) -> dict[str, str]:
    return {"field": field, "message": message, "fix": fix}


def _facts(row: TokenRule) -> dict[str, Any]:
    return {
        "title": row.title, "claims": row.claims, "username": row.user.username, "verbs": row.scope_verbs,
        "models": row.scope_models, "life_s": row.life_s, "is_active": row.is_active,
    }  # fmt: skip


def _tell(verb: str, row: TokenRule, actor: Actor, **facts: Any) -> None:
    append_event(
        verb=verb,
        subject_type="token_rule",
        subject_id=row.pk,
        actor=actor,
        facts={"issuer": row.issuer.url, **_facts(row), **facts},
    )


def _tell_role_rule(verb: str, row: RoleRule, actor: Actor) -> None:
    facts = {
        "issuer": row.issuer.url,
        "claims": row.claims,
        "team": row.team.slug if row.team else EVERY_TEAM,
        "role": row.role,
    }
    append_event(verb=verb, subject_type="role_rule", subject_id=row.pk, actor=actor, facts=facts)
