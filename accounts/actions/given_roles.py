"""Roles that issuers' rules give, and their end: a role goes when the last issuer that gave it takes it back."""

from __future__ import annotations

from collections.abc import Iterable

from accounts.core.access import Actor
from accounts.models import Issuer, Membership, RuleMembership, User
from ledger.actions import append_event


def end_given_roles(given: Iterable[RuleMembership], *, actor: Actor) -> int:
    """These are given no more; how many roles ended by it, as nobody else gives them. Within a transaction that locked the users."""
    ended = 0
    for one in given:
        one.delete()
        if not RuleMembership.objects.filter(membership_id=one.membership_id).exists():
            membership = Membership.objects.select_related("user", "team").get(pk=one.membership_id)
            tell_of_role("role.revoked", membership, actor)
            membership.delete()
            ended += 1
    return ended


def end_roles_by(issuer: Issuer, *, actor: Actor, user: User | None = None) -> int:
    """The issuer gives none of its roles any more, or none to this user; how many ended. Within a transaction."""
    given = RuleMembership.objects.filter(issuer=issuer)
    if user is not None:
        given = given.filter(membership__user=user)
    holders = given.values("membership__user")
    list(User.objects.select_for_update(no_key=True).filter(pk__in=holders).order_by("pk"))  # a sign-in elsewhere waits
    return end_given_roles(given.order_by("pk"), actor=actor)


def tell_of_role(verb: str, membership: Membership, actor: Actor) -> None:
    append_event(
        verb=verb,
        subject_type="user",
        subject_id=membership.user.username,
        actor=actor,
        facts={"team": membership.team_slug, "role": membership.role},
    )
