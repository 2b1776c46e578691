"""What people say of nodes: that no new deployment is to be placed on one, and that it may be again."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from accounts.core.access import EVERY_TEAM, Actor, Verb, require, require_version
from ledger.actions import append_event
from ledger.core.errors import Invalid
from serving.actions.placing import hold_rooms
from serving.core.lifecycle import LIVE
from serving.models import Deployment, Node

LONGEST_REASON = 2000
#: What people say of a node.
_SAID = ("cordoned_at", "cordoned_by", "cordon_reason", "removed_at")


@transaction.atomic
def cordon_node(*, actor: Actor, node: Node, reason: str, expected_version: int | None = None) -> Node:
    """The node, which is given no new deployment from now on; its servers stay. Idempotent. Raises Refused, Stale, Invalid."""
    found = locked_node(actor, node, expected_version, reason)
    if found.cordoned_at is not None:
        return found
    found.cordoned_at, found.cordoned_by, found.cordon_reason = timezone.now(), actor.name, reason.strip()
    return written_node(actor, found, "node.cordoned", reason)


@transaction.atomic
def uncordon_node(*, actor: Actor, node: Node, expected_version: int, reason: str = "") -> Node:
    """The node, which may be given deployments again; what was being drained there and has not begun to stop is kept.

    Idempotent. Raises Refused, Stale, Invalid.
    """
    found = locked_node(actor, node, expected_version, reason)
    kept = Deployment.objects.filter(node=node, drain_asked_at__isnull=False, is_wanted=True)
    for one in kept:
        # What was put in its place, if anything, has its slot: it takes another, and the controller lets one of the two go.
        staying = Deployment.objects.filter(
            release=one.release_id, environment=one.environment_id, state__in=sorted(LIVE), is_wanted=True,
            drain_asked_at=None,
        )  # fmt: skip
        taken = set(staying.values_list("slot", flat=True))
        slot = one.slot if one.slot not in taken else max(taken) + 1
        Deployment.objects.filter(pk=one.pk).update(drain_asked_at=None, drain_reason="", slot=slot)
    if found.cordoned_at is None:
        return found
    found.cordoned_at, found.cordoned_by, found.cordon_reason = None, "", ""
    return written_node(actor, found, "node.uncordoned", reason)


def locked_node(actor: Actor, node: Node, expected_version: int | None, reason: str) -> Node:
    """The node's row for an administrator, locked until the transaction ends; meanwhile nothing is placed there.

    Raises Refused, Stale, Invalid (too long a reason).
    """
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    hold_rooms()
    found = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    require_version(found.version, expected_version, f"Node {found.name}")
    if len(reason) > LONGEST_REASON:
        raise Invalid("reason_too_long", f"The reason has {len(reason)} characters; {LONGEST_REASON} are the most.")
    return found


def written_node(actor: Actor, node: Node, verb: str, reason: str) -> Node:
    """The node with what people said of it written down, and the event."""
    node.version += 1
    node.save(update_fields=[*_SAID, "version"])
    append_event(verb=verb, subject_type="node", subject_id=node.name, actor=actor, reason=reason.strip())
    return node
