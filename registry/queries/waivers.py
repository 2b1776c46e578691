"""Named reads of releases that may lack a waiver."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import F, Q, QuerySet, Value

from registry.core.lifecycle import FileRole, ReleaseState
from registry.models import Release
from registry.queries.releases import LARGE


def code_bearing(which: Q, since: datetime) -> QuerySet[Any]:
    """Those of `which` releases with code that were sealed after `since`, each with the `paths` of its code and the kinds of waiver
    `given` for just its contents."""
    rows = Release.objects.filter(which, state=ReleaseState.SEALED, is_code_bearing=True, sealed_at__gt=since)
    exact = Q(waivers__manifest_digest=F("digest"))
    return rows.defer(*LARGE).annotate(
        paths=ArrayAgg("files__path", filter=Q(files__role=FileRole.CODE), distinct=True, default=Value([])),
        given=ArrayAgg("waivers__kind", filter=exact, distinct=True, default=Value([])),
    )
