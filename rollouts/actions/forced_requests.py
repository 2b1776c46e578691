"""The gateways refuse requests that force a release, if these leave a rollout without evidence of time."""

from __future__ import annotations

from django.db import transaction

from rollouts.actions.engine_effects import lock_as_read
from rollouts.actions.tick_records import ENGINE
from rollouts.models import Rollout
from serving.traffic.actions.routes import refuse_forced


@transaction.atomic
def refuse_forced_requests(rollout: Rollout, *, fence: int) -> None:
    """Lets the gateways refuse them until the rollout ends. Raises StateChanged if it moved since it was read, Stale."""
    lock_as_read(rollout, fence)
    reason = f"Rollout {rollout.pk} lacks evidence of time, because requests forced a release."
    refuse_forced(actor=ENGINE, environment=rollout.environment, model=rollout.model, is_refusing=True, reason=reason)
