"""How an agent proves that it acts for its node: invited once by a token, and from then on by a credential that it made itself.

An administrator invites a name; the token is shown once, has an end, and is good for one joining. The agent makes its credential where it
runs and hands in the digest; no secret of either kind is kept here. From then on nothing is taken under that name without the credential.

What this holds up: agents that are set up wrong, left over, copied or revoked. Who writes past these verbs, with the database's password,
is not held up by them (docs/decisions/0035-agents-join-with-a-token.md).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts.core.access import EVERY_TEAM, Actor, Verb, require
from ledger.actions import append_event
from ledger.core.errors import Refused, StateChanged, field_error
from ledger.core.verbs import EventVerb
from ledger.queries import events
from serving.actions.nodes import locked_node, written_node
from serving.models import Node, NodeInvite

#: They begin what is secret, so that scanners for leaked secrets find it.
TOKEN_PREFIX, CREDENTIAL_PREFIX = "sgj_", "sgn_"
#: How long an invitation is good, unless it is said, and at most.
LASTS, MOST = timedelta(hours=1), timedelta(days=7)
#: Of one agent that is refused again and again one event is written in this time.
TOLD_EVERY = timedelta(minutes=10)
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,58}[A-Za-z0-9_])?")


def new_credential() -> str:
    """One that nobody has: for an agent, which keeps it where it runs."""
    return CREDENTIAL_PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What is kept of a token or a credential: 256 random bits need no salt."""
    return hashlib.sha256(secret.encode()).hexdigest()


@transaction.atomic
def invite_node(*, actor: Actor, name: str, lasts: timedelta = LASTS, reason: str = "") -> tuple[str, NodeInvite]:
    """(the token in clear text, never to be seen again, the invitation). It takes the place of one that is open. Raises Refused, Invalid.

    A node that has a credential goes on with it until somebody joins with the token; then that one is the node.
    """
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    if not _NAME.fullmatch(name):
        raise field_error(
            "name",
            f"{name[:60]!r} is no name of a node.",
            "Use 1 to 60 letters, digits, dashes and underscores, with no dash at either end, such as gpu-7.",
        )
    if not timedelta(minutes=1) <= lasts <= MOST:
        raise field_error("hours", "An invitation is good for a minute to 7 days.", "Name another time.")
    now, token = timezone.now(), TOKEN_PREFIX + secrets.token_urlsafe(32)
    told = {"sha256": digest_of(token), "invited_by": actor.name, "invited_at": now, "expires_at": now + lasts}
    invite, _ = NodeInvite.objects.update_or_create(name=name, defaults={**told, "used_at": None})
    _tell(EventVerb.NODE_INVITED, name, actor, reason, expires_at=invite.expires_at.isoformat())
    return token, invite


@transaction.atomic
def join_node(*, actor: Actor, name: str, token: str, credential_digest: str) -> Node:
    """The node, whose agent has the credential of this digest from now on. Raises Refused("join_refused"): why the token is none.

    One that was revoked is so no longer; it stays cordoned until somebody gives it work again.
    """
    require(actor, Verb.ADMINISTER, "")
    found = Node.objects.select_for_update(no_key=True).filter(name=name).first()
    invite = NodeInvite.objects.select_for_update(no_key=True).filter(name=name).first()
    now = timezone.now()
    if invite is None or (why := _why_not(invite, token, now)):
        said = why if invite is not None else "nobody was invited under that name"
        raise Refused(
            "join_refused",
            f"{name} does not join: {said}. An administrator gives another token: sluicegate api POST /nodes/{name}/invite",
            node=name,
        )
    invite.used_at = now
    invite.save(update_fields=["used_at"])
    is_again = found is not None and bool(found.credential)
    node = found or Node(name=name)
    node.credential, node.credential_at, node.credential_used_at = credential_digest, now, None
    node.joined_at, node.joined_by, node.rotation_asked_at = now, invite.invited_by, None
    node.revoked_at, node.revoked_by, node.revoke_reason = None, "", ""
    node.version += 1 if found is not None else 0
    node.save()
    _tell(EventVerb.NODE_JOINED, name, actor, "", invited_by=invite.invited_by, took_the_place_of_another=is_again)
    return node


def _why_not(invite: NodeInvite, token: str, now: datetime) -> str:
    if not hmac.compare_digest(invite.sha256, digest_of(token)):
        return "this is not the token that it was invited with"
    if invite.used_at is not None:
        return f"its token was used already, at {invite.used_at:%Y-%m-%d %H:%M} UTC"
    if invite.expires_at <= now:
        return f"its token ended at {invite.expires_at:%Y-%m-%d %H:%M} UTC"
    return ""


def require_credential(node: Node | None, name: str, credential: str) -> bool:
    """Whether it is by its credential that who has this one (empty: none) may act as the node of this name. Raises Refused: may not."""
    if node is not None and node.revoked_at is not None:
        why = f": {node.revoke_reason.rstrip('.')}" if node.revoke_reason else ""
        raise Refused(
            "node_revoked",
            f"{name} was revoked by {node.revoked_by} at {node.revoked_at:%Y-%m-%d %H:%M} UTC{why}. "
            f"It takes another token to join again: sluicegate api POST /nodes/{name}/invite",
            node=name,
        )
    known = node.credential if node is not None else ""
    if known and not (credential and hmac.compare_digest(known, digest_of(credential))):
        lacks = "This agent has another credential" if credential else "This agent has no credential"
        raise Refused(
            "node_credential_refused",
            f"{lacks}, and {name} has joined with its own: two agents say that they are {name}, or this one's state folder is not that of "
            f"before. Another token lets it join in the other's place: sluicegate api POST /nodes/{name}/invite",
            node=name,
        )
    if not known and settings.NODES_JOIN_BY_TOKEN:
        raise Refused(
            "node_not_joined",
            f"{name} has not joined, and SLUICEGATE_NODES_JOIN_BY_TOKEN lets in only nodes that have: "
            f"sluicegate api POST /nodes/{name}/invite",
            node=name,
        )
    return bool(known)


@transaction.atomic
def rotate_credential(*, actor: Actor, name: str, credential: str, new_digest: str) -> Node:
    """The node with another credential; the one before is good no more. For the agent that has it. Raises Refused."""
    require(actor, Verb.ADMINISTER, "")
    node = Node.objects.select_for_update(no_key=True).filter(name=name).first()
    if not require_credential(node, name, credential) or node is None:
        raise Refused("node_not_joined", f"{name} has no credential to change.", node=name)
    node.credential, node.credential_at, node.rotation_asked_at = new_digest, timezone.now(), None
    node.save(update_fields=["credential", "credential_at", "rotation_asked_at"])
    _tell(EventVerb.NODE_ROTATED, name, actor, "")
    return node


@transaction.atomic
def ask_rotation(*, actor: Actor, node: Node, reason: str = "", expected_version: int | None = None) -> Node:
    """The node, whose agent takes another credential at its next heartbeat; no server is stopped. Idempotent.

    Raises Refused, Stale, Invalid, StateChanged("node_not_joined"): it has none.
    """
    found = locked_node(actor, node, expected_version, reason)
    if not found.credential:
        raise StateChanged(
            "node_not_joined",
            f"{found.name} has no credential. Invite it: sluicegate api POST /nodes/{found.name}/invite",
            node=found.name,
        )
    if found.rotation_asked_at is not None:
        return found
    found.rotation_asked_at = timezone.now()
    return written_node(actor, found, EventVerb.NODE_ROTATION_ASKED, reason)


@transaction.atomic
def revoke_node(*, actor: Actor, node: Node, reason: str, expected_version: int | None = None) -> Node:
    """The node, whose agent is refused from its next heartbeat on; it is cordoned, and taken for lost at once. Idempotent.

    Users are sent to replicas on other nodes if those answer. An open invitation ends.
    Raises Refused, Stale, Invalid.
    """
    found = locked_node(actor, node, expected_version, reason)
    if found.revoked_at is not None:
        return found
    NodeInvite.objects.filter(name=found.name).delete()
    found.revoked_at, found.revoked_by, found.revoke_reason = timezone.now(), actor.name, reason.strip()
    found.credential, found.rotation_asked_at = "", None
    if found.cordoned_at is None:
        found.cordoned_at, found.cordoned_by, found.cordon_reason = found.revoked_at, actor.name, reason.strip()
    return written_node(actor, found, EventVerb.NODE_REVOKED, reason)


@transaction.atomic
def record_refused_agent(*, actor: Actor, name: str, code: str, message: str) -> None:
    """An event for an agent that was turned away, once in a while for each reason. `message` has no secret."""
    like_it = events().filter(subject_type="node", subject_id=name, verb=EventVerb.NODE_REFUSED, facts__code=code)
    if not like_it.filter(at__gte=timezone.now() - TOLD_EVERY).exists():
        _tell(EventVerb.NODE_REFUSED, name, actor, message, code=code)


def _tell(verb: EventVerb, name: str, actor: Actor, reason: str, **facts: object) -> None:
    append_event(verb=verb, subject_type="node", subject_id=name, actor=actor, reason=reason.strip(), facts=facts)
