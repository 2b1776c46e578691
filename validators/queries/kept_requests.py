"""Named reads of the requests that a model's policy allows to keep."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db.models import Count, Max, Min, Sum
from django.utils.crypto import salted_hmac

from registry.models import ServedModel
from registry.queries import gate_policies
from validators.core.kept_requests import KeepRule, Sample, keep_rule
from validators.models import KeptRequest


def kept_of(model: ServedModel) -> dict[str, Any]:
    """{"most", "max_age_days", "max_bytes", "requests", "size_bytes", "oldest_at", "newest_at"}, and none of their contents.

    The first three are what the policy allows, None where it allows none.
    """
    rule = keep_rule(model.gate_policy)
    found = KeptRequest.objects.filter(model=model).aggregate(
        requests=Count("pk"), size_bytes=Sum("size_bytes", default=0), oldest_at=Min("at"), newest_at=Max("at")
    )
    return {**{name: getattr(rule, name, None) for name in ("most", "max_age_days", "max_bytes")}, **found}


def samples_of(model: ServedModel) -> tuple[list[Sample], str]:
    """(all that is kept of the model, the release that answered last). Their contents are users'."""
    rows = list(KeptRequest.objects.filter(model=model).order_by("-at", "pk"))
    kept = [Sample(row.release, row.inputs, row.answers, row.digest, row.rank, row.size_bytes) for row in rows]
    return kept, rows[0].release if rows else ""


def keep_rules(model_ids: Collection[int]) -> dict[int, KeepRule]:
    """What may be kept of each of these models; those of which nothing may are left out. One query."""
    return {pk: rule for pk, policy in gate_policies(model_ids).items() if (rule := keep_rule(policy))}


def sampling_secret() -> bytes:
    """Follows from the installation's secret key: which requests are kept can be foreseen by nobody else, and stays the same."""
    return salted_hmac("sluicegate.kept_requests", "rank", algorithm="sha256").digest()
