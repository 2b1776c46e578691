"""Retiring a release, so that its bytes may go one day, and taking that back while they are there."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, require, require_version
from ledger.core.errors import StateChanged
from registry.actions.drafts import expect_housekeeping
from registry.actions.releases import lock_release, move
from registry.core.lifecycle import ReleaseState
from registry.core.schema import Problem, Text
from registry.core.spec import refuse
from registry.hooks.usage import usages_of
from registry.models import Blob, Release, Tombstone
from registry.queries import require_sealed
from registry.storage import store


@transaction.atomic
def retire(*, actor: Actor, release: Release, expected_version: int, reason: str) -> Release:
    """The release, retired: nothing can begin to use it any more, and collection may delete its bytes after a while.

    Its manifest, digest, signatures and reports are never deleted. Raises Refused, Stale, Invalid without a reason, and
    StateChanged: "not_sealed", or "release_in_use" with facts["used_by"] while anything uses it.
    """
    release = lock_release(release)
    require(actor, Verb.RETIRE_RELEASE, release.model.team.slug, release.model.slug)
    require_version(release.version, expected_version, f"{release.model.slug} {release.name}")
    require_sealed(release, "can be retired")
    refuse("invalid_retirement", "The retirement", _reason_problems(reason))
    used_by = usages_of([release.pk]).get(release.pk, [])
    if used_by:
        raise StateChanged(
            "release_in_use",
            f"{release.model.slug} {release.name} is in use: {'; '.join(used_by)}. End that first, then retire it.",
            used_by=used_by,
        )
    expect_housekeeping()
    return move(
        release,
        ReleaseState.RETIRED,
        actor=actor,
        verb="release.retired",
        reason=reason.strip(),
        facts={"model": release.model.slug, "release": release.name, "digest": release.digest},
        retired_at=timezone.now(),
    )


@transaction.atomic
def restore(*, actor: Actor, release: Release, expected_version: int, reason: str) -> Release:
    """The release, sealed again as it was, while its bytes are there.

    Raises Refused, Stale, Invalid without a reason, and StateChanged: "not_retired", or "bytes_gone".
    """
    release = lock_release(release)
    require(actor, Verb.RETIRE_RELEASE, release.model.team.slug, release.model.slug)
    require_version(release.version, expected_version, f"{release.model.slug} {release.name}")
    if release.state != ReleaseState.RETIRED:
        raise StateChanged(
            "not_retired",
            f"{release.model.slug} {release.name} is {release.state}, so there is nothing to take back.",
            state=release.state,
        )
    refuse("invalid_restoration", "The restoration", _reason_problems(reason))
    # The release's row is locked; collection locks it too before it deletes a retired release's bytes.
    blobs = list(Blob.objects.filter(pk__in=release.files.values("blob")))
    missing = store().missing_keys((blob.store_key, blob.size_bytes) for blob in blobs)
    if missing or any(blob.collected_at for blob in blobs):
        raise StateChanged(
            "bytes_gone",
            f"Bytes of {release.model.slug} {release.name} were deleted after it was retired. Push it again as a new release.",
            release=release.name,
        )
    keys = [blob.store_key for blob in blobs]
    marks = Tombstone.objects.filter(store_key__in=keys, ended_at__isnull=True)
    marks.update(ended_at=timezone.now(), outcome="restored")
    return move(
        release,
        ReleaseState.SEALED,
        actor=actor,
        verb="release.restored",
        reason=reason.strip(),
        facts={"model": release.model.slug, "release": release.name, "digest": release.digest},
        retired_at=None,
    )


def _reason_problems(reason: str) -> list[Problem]:
    problems: list[Problem] = []
    Text(2000).read(reason, "reason", problems)
    if not problems and not reason.strip():
        problems.append(Problem("reason", "it is told for good why.", "Write a sentence."))
    return problems
