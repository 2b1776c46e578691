"""Identity tokens of programs, such as a CI job's, exchanged for short tokens of ours by written rules.

From there on there is one kind of token: one scope, one revocation, one access table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.actions.people import actor_for
from accounts.actions.token_rules import NEVER
from accounts.actions.tokens import issue_token, token_digest
from accounts.adapters.id_tokens import BadIdToken, issuer_named_in, verified_claims
from accounts.adapters.issuer_keys import IssuerAway
from accounts.core.access import Actor, Verb, require, scope_from
from accounts.core.claims import ClaimCheck, IssuerKind, check_claims, is_met
from accounts.models import ExchangedToken, Issuer, Token, TokenRule, UsedIdToken
from accounts.queries.issuers import token_rules
from ledger.actions import append_event
from ledger.core.errors import DomainError, Refused, Unavailable

#: Claims that an event tells, at most, and how long each of them may be.
_MOST_CLAIMS, _LONGEST_CLAIM = 60, 300


class NotBelieved(DomainError):
    """The identity token is not believed."""

    status = 401


@dataclass(frozen=True)
class Exchanged:
    """What the program gets. `token` is in clear text, never to be seen again."""

    token: str
    expires_at: datetime
    rule: TokenRule


@dataclass(frozen=True)
class RuleTried:
    """A rule beside a token's claims. `would_give`: it is the one whose token would be given. With `problems` it gives none."""

    rule: TokenRule
    checks: tuple[ClaimCheck, ...]
    is_met: bool
    would_give: bool
    problems: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class Explanation:
    """What a token would get, and why not. `problem`: why it is not believed at all, or empty."""

    issuer: Issuer | None
    problem: str
    claims: dict[str, Any]
    rules: tuple[RuleTried, ...]


def exchange_id_token(*, id_token: str, rule: int | None = None) -> Exchanged:
    """A token of the oldest rule that the identity token meets, or of the rule of that number. One that could not be saved
    today, as somebody else could meet it, gives none.

    Works once for each identity token. Raises NotBelieved, Refused, Unavailable.
    """
    issuer = _issuer_of(id_token)
    claims = _believed(id_token, issuer)
    kind = IssuerKind(issuer.kind)
    met = [one for one in token_rules(issuer).filter(is_active=True) if is_met(one.claims, claims, kind)]
    asked_for = [one for one in met if rule is None or one.pk == rule]
    chosen = next((one for one in asked_for if not one.problems), None)
    if chosen is None and asked_for:
        raise _too_wide(asked_for[0])
    if chosen is None:
        raise Refused(
            "no_rule_met",
            "The identity token is good, but it meets no rule here. An administrator can see why under Settings, Issuers, "
            "Try a token.",
            issuer=issuer.url,
            rules_met=[one.pk for one in met],
        )
    return _give(chosen, claims, _identity_of(id_token, claims))


def _too_wide(rule: TokenRule) -> Refused:
    problems = rule.problems
    told = " ".join(f"{one['message']} {one['fix']}" for one in problems)
    return Refused(
        "rule_too_wide",
        f"The identity token is good, but somebody else's could meet rule {rule.pk} ({rule.title}) too, so it gives no token. "
        f"An administrator changes the rule: {told}",
        rule=rule.pk,
        errors=problems,
    )


@transaction.atomic
def _give(chosen: TokenRule, claims: Mapping[str, Any], identity: str) -> Exchanged:
    # Read again, and kept from being changed until the token is there: one that is turned off meanwhile gives nothing.
    row = (
        TokenRule.objects.select_for_update(no_key=True, of=("self",))
        .select_related("issuer", "user")
        .filter(pk=chosen.pk, version=chosen.version, is_active=True, issuer__is_active=True)
        .first()
    )
    if row is None:
        raise Refused("rule_changed", "The rule was changed at this moment. Exchange another identity token.")
    _use_once(row.issuer, identity, float(claims["exp"]))
    user, now = row.user, timezone.now()
    if user.is_superuser or user.has_usable_password():  # made a person since
        raise Refused(
            "no_robot", f"{user.username} is a person or an administrator now, for whom no rule gives tokens."
        )
    ends_at = now + timedelta(seconds=row.life_s)
    row.scope_verbs = [verb for verb in row.scope_verbs if verb not in NEVER]  # rules of before may name more
    scope = scope_from(row.scope_verbs, row.scope_models)
    clear = issue_token(
        user=user, name=f"rule {row.pk}: {row.title}"[:120], actor=actor_for(user), expires_at=ends_at, scope=scope
    )
    made = Token.objects.get(sha256=token_digest(clear))
    ExchangedToken.objects.create(token=made, rule=row)
    TokenRule.objects.filter(pk=row.pk).update(last_used_at=now)
    append_event(
        verb="token.exchanged",
        subject_type="user",
        subject_id=user.username,
        actor=actor_for(user),
        facts={"issuer": row.issuer.url, "rule": row.pk, "token": made.pk, "claims": _short_claims(claims)},
    )
    return Exchanged(clear, ends_at, row)


def explain(*, actor: Actor, id_token: str = "", issuer: Issuer | None = None, claims: Any = None) -> Explanation:
    """What this identity token would get, claim by claim; it is not used up. Or what such `claims` of the issuer would get,
    believed as they are. Raises Refused.
    """
    require(actor, Verb.ADMINISTER, "*")
    problem = ""
    if claims is None:
        claims = {}
        try:
            issuer = _issuer_of(id_token)
            claims = _believed(id_token, issuer)
        except DomainError as error:
            problem = error.message
    if issuer is None or problem or not isinstance(claims, dict):
        return Explanation(issuer, problem or "The claims are no JSON object.", {}, ())
    tried, is_given, kind = [], False, IssuerKind(issuer.kind)
    for rule in token_rules(issuer):
        checks = check_claims(rule.claims, claims, kind)
        met = is_met(rule.claims, claims, kind)
        problems = tuple(rule.problems)
        gives = met and rule.is_active and not problems and not is_given
        is_given = is_given or gives
        tried.append(RuleTried(rule, checks, met, gives, problems))
    return Explanation(issuer, "", claims, tuple(tried))


def _issuer_of(id_token: str) -> Issuer:
    """The row of the issuer that the token names, not believed yet. Only issuers that are configured are ever asked."""
    try:
        named = issuer_named_in(id_token)
    except BadIdToken as error:
        raise NotBelieved("id_token_refused", f"The identity token is refused: {error}.") from None
    row = Issuer.objects.filter(url=named, is_active=True).exclude(audience="").first() if named.isprintable() else None
    if row is None:
        raise NotBelieved(
            "issuer_unknown", "The identity token's issuer (iss) is none that programs of this installation come from."
        )
    return row


def _believed(id_token: str, issuer: Issuer) -> dict[str, Any]:
    try:
        return verified_claims(id_token, issuer=issuer.url, audience=issuer.audience)
    except BadIdToken as error:
        raise NotBelieved(
            "id_token_refused", f"The identity token is refused: {error}.", audience=issuer.audience
        ) from None
    except IssuerAway as error:
        raise Unavailable("issuer_away", f"The issuer's keys cannot be read: {error}.") from None


def _identity_of(id_token: str, claims: Mapping[str, Any]) -> str:
    """What makes it this token and no other: its jti, else all that is signed (a signature alone could be written otherwise)."""
    jti = claims.get("jti")
    told = f"jti:{jti}" if isinstance(jti, str) and jti else f"signed:{id_token.rpartition('.')[0]}"
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()


def _use_once(issuer: Issuer, identity: str, exp: float) -> None:
    """Raises NotBelieved the second time. Those that have long ended are forgotten, a hundred at a time."""
    now = timezone.now()
    old = (
        UsedIdToken.objects.select_for_update(no_key=True, skip_locked=True)
        .filter(ends_at__lt=now)
        .order_by("pk")[:100]
    )
    UsedIdToken.objects.filter(pk__in=[row.pk for row in old]).delete()
    ends_at = datetime.fromtimestamp(exp, UTC) + timedelta(minutes=5)  # believed for a minute longer than it says
    try:
        with transaction.atomic():
            UsedIdToken.objects.create(issuer=issuer, sha256=identity, ends_at=ends_at)
    except IntegrityError:
        raise NotBelieved(
            "id_token_used", "This identity token was exchanged already. Ask the issuer for another one."
        ) from None


def _short_claims(claims: Mapping[str, Any]) -> dict[str, Any]:
    """The claims for the log, none of them long."""
    return {
        str(name)[:100]: value
        if isinstance(value, bool | int | float) or value is None
        else str(value)[:_LONGEST_CLAIM]
        for name, value in list(claims.items())[:_MOST_CLAIMS]
    }
