"""Uploads in parts: begin one, sign its parts, complete it, verify its bytes, sweep what is left behind."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, may, require
from ledger.actions import append_event, enqueue
from ledger.core.errors import DomainError, Invalid, NotFound, StateChanged, Unavailable
from registry.actions.blobs import record_blob
from registry.actions.drafts import attach, require_draft, require_expected_file
from registry.actions.inspections import inspect_files
from registry.actions.parts import UNDER_WAY, clear, clear_later, dismiss_quarantined, move_upload
from registry.core.blob_lifecycle import BlobState
from registry.core.file_rules import can_be_data
from registry.core.schema import Problem
from registry.core.uploads import PartPlan, UploadState, bytes_problem, part_size_of
from registry.models import Blob, Release, ReleaseFile, Upload, UploadPart
from registry.queries import place_of
from registry.storage import SignedPart, store

#: An upload is aborted when no part of it was signed for this long.
IDLE_FOR = timedelta(days=2)
#: How long a signed address is good. Parts are signed when they are about to be sent.
SIGNED_FOR_S = 900
#: Retention of rows of ended uploads that have nothing left in the store.
REMEMBERED_FOR = timedelta(days=30)
#: How often a verifying worker records its progress.
TELL_EVERY_BYTES = 256 << 20
VERIFY, SWEEP = "registry.verify_upload", "registry.sweep_uploads"
Beat = Callable[..., bool]


def begin_upload(
    *, actor: Actor, release: Release, path: str, sha256: str, size_bytes: int, part_sha256: Sequence[str] | None = None
) -> Upload | ReleaseFile:
    """The file, where the actor may read a release that has these bytes already; else the upload that takes its parts.

    Asking again for the same file of the same draft gives the same upload. Raises Refused, NotFound, StateChanged, and
    Invalid naming the field.
    """
    release = _draft(release)
    require(actor, Verb.PUSH_RELEASE, release.model.team.slug, release.model.slug)
    sha256 = require_expected_file(release, path, sha256, size_bytes)
    present = release.files.filter(path=path, blob=sha256).first()
    if present is not None:
        dismiss_quarantined(release, path)
        return present
    plan = plan_of(size_bytes)
    with transaction.atomic():
        release = _draft(release, lock=True)
        known = _readable(actor, sha256)
        if known is not None and (file := _take_over(release, path, known, size_bytes)):
            return file
        upload = _under_way(release, path, sha256, size_bytes) or _create(actor, release, path, sha256, plan)
        if part_sha256 is not None:
            _note(upload, dict(enumerate(part_sha256, 1)))
    return upload


def plan_of(size_bytes: int) -> PartPlan:
    """How this installation cuts a file of that size."""
    return PartPlan(size_bytes, part_size_of(size_bytes, settings.UPLOAD_PART_BYTES))


def _readable(actor: Actor, sha256: str) -> Blob | None:
    """The blob, if the actor may read a release or draft that has it: never by the sha256 alone."""
    held = ReleaseFile.objects.filter(blob=sha256, blob__state=BlobState.VERIFIED).select_related("blob")
    models = held.order_by().values_list("release__model__team__slug", "release__model__slug").distinct()
    if not any(may(actor, Verb.READ, team, model) for team, model in models):
        return None
    found = held.first()
    return found.blob if found is not None and store().keys.exists(found.blob.store_key) else None


def _take_over(release: Release, path: str, known: Blob, size_bytes: int) -> ReleaseFile | None:
    """The draft's file of a blob; None when it was forgotten just now."""
    try:
        with transaction.atomic():
            blob = record_blob(known.sha256, known.size_bytes, key=known.store_key)
            return attach(release, path, blob, size_bytes)
    except StateChanged:
        return None


def _under_way(release: Release, path: str, sha256: str, size_bytes: int) -> Upload | None:
    """The upload of this file that is on its way; one of other bytes for the same path is called off."""
    upload = release.uploads.filter(path=path, state__in=UNDER_WAY).first()
    if upload is None or (upload.sha256, upload.size_bytes) == (sha256, size_bytes):
        return upload
    if move_upload(upload, UploadState.ABORTED):
        clear_later(upload)
    return None


def _create(actor: Actor, release: Release, path: str, sha256: str, plan: PartPlan) -> Upload:
    upload = Upload.objects.create(
        release=release,
        path=path,
        sha256=sha256,
        size_bytes=plan.size_bytes,
        part_size=plan.part_size,
        created_by_id=actor.user_id,
        expires_at=timezone.now() + IDLE_FOR,
    )
    enqueue(kind=SWEEP, key="uploads", args={}, due_at=upload.expires_at)
    return upload


def sign_parts(*, actor: Actor, upload: Upload, wanted: Mapping[int, str]) -> list[SignedPart]:
    """An address for each part {number: sha256}, good for SIGNED_FOR_S seconds and for bytes with this sha256 alone.

    Raises Refused, StateChanged unless the upload is open, and Invalid for a part that arrived with other bytes.
    """
    _require_push(actor, upload)
    _require_open(upload)
    keys, place = store().keys, place_of(upload)
    if not upload.is_begun:
        place = keys.begin(upload.store_key, upload.size_bytes, upload.part_size)
        begun = Upload.objects.filter(pk=upload.pk, is_begun=False)
        if not begun.update(is_begun=True, store_id=place.store_id):
            if place.store_id:
                keys.abort(place)  # this beginning alone: another's, of the same time, goes on
            upload.refresh_from_db()
            place = place_of(upload)
    with transaction.atomic():
        _note(upload, wanted)
        Upload.objects.filter(pk=upload.pk).update(expires_at=timezone.now() + IDLE_FOR)
    return [keys.sign_part(place, number, sha256, SIGNED_FOR_S) for number, sha256 in sorted(wanted.items())]


def _note(upload: Upload, wanted: Mapping[int, str]) -> None:
    """Remembers the parts' sha256. One that arrived before keeps the sha256 that it has."""
    before = dict(upload.parts.filter(number__in=wanted).values_list("number", "sha256"))
    changed = [number for number, sha256 in wanted.items() if before.get(number, sha256) != sha256]
    received = store().keys.received_parts(place_of(upload)) if changed and upload.is_begun else {}
    problems = [
        Problem(f"numbers.{n}", f"part {n} is there with other bytes.", "Start a new upload if the file has changed.")
        for n in changed
        if n in received
    ]
    if problems:
        raise Invalid("part_mismatch", problems[0].message, errors=[problem.as_json() for problem in problems])
    UploadPart.objects.bulk_create(
        [UploadPart(upload=upload, number=n, sha256=sha256) for n, sha256 in wanted.items() if before.get(n) != sha256],
        update_conflicts=True,
        unique_fields=["upload", "number"],
        update_fields=["sha256"],
    )


def complete_upload(*, actor: Actor, upload: Upload) -> Upload:
    """The upload, its parts now one; it is `verified` at once, or when a worker has read it. Again changes nothing.

    Raises Refused, StateChanged for an aborted upload, and Invalid("part_missing" | "part_mismatch") naming the parts.
    """
    _require_push(actor, upload)
    if upload.state == UploadState.VERIFYING:
        _verify_later(upload)
    if upload.state in (UploadState.VERIFYING, UploadState.VERIFIED, UploadState.QUARANTINED):
        return upload
    _require_open(upload)
    plan = PartPlan(upload.size_bytes, upload.part_size)
    known = dict(upload.parts.values_list("number", "sha256"))
    unsigned = [part.number for part in plan.parts() if part.number not in known]
    if unsigned or not upload.is_begun:
        raise Invalid(
            "part_missing",
            f"{len(unsigned)} of {plan.count} parts were not sent: {', '.join(map(str, unsigned[:10]))}. "
            "Sign and send them, then complete again.",
            missing=unsigned,
        )
    try:
        is_proven = store().keys.complete(place_of(upload), [known[part.number] for part in plan.parts()])
    except DomainError:
        upload.refresh_from_db()
        if upload.state == UploadState.OPEN:
            raise
        return upload  # another completed it meanwhile
    with transaction.atomic():  # atomic: an upload in `verifying` always has a job
        if move_upload(upload, UploadState.VERIFYING):
            if is_proven:
                accept(upload, known)
            else:
                _verify_later(upload)
    return upload


def _verify_later(upload: Upload) -> None:
    enqueue(kind=VERIFY, key=f"upload:{upload.pk}", args={"upload": str(upload.pk)}, max_attempts=10)


def verify(upload: Upload, beat: Beat) -> None:
    """Reads the upload's bytes once, from end to end; then they are a blob and the draft has its file, or are quarantined.

    Also where another blob has this sha256: that somebody says a sha256 is no proof of having the bytes. Does nothing
    for an upload in another state. Raises what the store raises.
    """
    if upload.state != UploadState.VERIFYING:
        return
    digest, size, told = hashlib.sha256(), 0, 0
    for chunk in store().keys.chunks(upload.store_key):
        digest.update(chunk)
        size += len(chunk)
        if size - told >= TELL_EVERY_BYTES:
            told = size
            if not beat(done=size >> 20, total=upload.size_bytes >> 20, note=f"reading {upload.path}"):
                return  # another worker has it
    problem = bytes_problem(upload.sha256, upload.size_bytes, digest.hexdigest(), size)
    if problem:
        quarantine(upload, problem)
    else:
        accept(upload, dict(upload.parts.values_list("number", "sha256")))


def accept(upload: Upload, part_sha256: Mapping[int, str]) -> None:
    """The upload's bytes, which were found right, are a blob, and its draft has the file."""
    try:
        with transaction.atomic():
            release = _draft_of(upload)
            blob = record_blob(
                upload.sha256,
                upload.size_bytes,
                key=upload.store_key,
                part_size=upload.part_size,
                part_sha256=[part_sha256[number] for number in sorted(part_sha256)],
            )
            attach(release, upload.path, blob, upload.size_bytes)
            if not move_upload(upload, UploadState.VERIFIED, problem=""):
                raise StateChanged("state_changed", "The upload was called off meanwhile.", state=upload.state)
            # A loser's bytes go, and what a process left that began the upload in the store and died before it said so.
            clear_later(upload)
        _inspect(upload, blob)
    except Invalid as error:
        quarantine(upload, error.message)
    except (NotFound, StateChanged):
        if move_upload(upload, UploadState.ABORTED):
            clear_later(upload)


def _inspect(upload: Upload, blob: Blob) -> None:
    """Reads the file's header now, so that sealing finds it cached; a problem is reported now and refused at the seal.

    What a graph may name as its data is judged at the seal, which reads the graph.
    """
    try:
        found = inspect_files([(upload.path, blob)])[upload.path]
    except Unavailable:  # other large files are read at this moment; the seal reads this one
        return
    beside = _beside(upload) if found.problems else set()
    if found.problems and not (found.can_be_data and can_be_data(upload.path, beside=beside)):
        said = " ".join(f"{problem.message} {problem.fix}" for problem in found.problems)
        Upload.objects.filter(pk=upload.pk).update(problem=said)


def _beside(upload: Upload) -> set[str]:
    """The paths of the draft's other files; empty once the draft is gone."""
    if upload.release is None:
        return set()
    announced = {file["path"] for file in upload.release.expected_files}
    return {*announced, *upload.release.files.values_list("path", flat=True)} - {upload.path}


def quarantine(upload: Upload, problem: str) -> None:
    """The upload's bytes never become a blob: `problem` says why, and what to do."""
    with transaction.atomic():
        if not move_upload(upload, UploadState.QUARANTINED, problem=problem):
            return
        append_event(
            verb="upload.quarantined",
            subject_type="release",
            subject_id=str(upload.release_id),
            actor=Actor.system("verifier"),
            reason=problem,
            facts={"path": upload.path, "sha256": upload.sha256, "upload": str(upload.pk)},
        )


def note_failure(upload: Upload, why: str) -> None:
    """The upload could not be read; it stays `verifying`, and completing it again tries again."""
    Upload.objects.filter(pk=upload.pk, state=UploadState.VERIFYING).update(problem=why)


def abort_upload(*, actor: Actor, upload: Upload) -> Upload:
    """The upload is over and its bytes go, quarantined ones too; one that is over already stays as it is. Raises Refused."""
    _require_push(actor, upload)
    with transaction.atomic():
        if move_upload(upload, UploadState.ABORTED):
            clear_later(upload)
    return upload


def sweep_uploads(*, actor: Actor) -> int:
    """How many were cleared: idle ones are aborted, and what lies in the store of those that are over goes.

    Quarantined bytes stay until their upload would have expired, for inspection by an administrator. For the system.
    """
    require(actor, Verb.ADMINISTER, "")
    now, cleared = timezone.now(), 0
    for upload in Upload.objects.filter(state=UploadState.OPEN, expires_at__lt=now):
        move_upload(upload, UploadState.ABORTED)
    over = Upload.objects.filter(is_stored=True).exclude(state__in=UNDER_WAY)
    for upload in over.exclude(state=UploadState.QUARANTINED, expires_at__gt=now):
        clear(upload)
        cleared += 1
    for upload in Upload.objects.filter(state=UploadState.VERIFYING, release__isnull=False):
        _verify_later(upload)  # a worker that gave up is no reason to leave it
    Upload.objects.filter(is_stored=False, created_at__lt=now - REMEMBERED_FOR).exclude(state__in=UNDER_WAY).delete()
    return cleared


def _draft(release: Release, *, lock: bool = False) -> Release:
    rows = Release.objects.select_for_update(no_key=True, of=("self",)) if lock else Release.objects
    found = rows.select_related("model__team").filter(pk=release.pk).first()
    if found is None:
        raise NotFound("no_such_release", "There is no such draft; it was discarded or sealed. Push again.")
    require_draft(found)
    return found


def _draft_of(upload: Upload) -> Release:
    """The upload's draft, its row locked. Raises NotFound, StateChanged."""
    if upload.release is None:
        raise NotFound("upload_gone", "The draft of this upload was discarded. Push again.")
    return _draft(upload.release, lock=True)


def _require_push(actor: Actor, upload: Upload) -> None:
    if upload.release is None:
        raise NotFound("upload_gone", "The draft of this upload was discarded. Push again.")
    require(actor, Verb.PUSH_RELEASE, upload.release.model.team.slug, upload.release.model.slug)


def _require_open(upload: Upload) -> None:
    if upload.state != UploadState.OPEN:
        raise StateChanged(
            "upload_over",
            f"The upload is {upload.state}. Look at it again, or start another one.",
            state=upload.state,
        )
