"""What each node keeps ready beside what its servers use, as its agent saw it last."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from registry.queries.releases import LARGE
from serving.core.prefetch import FilesStanding
from serving.models import Prefetch


@dataclass(frozen=True)
class KeptOn:
    """A release that a node keeps ready, or is to. `model` is empty where the asker may not read it."""

    model: str
    release: str
    number: int | None
    standing: FilesStanding
    size_bytes: int
    here_bytes: int
    trouble: str
    changed_at: datetime


def kept_on(names: Iterable[str], mine: Collection[int]) -> dict[str, list[KeptOn]]:
    """By node, as its agent saw it last: what is not ready first, then by name. `mine`: the models that the asker may read. One query."""
    found: dict[str, list[KeptOn]] = {name: [] for name in names}
    rows = (
        Prefetch.objects.filter(node__in=list(found))
        .select_related("release__model")
        .defer(*(f"release__{column}" for column in LARGE))
    )
    for row in rows.order_by("release__model__slug", "release__number"):
        known = row.release.model_id in mine
        named = (row.release.model.slug, row.release.name, row.release.number) if known else ("", "", None)
        standing = FilesStanding(row.standing)
        trouble = row.trouble if known else ""
        one = KeptOn(*named, standing, row.size_bytes, row.here_bytes, trouble, row.changed_at)
        found[row.node_id].append(one)
    return {name: sorted(every, key=lambda one: one.standing is FilesStanding.READY) for name, every in found.items()}
