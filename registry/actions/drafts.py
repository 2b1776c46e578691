"""Drafts: create one, add its files, discard it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from accounts.core.access import Actor, Verb, require, require_version
from ledger.actions import append_event, enqueue
from ledger.core.errors import Invalid, NotFound, StateChanged
from registry.actions.blobs import forget_unused, lock_blobs, record_blob
from registry.actions.parts import UNDER_WAY, call_off_uploads, dismiss_quarantined
from registry.adapters.pbtxt import check
from registry.core.blob_lifecycle import BlobState
from registry.core.file_rules import CONFIG_FILES, MOST_FILES, collisions, config_size_problems, path_problems, role_of
from registry.core.files import SHA256, bare_sha256, read_files
from registry.core.lifecycle import ReleaseState
from registry.core.partial_spec import read_partial
from registry.core.release_check import ModelTerms, of_document
from registry.core.schema import Problem
from registry.core.spec import Spec, parse_spec, refuse
from registry.models import Blob, Release, ReleaseFile, ServedModel
from registry.storage import Readable, store

#: A single recurring job row: it discards abandoned drafts and collects unreferenced bytes.
HOUSEKEEPING, HOUSEKEEPING_EVERY = "registry.housekeeping", timedelta(hours=6)
#: Class id of the advisory locks for resumed drafts, a lock for each model. No other advisory lock uses this number.
_RESUME_LOCKS = 0x72_65_73_75


def create_draft(
    *,
    actor: Actor,
    model: ServedModel,
    spec: dict[str, Any],
    files: Sequence[Mapping[str, Any]] | None = None,
    resume: bool = False,
) -> tuple[Release, bool]:
    """(a draft of the next release, from a release.yaml; whether it was created).

    `resume`: the actor's newest draft of just this content, if there is one.

    `files` announces what will be uploaded, [{path, sha256, size_bytes}]: then nothing else may be, and bytes that
    another release of this model already holds are taken over. Raises Refused, and Invalid("invalid_spec") with every
    mistake of the spec, the contract and the files; then nothing was created.
    """
    require(actor, Verb.PUSH_RELEASE, model.team.slug, model.slug)
    partial = read_partial(spec if isinstance(spec, Mapping) else {})
    terms = ModelTerms(model.slug, model.contract, model.objectives, settings.MAX_UPLOAD_BYTES)
    problems = of_document(partial, spec if isinstance(spec, Mapping) else {}, terms)
    listed, of_files = read_files(
        [] if files is None else files, partial.backend if files else None, settings.MAX_UPLOAD_BYTES
    )
    refuse("invalid_spec", "The release", problems + of_files)
    read = partial.spec
    assert read is not None  # there is one when there is no problem
    with transaction.atomic():
        if resume and (known := _resumed(actor, model, read, listed)):
            return known, False
        release = Release.objects.create(
            model=model, spec=read.as_json(), expected_files=listed, author_id=actor.user_id
        )
        _take_over(release)
        # Events come last: their chain has one lock for everybody, and blobs' locks must not be waited for under it.
        append_event(
            verb="release.drafted",
            subject_type="release",
            subject_id=str(release.pk),
            actor=actor,
            to_state=release.state,
            facts={"model": model.slug, "files": len(listed)},
        )
        expect_housekeeping()
    return release, True


def _resumed(actor: Actor, model: ServedModel, spec: Spec, files: list[dict[str, Any]]) -> Release | None:
    """The actor's newest draft of this content. Its version grows, so that the other holder of the draft sees a conflict.

    Until the transaction ends, a lock keeps others from resuming drafts of the model. So the same content never has two drafts.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_RESUME_LOCKS, model.pk])
    drafts = Release.objects.filter(model=model, state=ReleaseState.DRAFT, author=actor.user_id)
    same = drafts.filter(spec=spec.as_json(), expected_files=files).order_by("-created_at")
    known = same.select_for_update(of=("self",), no_key=True).first()
    if known is not None:
        Release.objects.filter(pk=known.pk).update(version=F("version") + 1)
        known.refresh_from_db(fields=["version"])
    return known


def expect_housekeeping() -> None:
    """Schedules the housekeeping job: called wherever a draft or unreferenced bytes may later need cleaning up."""
    enqueue(kind=HOUSEKEEPING, key="all", args={}, due_at=timezone.now() + HOUSEKEEPING_EVERY)


def _take_over(release: Release) -> None:
    """Attaches announced files whose bytes a release of the same model holds: everyone who may push to the model may read those.

    Never by the sha256 alone, which would tell what other teams have.
    """
    require_expected_file = {file["sha256"] for file in release.expected_files}
    named = ReleaseFile.objects.filter(release__model=release.model, blob__in=require_expected_file).values_list(
        "blob", flat=True
    )
    readable = set(named)
    if not readable:
        return
    lock_blobs(readable)
    blobs = {blob.sha256: blob for blob in Blob.objects.filter(pk__in=readable, state=BlobState.VERIFIED)}
    missing = store().missing_keys((blob.store_key, blob.size_bytes) for blob in blobs.values())
    stored = {sha256: blob for sha256, blob in blobs.items() if blob.store_key not in missing}
    Blob.objects.filter(pk__in=list(stored), collected_at__isnull=False).update(collected_at=None)
    there = [(file, stored[file["sha256"]]) for file in release.expected_files if file["sha256"] in stored]
    plain: list[tuple[str, Blob, int]] = []
    looked_at: list[tuple[str, Blob, int]] = []  # a configuration is read, and a wrong size is refused
    for file, blob in there:
        is_plain = file["path"] not in CONFIG_FILES and file["size_bytes"] == blob.size_bytes
        (plain if is_plain else looked_at).append((file["path"], blob, file["size_bytes"]))
    ReleaseFile.objects.bulk_create(
        ReleaseFile(release=release, path=path, role=role_of(path), blob=blob) for path, blob, _ in plain
    )
    for path, blob, size_bytes in looked_at:
        attach(release, path, blob, size_bytes)


def add_file(
    *, actor: Actor, release: Release, path: str, sha256: str, stream: Readable, size_bytes: int | None = None
) -> ReleaseFile:
    """The file in the draft, its bytes read from `stream` and checked against `sha256` and `size_bytes`.

    Sending the same file again changes nothing; another file for the same path replaces it, unless the draft announced
    this one. Raises Refused, NotFound, StateChanged("not_a_draft") and Invalid, naming the field; then nothing remains.
    """
    release = Release.objects.select_related("model__team").filter(pk=release.pk).first() or _gone()
    require(actor, Verb.PUSH_RELEASE, release.model.team.slug, release.model.slug)
    require_draft(release)
    sha256 = require_expected_file(release, path, sha256, size_bytes)
    present = release.files.filter(path=path, blob=sha256).first()
    if present is not None:
        dismiss_quarantined(release, path)
        return present
    try:
        stored, size = store().put_stream(stream, sha256)
    except Invalid as error:
        raise _at_field(error) from error
    try:
        with transaction.atomic():
            release = Release.objects.select_for_update(no_key=True).filter(pk=release.pk).first() or _gone()
            require_draft(release)
            return attach(release, path, record_blob(sha256, size), size_bytes)
    except Exception:
        forget_unused([stored])
        raise


def require_expected_file(release: Release, path: str, sha256: str, size_bytes: int | None) -> str:
    """The bare sha256, once path, sha256 and size are ones that this draft takes. Raises Invalid, naming the field."""
    beside = [file["path"] for file in release.expected_files] or list(release.files.values_list("path", flat=True))
    problems = path_problems(path, beside=beside)
    SHA256.read(sha256, "sha256", problems)
    refuse("invalid_file", "The upload", problems)
    sha256 = bare_sha256(sha256)
    if size_bytes is not None and size_bytes > settings.MAX_UPLOAD_BYTES:
        problems.append(
            Problem(
                "size_bytes",
                f"{size_bytes} bytes are more than the {settings.MAX_UPLOAD_BYTES} that this installation takes.",
                "Send a smaller file, or ask for a higher SLUICEGATE_MAX_UPLOAD_BYTES.",
            )
        )
    if release.expected_files:
        announced = next((file for file in release.expected_files if file["path"] == path), None)
        if announced is None:
            problems.append(
                Problem(
                    "path", f"{path!r} was not announced with the draft.", "Announce it in files, or do not send it."
                )
            )
        elif announced["sha256"] != sha256:
            problems.append(
                Problem(
                    "sha256",
                    f"the draft announced {announced['sha256']} for {path}, and this upload says {sha256}.",
                    "Send the announced file, or start a new draft.",
                )
            )
        elif size_bytes is not None and announced["size_bytes"] != size_bytes:
            problems.append(_size_problem(path, size_bytes, announced["size_bytes"]))
    refuse("invalid_file", "The upload", problems)
    return sha256


def attach(release: Release, path: str, blob: Blob, announced_size: int | None) -> ReleaseFile:
    """The file's row, once its bytes fit. Inside a transaction that holds the release's row. Raises Invalid."""
    size = blob.size_bytes
    # Files that were announced were looked at together then, and no other path is taken.
    problems = [] if release.expected_files else _beside_others(release, path)
    announced = next((file["size_bytes"] for file in release.expected_files if file["path"] == path), announced_size)
    if announced is not None and announced != size:
        problems.append(_size_problem(path, size, announced))
    problems += config_size_problems(path, size)
    refuse("invalid_file", "The upload", problems)
    if path in CONFIG_FILES:
        with store().open(blob.sha256) as file:
            check(file.read(), parse_spec(release.spec), path)
    replaced = release.files.filter(path=path).exclude(blob=blob).values_list("blob_id", flat=True).first()
    if replaced is not None:
        transaction.on_commit(lambda: forget_unused([replaced]), robust=True)
    dismiss_quarantined(release, path)
    return release.files.update_or_create(path=path, defaults={"role": role_of(path), "blob": blob})[0]


def _beside_others(release: Release, path: str) -> list[Problem]:
    others = list(release.files.exclude(path=path).values_list("path", flat=True))
    problems = collisions(path, others)
    if len(others) >= MOST_FILES:
        problems.append(
            Problem("path", f"the draft has {len(others)} files, the most there can be.", "Pack small files together.")
        )
    return problems


def _size_problem(path: str, size: int, announced: int) -> Problem:
    return Problem(
        "size_bytes",
        f"{path} has {size} bytes, and {announced} were announced.",
        "Announce the size of the file that is sent.",
    )


def _at_field(error: Invalid) -> Invalid:
    """The same refusal, with its field named for those that the store raises."""
    fields = {
        "digest_mismatch": ("sha256", "Compute the sha256 of the file that is sent, or send the file again."),
        "too_large": ("size_bytes", "Send a smaller file, or ask for a higher SLUICEGATE_MAX_UPLOAD_BYTES."),
    }
    if error.code not in fields:
        return error
    field, fix = fields[error.code]
    return Invalid(error.code, error.message, **error.facts, errors=[Problem(field, error.message, fix).as_json()])


@transaction.atomic
def discard_draft(*, actor: Actor, release: Release, expected_version: int | None = None) -> None:
    """The draft is gone, with those of its bytes that nothing else has.

    Raises Refused, NotFound, StateChanged("not_a_draft"), and Stale when somebody resumed it since `expected_version`.
    """
    release = (
        Release.objects.select_for_update(no_key=True, of=("self",))
        .select_related("model__team")
        .filter(pk=release.pk)
        .first()
        or _gone()
    )
    require(actor, Verb.PUSH_RELEASE, release.model.team.slug, release.model.slug)
    require_draft(release)
    require_version(release.version, expected_version, "The draft")
    drop_draft(release, actor=actor, reason="discarded")


def drop_draft(release: Release, *, actor: Actor, reason: str) -> None:
    """Deletes a draft whose row is locked. Its bytes follow after the commit."""
    blobs = list(release.files.values_list("blob_id", flat=True))
    pk, state, model = str(release.pk), release.state, release.model.slug
    call_off_uploads(release)
    release.delete()
    append_event(
        verb="release.discarded",
        subject_type="release",
        subject_id=pk,
        actor=actor,
        from_state=state,
        reason=reason,
        facts={"model": model},
    )
    transaction.on_commit(lambda: forget_unused(blobs), robust=True)  # else they wait for the collection


def purge_drafts(*, actor: Actor, older_than: timedelta) -> int:
    """How many drafts were discarded, all created longer than `older_than` ago. For administrators and the system.

    One with an upload under way is not abandoned: a slow push may take longer. An upload that stands still ends by itself.
    """
    require(actor, Verb.ADMINISTER, "")
    old = Release.objects.filter(state=ReleaseState.DRAFT, created_at__lt=timezone.now() - older_than).exclude(
        uploads__state__in=UNDER_WAY
    )
    count = 0
    for pk in list(old.values_list("pk", flat=True)):
        with transaction.atomic():
            release = (
                Release.objects.select_for_update(no_key=True, skip_locked=True)
                .filter(pk=pk, state=ReleaseState.DRAFT)
                .first()
            )
            if release is not None:
                drop_draft(release, actor=actor, reason=f"abandoned for more than {older_than}")
                count += 1
    return count


def require_draft(release: Release) -> None:
    """Raises StateChanged unless the release is still a draft."""
    if release.state != ReleaseState.DRAFT:
        raise StateChanged(
            "not_a_draft",
            f"{release.name} is {release.state}, and a sealed release never changes. Push a new release.",
            state=release.state,
        )


def _gone() -> Release:
    raise NotFound(
        "no_such_release",
        "There is no such draft; it was discarded, or became another release when it was sealed. Push again.",
    )
