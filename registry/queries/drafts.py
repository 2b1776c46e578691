"""Drafts that wait for bytes or for their seal: how much each has, and what is on its way."""

from __future__ import annotations

from django.db.models import BigIntegerField, Count, F, IntegerField, Max, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce

from accounts.core.access import Actor
from registry.core.lifecycle import ReleaseState
from registry.core.uploads import UploadState
from registry.models import Release, ReleaseFile, Upload
from registry.queries.releases import LARGE, visible_models

_ANNOUNCED_BYTES = """(SELECT COALESCE(SUM((one->>'size_bytes')::bigint), 0)
    FROM jsonb_array_elements("registry_release"."expected_files") one)"""


def drafts_for(actor: Actor, *, model: str = "", author: str = "") -> QuerySet[Release]:
    """The drafts of the models that the actor may read, the newest first.

    Each with `announced_files`, `announced_bytes` (0 where nothing was announced), `held_files`, `held_bytes` (there and
    verified), `open_uploads`, `read_uploads` (being verified), `bad_uploads` (found wrong) and `ends_at`, when the first of
    its uploads ends by itself.
    """
    files = ReleaseFile.objects.filter(release=OuterRef("pk")).order_by().values("release")
    uploads = Upload.objects.filter(release=OuterRef("pk")).order_by().values("release")

    def counted(state: UploadState) -> Coalesce:
        found = uploads.filter(state=state).annotate(n=Count("pk")).values("n")
        return Coalesce(Subquery(found, output_field=IntegerField()), Value(0))

    ends = uploads.filter(state=UploadState.OPEN).annotate(last=Max("expires_at")).values("last")
    rows = Release.objects.filter(state=ReleaseState.DRAFT, model__in=visible_models(actor))
    rows = rows.filter(Q(model__slug=model) if model else Q(), Q(author__username=author) if author else Q())
    return (
        rows.select_related("model__team", "author")
        .defer(*LARGE)
        .annotate(
            announced_files=RawSQL(
                'jsonb_array_length("registry_release"."expected_files")', [], output_field=IntegerField()
            ),
            announced_bytes=RawSQL(_ANNOUNCED_BYTES, [], output_field=BigIntegerField()),  # noqa: S611 - a constant
            held_files=Coalesce(
                Subquery(files.annotate(n=Count("pk")).values("n"), output_field=IntegerField()), Value(0)
            ),
            held_bytes=Coalesce(
                Subquery(files.annotate(n=Sum("blob__size_bytes")).values("n"), output_field=BigIntegerField()),
                Value(0),
            ),
            open_uploads=counted(UploadState.OPEN),
            read_uploads=counted(UploadState.VERIFYING),
            bad_uploads=counted(UploadState.QUARANTINED),
            ends_at=Subquery(ends),
        )
        .order_by(F("created_at").desc(), "pk")
    )
