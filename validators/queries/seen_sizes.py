"""What was seen of the sizes of users' requests."""

from __future__ import annotations

from registry.models import ServedModel
from validators.core.seen_sizes import SeenSizes
from validators.models import SeenSizesRecord


def seen_sizes(model: ServedModel) -> SeenSizes | None:
    """Of the environment where most requests were counted; None where nowhere enough were."""
    kept = SeenSizesRecord.objects.filter(model=model).select_related("environment")
    row = kept.order_by("-requests", "environment__slug").first()
    return SeenSizes(tuple(row.counts), row.since_at, row.until_at, row.environment.slug) if row else None
