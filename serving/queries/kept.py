"""What each node keeps ready, as its agent saw it last."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet, Subquery
from django.db.models.functions import JSONObject

from registry.queries.releases import LARGE
from serving.core.lifecycle import DeploymentState
from serving.core.prefetch import FilesStanding
from serving.models import Node, Prefetch
from serving.queries.deployments import live_deployments

#: In these a deployment's files are on its node, each verified as it was written.
_HAS_FILES = (DeploymentState.LOADING, DeploymentState.WARMING, DeploymentState.READY)


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


def with_files(among: QuerySet[Node], release: UUID) -> QuerySet[Node]:
    """The nodes, with what `files_on_nodes` looks at besides: whether one `serves` the release, and what its agent `told` of it."""
    row = Prefetch.objects.filter(node=OuterRef("pk"), release=release)
    served = live_deployments().filter(node=OuterRef("pk"), release=release, state__in=_HAS_FILES)
    columns = {name: name for name in ("standing", "size_bytes", "here_bytes", "trouble", "changed_at")}
    return among.annotate(serves=Exists(served.order_by()), told=Subquery(row.values(told=JSONObject(**columns))[:1]))
