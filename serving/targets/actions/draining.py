"""Draining replicas whose ordinal was given away: each stops as soon as nothing needs it.

Its row holds that it is drained (`drain_asked_at`), and the agent takes the next step at each heartbeat until it is gone.
"""

from __future__ import annotations

from django.db import transaction

from accounts.core.access import Actor, Verb, require
from serving.environments.actions.locks import lock_routes
from serving.environments.queries.inventory import live_replicas
from serving.targets.actions.lifecycle import drain_replica
from serving.targets.queries.draining import may_stop


def continue_draining(*, actor: Actor, node: str) -> None:
    """Stops the drained replicas on the node that nothing needs any more: for its agent. Raises Refused."""
    require(actor, Verb.ADMINISTER, "")
    asked = live_replicas().filter(drain_asked_at__isnull=False, is_wanted=True)
    for one in may_stop(asked.filter(node=node).order_by("pk")):
        with transaction.atomic():
            lock_routes(one.environment)
            if may_stop(asked.filter(pk=one.pk)):  # a rollout may have begun meanwhile
                drain_replica(actor=actor, replica=one, reason=one.drain_reason, is_spare=True)
