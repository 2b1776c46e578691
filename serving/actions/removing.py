"""Taking a node off the list: one that is not there any more, or that is empty."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import StateChanged
from serving.actions.deployments import end_server, hold_servers, record_state
from serving.actions.nodes import locked_node, written_node
from serving.core.lifecycle import DeploymentState
from serving.models import Deployment, Node
from serving.queries.deployments import current_servers, live_deployments
from serving.queries.replicas import is_lost

S = DeploymentState


@transaction.atomic
def remove_node(*, actor: Actor, node: Node, reason: str, expected_version: int | None = None) -> Node:
    """The node, which is on no list any more and is given nothing; its deployments are gone. Idempotent.

    An agent of this name that is heard of again brings it back, cordoned (`node.returned`): it finds in its rows what it is to drop.
    Raises Refused, Stale, Invalid, and StateChanged: something there is still wanted, or an agent that is about has not dropped it yet.
    """
    found = locked_node(actor, node, expected_version, reason)
    if found.removed_at is not None:
        return found
    here = list(live_deployments().filter(node=found).order_by("pk").select_for_update(no_key=True, of=("self",)))
    named = ", ".join(f"{one.release.model.slug} {one.release.name} in {one.environment.slug}" for one in here[:5])
    if any(one.is_wanted for one in here):
        raise StateChanged(
            "node_in_use",
            f"{found.name} is to run {named}. Drain it first: "
            f"sluicegate api POST /nodes/{found.name}/drain is_confirmed:=true --if-match '*'",
            node=found.name,
        )
    if here and not is_lost(found):
        raise StateChanged(
            "node_in_use",
            f"{found.name} is still dropping {named}, and its agent is about. Remove it when that is gone.",
            node=found.name,
        )
    hold_servers(current_servers().filter(deployment__in=here))  # before the first event
    for one in here:
        _give_up(actor, one, f"Node {found.name} was removed.")
    found.removed_at = timezone.now()
    if found.cordoned_at is None:
        found.cordoned_at, found.cordoned_by, found.cordon_reason = found.removed_at, actor.name, reason.strip()
    return written_node(actor, found, "node.removed", reason)


def _give_up(actor: Actor, deployment: Deployment, reason: str) -> None:
    for server in current_servers().filter(deployment=deployment):
        end_server(actor=actor, server=server, reason=reason)
    steps = (S.GONE,) if deployment.state in (S.FAILED, S.DRAINING) else (S.DRAINING, S.GONE)
    for to in steps:
        changes = {"gone_at": timezone.now()} if to is S.GONE else {}
        record_state(actor=actor, deployment=deployment, to=to, reason=reason, **changes)
