"""Servers of other batchings, which gates measure."""

from __future__ import annotations

from django.db.models import QuerySet

from serving.models import Variant


def live_variants() -> QuerySet[Variant]:
    """Those that are asked for, or still there."""
    return Variant.objects.filter(ended_at=None).select_related("deployment__release__model__team")
