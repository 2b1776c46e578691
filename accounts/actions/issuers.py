"""The verbs of issuers: configure, change, shut; and the people that are prepared to sign in by one."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from accounts.actions.following import end_following
from accounts.actions.given_roles import end_roles_by
from accounts.actions.sessions import drop_sessions_by
from accounts.adapters.issuer_http import IssuerUnreachable, url_problem
from accounts.adapters.issuer_keys import ISSUERS, Discovery
from accounts.core.access import Actor, Verb, require, require_version
from accounts.core.claims import IssuerKind
from accounts.models import Identity, Issuer, Token, User
from ledger.actions import append_event
from ledger.adapters.secret_encryption import encrypt
from ledger.core.errors import Invalid, StateChanged, Unavailable, field_error

#: What may be changed of one. Its address is what people and rules are known by, and stays.
CHANGEABLE = (
    "title", "client_id", "client_secret", "audience", "is_for_people", "creates_accounts", "session_hours", "is_active",
)  # fmt: skip
MOST_SESSION_HOURS = 24 * 7


@transaction.atomic
def create_issuer(*, actor: Actor, url: str, title: str = "", kind: str = "other", **more: Any) -> Issuer:
    """The issuer; `more` is of CHANGEABLE. Whether it answers is for `check_issuer` to say. Raises Refused, Invalid, StateChanged."""
    require(actor, Verb.ADMINISTER, "*")
    if kind not in set(IssuerKind):
        raise field_error("kind", f"{kind!r:.40} is no kind of issuer.", f"Use {', '.join(IssuerKind)}.")
    if problem := (url_problem(url) or ("" if len(url) <= 300 else "The address is longer than 300 characters.")):
        raise field_error("url", problem, "Name it as the issuer does, such as https://login.example.com/realms/all.")
    row = Issuer(url=url, kind=kind, created_by=actor.name, title=title or url.partition("://")[2][:80])
    _fill(row, more)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        raise StateChanged("issuer_exists", "There is an issuer of this address already. Change that one.") from None
    _tell("issuer.created", row, actor, **_shown(row, CHANGEABLE))
    return row


@transaction.atomic
def change_issuer(*, actor: Actor, issuer: Issuer, expected_version: int | None, changes: dict[str, Any]) -> Issuer:
    """The issuer with other values of CHANGEABLE. Turned off, it signs nobody in any more, and what it gave ends at once: sessions,
    roles that nobody else gives, the tokens of its rules, and those of people who have no other way to sign in.

    An empty client secret takes the secret away. Raises Refused, Stale, Invalid.
    """
    require(actor, Verb.ADMINISTER, "*")
    row = Issuer.objects.select_for_update(no_key=True).get(pk=issuer.pk)
    require_version(row.version, expected_version, f"issuer {row.pk}")
    before = _shown(row, CHANGEABLE)
    _fill(row, changes)
    changed = [name for name, value in _shown(row, CHANGEABLE).items() if value != before[name]]
    if changes.get("client_secret") is not None:
        changed.append("client_secret")
    if not changed:
        return row
    row.version += 1
    row.save()
    ended = {}
    if not row.is_active:
        ended["tokens_ended"] = end_tokens(Token.objects.filter(exchanged__rule__issuer=row))
    if not (row.is_active and row.is_for_people):
        ended["sessions_ended"] = drop_sessions_by(row)
        ended["tokens_ended"] = ended.get("tokens_ended", 0) + end_tokens(_tokens_of_those_left_out(row))
        ended["roles_ended"] = end_roles_by(row, actor=actor)
    _tell("issuer.changed", row, actor, **_shown(row, changed), **ended)
    return row


def check_issuer(*, actor: Actor, issuer: Issuer) -> tuple[Discovery, int]:
    """(what the issuer says of itself, number of its keys), asked now. Raises Refused, Unavailable."""
    require(actor, Verb.ADMINISTER, "*")
    try:
        return ISSUERS.read_now(issuer.url)
    except IssuerUnreachable as error:
        raise Unavailable("issuer_away", f"The issuer gives no usable answer: {error}.") from None


@transaction.atomic
def prepare_identity(*, actor: Actor, issuer: Issuer, username: str, sub: str) -> Identity:
    """From now on whom the issuer calls `sub` signs in as this user. Raises Refused, Invalid, StateChanged."""
    require(actor, Verb.ADMINISTER, "*")
    user = User.objects.filter(username=username).first() if username.isprintable() else None
    if user is None:
        raise field_error("username", f"There is no user {username[:150]}.", "Create the user first.")
    if not 1 <= len(sub) <= 255 or not sub.isprintable():
        raise field_error("sub", "A sub has 1 to 255 printable characters.", "Copy it from the issuer's own pages.")
    try:
        with transaction.atomic():
            row = Identity.objects.create(issuer=issuer, user=user, sub=sub, created_by=actor.name)
    except IntegrityError:
        raise StateChanged(
            "identity_exists", "This issuer's sub belongs to a user already. Remove that one first."
        ) from None
    tell_of_identity("identity.linked", row, actor)
    return row


@transaction.atomic
def remove_identity(*, actor: Actor, identity: Identity) -> None:
    """The issuer no longer signs the user in, and sessions that it began end, and roles that its rules alone gave; the tokens, too,
    of one who has no other way in.

    Raises Refused.
    """
    require(actor, Verb.ADMINISTER, "*")
    drop_sessions_by(identity.issuer, identity.user)
    issuer, user, pk = identity.issuer, identity.user, identity.pk
    identity.delete()
    identity.pk = pk
    is_linked = Identity.objects.filter(issuer=issuer, user=user).exists()  # by another sub of the same issuer
    tokens = 0 if is_linked else end_tokens(_tokens_of_those_left_out(issuer, user))
    roles = 0 if is_linked else end_roles_by(issuer, actor=actor, user=user)
    tell_of_identity("identity.unlinked", identity, actor, tokens_ended=tokens, roles_ended=roles)


def _tokens_of_those_left_out(issuer: Issuer, user: User | None = None) -> QuerySet[Token]:
    """Of people whom this issuer signed in and who have no password and no other issuer that signs them in; or of one user."""
    known: Any = Identity.objects.filter(issuer=issuer).values("user") if user is None else [user.pk]
    others = Identity.objects.filter(issuer__is_active=True, issuer__is_for_people=True).exclude(issuer=issuer)
    return Token.objects.filter(
        user__in=User.objects.filter(pk__in=known, password__startswith=UNUSABLE_PASSWORD_PREFIX).exclude(
            pk__in=others.values("user")
        )
    )


def tell_of_identity(verb: str, identity: Identity, actor: Actor, **facts: Any) -> None:
    append_event(
        verb=verb,
        subject_type="user",
        subject_id=identity.user.username,
        actor=actor,
        facts={"issuer": identity.issuer.url, "sub": identity.sub, **facts},
    )


def end_tokens(tokens: Any) -> int:
    """How many of these tokens lived until now. Those that had expired follow no run any more either."""
    end_following(tokens)
    now = timezone.now()
    living = tokens.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None)
    ended: int = living.update(revoked_at=now)
    return ended


def _fill(row: Issuer, values: dict[str, Any]) -> None:
    """Raises Invalid with every mistake."""
    problems: list[dict[str, str]] = []
    for name, value in values.items():
        if name not in CHANGEABLE:
            problems.append(_problem(name, "This cannot be set.", f"What can is {', '.join(CHANGEABLE)}."))
        elif name == "client_secret":
            row.client_secret = encrypt(value) if value else ""
        else:
            setattr(row, name, value)
    texts = {"title": (1, 80), "client_id": (0, 300), "audience": (0, 300)}
    for name, (least, most) in texts.items():
        text = getattr(row, name)
        if not least <= len(text) <= most or not text.isprintable():
            problems.append(_problem(name, f"This has {least} to {most} printable characters.", "Correct it."))
    if not 1 <= row.session_hours <= MOST_SESSION_HOURS:
        problems.append(_problem("session_hours", f"A session lasts 1 to {MOST_SESSION_HOURS} hours.", "Correct it."))
    if row.is_for_people and not row.client_id:
        problems.append(
            _problem("client_id", "People cannot sign in without it.", "Register Sluicegate at the issuer.")
        )
    if problems:
        told = " ".join(f"{one['message']} {one['fix']}" for one in problems)
        raise Invalid("invalid", told, errors=problems)


def _problem(field: str, message: str, fix: str) -> dict[str, str]:
    return {"field": field, "message": message, "fix": fix}


def _shown(row: Issuer, names: Any) -> dict[str, Any]:
    """What an event may tell: never the secret, only that there is one."""
    told = {name: getattr(row, name) for name in names if name != "client_secret"}
    return told | ({"has_secret": bool(row.client_secret)} if "client_secret" in names else {})


def _tell(verb: str, row: Issuer, actor: Actor, **facts: Any) -> None:
    append_event(verb=verb, subject_type="issuer", subject_id=row.pk, actor=actor, facts={"issuer": row.url, **facts})
