"""Sign-in by an issuer: the code flow with PKCE. A person is (issuer, sub), never a name or an e-mail address.

Source: OpenID Connect Core 1.0, 3.1; RFC 7636 (PKCE); RFC 9207 (`iss` in the answer).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db import transaction
from django.utils import timezone

from accounts.actions.given_roles import end_given_roles, tell_of_role
from accounts.actions.issuers import tell_of_identity
from accounts.actions.people import create_user, lock_user
from accounts.adapters.id_tokens import BadIdToken, verified_claims
from accounts.adapters.issuer_http import IssuerUnreachable, post_form
from accounts.adapters.issuer_keys import ISSUERS, Discovery, IssuerAway
from accounts.core.access import Actor
from accounts.core.claims import IssuerKind, is_met, username_for
from accounts.models import Identity, Issuer, Membership, RoleRule, RuleMembership, User
from ledger.adapters.secret_encryption import Unreadable, decrypt
from ledger.core.errors import Refused, Unavailable

_SCOPES = "openid profile"


@dataclass(frozen=True)
class Flow:
    """What the browser's session keeps between leaving for the issuer and coming back. All of it is text."""

    issuer: int
    state: str
    nonce: str
    verifier: str
    redirect_uri: str


def begin_sign_in(*, issuer: Issuer, redirect_uri: str) -> tuple[str, Flow]:
    """(the issuer's address to send the browser to, what to keep). Raises Unavailable."""
    told = _discovery(issuer)
    if not told.authorization_endpoint or not told.token_endpoint:
        raise Unavailable("issuer_away", f"{issuer.title} offers no sign-in: it names no address for it.")
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    flow = Flow(issuer.pk, state, nonce, verifier, redirect_uri)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(flow.verifier.encode()).digest()).rstrip(b"=").decode()
    asked = {
        "response_type": "code", "client_id": issuer.client_id, "redirect_uri": redirect_uri, "scope": _SCOPES,
        "state": flow.state, "nonce": flow.nonce, "code_challenge": challenge, "code_challenge_method": "S256",
    }  # fmt: skip
    return told.authorization_endpoint + ("&" if "?" in told.authorization_endpoint else "?") + urlencode(asked), flow


def finish_sign_in(*, issuer: Issuer, flow: Flow, answer: Mapping[str, str]) -> User:
    """Who the browser that came back with this answer is, with the roles that the rules give now.

    Raises Refused, saying why, and Unavailable.
    """
    claims = _claims(issuer, flow, answer)
    with transaction.atomic():
        identity = _identity(issuer, claims)
        if not identity.user.is_active:
            raise Refused("user_inactive", f"{identity.user.username} is not active; ask an administrator.")
        Identity.objects.filter(pk=identity.pk).update(signed_in_at=timezone.now())
        _follow_rules(issuer, identity.user, claims)
    return identity.user


def _claims(issuer: Issuer, flow: Flow, answer: Mapping[str, str]) -> dict[str, Any]:
    told = _discovery(issuer)
    if not hmac.compare_digest(answer.get("state", "").encode(), flow.state.encode()) or flow.issuer != issuer.pk:
        raise _refused("the answer is not to this browser's sign-in")
    if told.says_iss and "iss" not in answer:
        raise _refused("the answer does not say whose it is (iss)")
    if answer.get("iss", issuer.url) != issuer.url:
        raise _refused("the answer is another issuer's (iss)")
    if error := answer.get("error", ""):
        raise _refused(f"{issuer.title} says {error[:60]!r}")
    id_token = _id_token(issuer, told, flow, answer.get("code", ""))
    try:
        claims = verified_claims(id_token, issuer=issuer.url, audience=issuer.client_id, takes_list=True)
    except BadIdToken as bad:
        raise _refused(f"of the identity token: {bad}") from None
    except IssuerAway as error:
        raise Unavailable("issuer_away", f"The keys of {issuer.title} cannot be read: {error}.") from None
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode("utf-8", "replace"), flow.nonce.encode()):
        raise _refused("the identity token was made for another sign-in (nonce)")
    if claims.get("azp", issuer.client_id) != issuer.client_id:
        raise _refused("the identity token was made for another client (azp)")
    return claims


def _id_token(issuer: Issuer, told: Discovery, flow: Flow, code: str) -> str:
    if not code or len(code) > 4096:
        raise _refused("the answer brings no code")
    form = {
        "grant_type": "authorization_code", "code": code, "redirect_uri": flow.redirect_uri,
        "code_verifier": flow.verifier,
    }  # fmt: skip
    try:
        secret = decrypt(issuer.client_secret) if issuer.client_secret else ""
        status, answer = post_form(told.token_endpoint, form, user=issuer.client_id, password=secret)
    except Unreadable as error:
        raise Unavailable(
            "secret_unreadable", f"The client secret of {issuer.title} cannot be read: {error}. Set it anew."
        ) from None
    except IssuerUnreachable as error:
        raise Unavailable("issuer_away", f"{issuer.title} does not answer: {error}.") from None
    id_token = answer.get("id_token")
    if status != 200 or not isinstance(id_token, str):
        raise _refused(f"{issuer.title} gives no token for its code: {str(answer.get('error', status))[:60]}")
    return id_token


def _identity(issuer: Issuer, claims: Mapping[str, Any]) -> Identity:
    """Of the person; made with an account of its own where the issuer's settings say so. Raises Refused."""
    # Two first sign-ins of one person wait for each other here.
    Issuer.objects.select_for_update(no_key=True).get(pk=issuer.pk)
    found = Identity.objects.select_related("user", "issuer").filter(issuer=issuer, sub=claims["sub"]).first()
    if found is not None:
        return found
    if not issuer.creates_accounts:
        raise Refused(
            "no_account",
            f"{issuer.title} knows you, and Sluicegate does not: ask an administrator to prepare your account. "
            f"Your number there (sub) is {claims['sub'][:255]}.",
        )
    actor = Actor.system("sign-in")
    suffix = hashlib.sha256(f"{issuer.url}\0{claims['sub']}".encode()).hexdigest()[:8]
    asked = str(claims.get("preferred_username", ""))[:150]
    taken = (
        list(User.objects.filter(username__iexact=asked).values_list("username", flat=True))
        if asked.isprintable()
        else []
    )
    user = create_user(actor=actor, username=username_for(claims, suffix, taken))
    made = Identity.objects.create(issuer=issuer, user=user, sub=claims["sub"], created_by=actor.name)
    tell_of_identity("identity.linked", made, actor)
    return made


def _follow_rules(issuer: Issuer, user: User, claims: Mapping[str, Any]) -> None:
    """Gives the roles that the issuer's rules give for these claims, and takes those that they alone gave before and give no more."""
    actor = Actor.system(f"issuer {issuer.pk}")
    lock_user(user.username)
    rules = RoleRule.objects.filter(issuer=issuer).select_related("team").order_by("pk")
    people = IssuerKind.OTHER  # every kind of issuer sends people's groups as a list
    due = {(rule.team_id, rule.role): rule for rule in rules if is_met(rule.claims, claims, people)}
    given = RuleMembership.objects.filter(issuer=issuer, membership__user=user).select_related("membership")
    end_given_roles([one for one in given if (one.membership.team_id, one.membership.role) not in due], actor=actor)
    for rule in due.values():
        membership, is_new = Membership.objects.get_or_create(user=user, team=rule.team, role=rule.role)
        if is_new:
            tell_of_role("role.granted", membership, actor)
        if is_new or membership.by_rules.exists():  # else it was given by hand, and no rule takes it away
            RuleMembership.objects.get_or_create(membership=membership, issuer=issuer)


def _discovery(issuer: Issuer) -> Discovery:
    try:
        return ISSUERS.discovery(issuer.url)
    except IssuerAway as error:
        raise Unavailable(
            "issuer_away", f"{issuer.title} does not answer: {error}. Passwords and sessions that are there go on."
        ) from None


def _refused(reason: str) -> Refused:
    return Refused("sign_in_refused", f"The sign-in was refused: {reason}. Begin again from the sign-in page.")
