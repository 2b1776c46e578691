"""What may happen to variants: a gate asks for one and prolongs it, the node's agent brings it up and ends it.

No event tells of them: they change nothing for anybody, and the gate that asked has them in its evidence.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from serving.core.variants import Batching
from serving.models import Deployment, Variant
from serving.ports import RunningServer
from serving.queries.variants import live_variants

#: Rows of those that are over, for who looks after what went wrong.
_KEPT = timedelta(days=1)


def ask_variant(*, actor: Actor, deployment: Deployment, batching: Batching, for_s: float) -> Variant | None:
    """A variant of the deployment, wanted for so many seconds; None while an earlier one, which nobody wants now, is still there.

    Raises Refused.
    """
    _require(actor, Verb.RUN_GATES, deployment)
    now = timezone.now()
    with transaction.atomic():
        Deployment.objects.select_for_update(no_key=True).get(pk=deployment.pk)
        if live_variants().filter(deployment=deployment).update(until=now):
            return None
        Variant.objects.filter(ended_at__lt=now - _KEPT).delete()
        return Variant.objects.create(
            deployment=deployment,
            max_batch_size=batching.max_batch_size,
            max_queue_delay_us=batching.max_queue_delay_us,
            until=now + timedelta(seconds=for_s),
        )


def prolong_variant(*, actor: Actor, variant: Variant, for_s: float) -> bool:
    """It is wanted for so many seconds from now, 0 for no longer; False for one that is over. Raises Refused."""
    _require(actor, Verb.RUN_GATES, variant.deployment)
    now = timezone.now()
    wanted = Variant.objects.filter(pk=variant.pk, ended_at=None, until__gt=now)
    return bool(wanted.update(until=now + timedelta(seconds=for_s)))


def record_variant(*, actor: Actor, variant: Variant, running: RunningServer) -> None:
    """Its server answered its warm-up requests. Raises Refused."""
    _require(actor, Verb.ADMINISTER, variant.deployment)
    Variant.objects.filter(pk=variant.pk, ended_at=None).update(
        host=running.host, http_port=running.http_port, grpc_port=running.grpc_port, ready_at=timezone.now()
    )


def end_variant(*, actor: Actor, variant: Variant, reason: str) -> None:
    """Its server is over, or never came up. Idempotent. Raises Refused."""
    _require(actor, Verb.ADMINISTER, variant.deployment)
    Variant.objects.filter(pk=variant.pk, ended_at=None).update(ended_at=timezone.now(), end_reason=reason)


def _require(actor: Actor, verb: Verb, deployment: Deployment) -> None:
    model = deployment.release.model
    require(actor, verb, model.team.slug, model.slug)
