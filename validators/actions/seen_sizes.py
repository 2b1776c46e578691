"""How large users' requests are is kept of each model and environment: of the newest rollout that saw enough, and no request."""

from __future__ import annotations

from accounts.core.access import Actor, Verb, require
from validators.core.seen_sizes import LEAST_SEEN, SeenSizes
from validators.models import SeenSizesRecord


def keep_seen_sizes(*, actor: Actor, model_id: int, environment_id: int, seen: SeenSizes) -> bool:
    """Whether they replace what was kept: not if they are too few or older. The same ones twice change nothing. Raises Refused."""
    require(actor, Verb.ADMINISTER, "")
    kept = SeenSizesRecord.objects.filter(model_id=model_id, environment_id=environment_id)
    if seen.requests < LEAST_SEEN or kept.filter(until_at__gt=seen.until_at).exists():
        return False
    found = {"counts": seen.counts, "requests": seen.requests, "since_at": seen.since_at, "until_at": seen.until_at}
    SeenSizesRecord.objects.update_or_create(model_id=model_id, environment_id=environment_id, defaults=found)
    return True
