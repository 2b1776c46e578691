"""Named reads for collection: what there is, what refers to what, and the plan that follows from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import PROTECT, Case, Exists, F, ForeignObjectRel, Model, OuterRef, When
from django.utils import timezone

from registry.core.garbage_collection import BlobFacts, Plan, ReleaseFacts, Rules, StrayFacts, make_plan
from registry.core.lifecycle import ReleaseState
from registry.core.uploads import UploadState
from registry.hooks.usage import usages_of
from registry.models import Blob, Release, ReleaseFile, Tombstone, Upload
from registry.storage import adapter

_UNKNOWN = (
    "of an upload that this database never knew, such as one of before a restore from backup; abort it in the store"
)


def rules() -> Rules:
    """What the settings say."""
    return Rules(
        drafts_for=timedelta(days=settings.DRAFT_RETENTION_DAYS), undelete_for=timedelta(days=settings.UNDELETE_DAYS)
    )


def present_plan(now: datetime | None = None) -> Plan:
    """What a collection would do now, with a reason for every release, blob and stray byte."""
    now = now or timezone.now()
    due = dict(Tombstone.objects.filter(ended_at__isnull=True).values_list("store_key", "due_at"))
    keys: set[str] = set()  # that blobs name; full once the plan has taken the last blob, and before it takes a stray
    blobs, strays = _blobs(due, keys, now), _strays(due, keys)
    return make_plan(_releases(), blobs, strays, rules=rules(), now=now)


def _releases() -> Iterable[ReleaseFacts]:
    usages = usages_of()
    # a draft that still gets files is not abandoned
    under_way = Upload.objects.filter(release=OuterRef("pk"), state__in=(UploadState.OPEN, UploadState.VERIFYING))
    since = Case(When(~Exists(under_way), state=ReleaseState.DRAFT, then=F("created_at")))
    columns = ("pk", "model__slug", "number", "state", "retired_at", "drafted_at")
    rows = Release.objects.annotate(drafted_at=since).order_by("model__slug", "number", "pk")
    for pk, model, number, state, retired_at, drafted_at in rows.values_list(*columns):
        name = f"{model}/r{number}" if number else f"{model}/draft {str(pk)[:8]}"
        yield ReleaseFacts(pk, name, ReleaseState(state), retired_at or drafted_at, tuple(usages.get(pk, ())))


def _blobs(due: dict[str, datetime], keys: set[str], now: datetime) -> Iterator[BlobFacts]:
    """The facts of every blob by sha256; notes every key that a blob names.

    Instants are read where they count only: reading one takes longer than all else of a row.
    """
    since = now - rules().settle_for
    releases: dict[str, list[UUID]] = defaultdict(list)
    for sha256, release in ReleaseFile.objects.values_list("blob_id", "release_id"):
        releases[sha256].append(release)
    others = _others()
    recent = Case(When(created_at__gt=since, then=F("created_at")))
    columns = ("pk", "size_bytes", "store_key", "collected_at", "recent")
    rows = Blob.objects.annotate(recent=recent).order_by("pk").values_list(*columns)
    for sha256, size, key, collected_at, created_at in rows:
        if collected_at is None:
            keys.add(key)
        named = tuple(dict.fromkeys(releases.get(sha256, ()))), tuple(others.get(sha256, ()))
        yield BlobFacts(sha256, size, created_at, *named, due.get(key), collected_at is not None)


def _strays(due: dict[str, datetime], keys: set[str]) -> Iterator[StrayFacts]:
    uploads = _uploads()
    backend = adapter()
    stored = backend.keys()
    for key, size in stored:
        if key not in keys:
            yield StrayFacts(key, size, uploads.get(key, ""), due.get(key))
    for place in backend.unfinished():  # parts that are no bytes yet; collection deletes none of them
        yield StrayFacts(place.key, 0, f"parts {uploads.get(place.key, _UNKNOWN)}")


def _uploads() -> dict[str, str]:
    """Why uploads have bytes in the store, by key. The upload sweep cleans them up, not garbage collection."""
    rows = Upload.objects.filter(is_stored=True).values_list("pk", "sha256", "state")
    return {
        f"{sha256}/{pk.hex}": f"of upload {pk}, which is {state}; the sweep of uploads lets go of it in time"
        for pk, sha256, state in rows
    }


def _others() -> dict[str, list[str]]:
    """What else than a release's files names blobs, such as `golden set 3`, by sha256."""
    found: dict[str, list[str]] = defaultdict(list)
    for model, column in referrers():
        for pk, sha256 in model._default_manager.values_list("pk", column):
            if sha256 is not None:
                found[sha256].append(f"{model._meta.verbose_name} {pk}")
    return found


def referrers() -> list[tuple[type[Model], str]]:
    """(model, column) of every table but the releases' files whose rows keep a blob: those that protect it."""
    return [
        (relation.related_model, relation.field.attname)
        for relation in Blob._meta.get_fields(include_hidden=True)
        if isinstance(relation, ForeignObjectRel)
        and relation.on_delete is PROTECT
        and relation.related_model is not ReleaseFile
    ]
