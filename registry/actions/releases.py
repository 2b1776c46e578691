"""Releases: seal one, and waive what needs a waiver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.core.access import Actor, Verb, require, require_version
from accounts.core.addresses import API
from ledger.actions import append_event
from ledger.actions.transitions import transition
from ledger.core.errors import Invalid, NotFound, Refused
from registry.actions.attestations import sign_manifest
from registry.actions.drafts import drop_draft
from registry.actions.inspections import inspect_files
from registry.core import file_lint, manifest
from registry.core.blob_lifecycle import BlobState
from registry.core.file_rules import backend_problems, role_of
from registry.core.formats import Findings
from registry.core.lifecycle import MOVES, FileRole, ReleaseState
from registry.core.partial_spec import read_partial
from registry.core.release_check import against_files
from registry.core.schema import Problem, Text
from registry.core.spec import Spec, parse_spec, refuse
from registry.core.timeouts import against_objectives
from registry.core.uploads import UploadState
from registry.hooks.code_runs import code_runs_of
from registry.models import Release, ReleaseFile, ServedModel, Waiver
from registry.queries import require_sealed, unverified_uploads, waivers_missing, waivers_needed
from registry.queries.file_headers import hidden_of
from registry.storage import store


def seal(*, actor: Actor, release: Release, expected_version: int | None = None) -> Release:
    """The sealed release, with its number and digest; sealing it again changes nothing.

    When the model has a release of the same content, that one is the answer and the draft is discarded. Raises
    Refused, NotFound, Stale, and Invalid: "incomplete_release" names every file that is missing, "unverified_files" those
    that were not read yet, "invalid_files" every file that is not what its name or release.yaml says, "invalid_spec" what the model's
    objectives contradict by now.
    """
    return _seal(actor, release, expected_version, _headers(actor, release))


#: What was found in files, by path and blob.
_Found = Mapping[tuple[str, str], Findings]


def _headers(actor: Actor, release: Release) -> _Found:
    """The headers of the draft's files, read before the transaction so that no row stays locked during file I/O."""
    draft = Release.objects.select_related("model__team").filter(pk=release.pk, state=ReleaseState.DRAFT).first()
    if draft is None:
        return {}
    require(actor, Verb.PUSH_RELEASE, draft.model.team.slug, draft.model.slug)
    files = {file.path: file.blob for file in draft.files.select_related("blob")}
    try:
        return {(path, files[path].pk): one for path, one in inspect_files(files.items()).items()}
    except NotFound:
        return {}  # the seal says whose bytes are not in the store


@transaction.atomic
def _seal(actor: Actor, release: Release, expected_version: int | None, found: _Found) -> Release:
    release = lock_release(release)
    require(actor, Verb.PUSH_RELEASE, release.model.team.slug, release.model.slug)
    if release.state != ReleaseState.DRAFT:
        return release
    require_version(release.version, expected_version, "The draft")
    spec, files = parse_spec(release.spec), list(release.files.select_related("blob"))
    unverified = _unverified(release)
    incomplete = [one for one in _incomplete(release, spec, files) if one.field not in {u.field for u in unverified}]
    refuse("unverified_files" if unverified else "incomplete_release", "The draft", [*unverified, *incomplete])
    inspected = _inspected(files, found)
    refuse("invalid_files", "The draft", _against_files(spec, files, inspected))
    _settle_roles(files, inspected)
    text, digest = manifest.text_and_digest(
        spec, [manifest.File(file.path, FileRole(file.role), file.blob_id, file.blob.size_bytes) for file in files]
    )
    # The model's row is locked, so seals of one model are serialized: numbers have no gap and no duplicate.
    model = ServedModel.objects.select_for_update(no_key=True).get(pk=release.model_id)
    same = Release.objects.select_related("model__team").filter(model=model, digest=digest).first()
    if same is not None:
        drop_draft(release, actor=actor, reason=f"the same as {same.name}")
        return same
    # Of the draft they were checked when it was made; the model may have been given others since.
    refuse("invalid_spec", "The release", against_objectives(spec.serving, spec.envelope, model.objectives))
    number = _next_number(model)
    signature = sign_manifest(release, text, digest, f"r{number}")
    return move(
        release,
        ReleaseState.SEALED,
        actor=actor,
        verb="release.sealed",
        facts={"model": model.slug, "number": number, "digest": digest, "signed_by": signature.key_id},
        number=number,
        digest=digest,
        manifest=text,
        is_code_bearing=any(file.role == FileRole.CODE for file in files),
        sealed_at=timezone.now(),
    )


def _next_number(model: ServedModel) -> int:
    """A number that no release of the model ever had. Inside the transaction that holds the model's row."""
    ServedModel.objects.filter(pk=model.pk).update(last_number=F("last_number") + 1)
    model.refresh_from_db(fields=["last_number"])
    return model.last_number


def _incomplete(release: Release, spec: Spec, files: list[ReleaseFile]) -> list[Problem]:
    """What is missing, or not in the store with the size that was recorded when its sha256 was checked."""
    present = {file.path for file in files}
    problems = [
        Problem(
            f"files.{file['path']}", f"{file['path']} was announced and not uploaded.", "Upload it, then seal again."
        )
        for file in release.expected_files
        if file["path"] not in present
    ]
    if not release.expected_files:
        problems += [problem.under("files") for problem in backend_problems(spec.backend, present)]
    lost = store().missing_keys((file.blob.store_key, file.blob.size_bytes) for file in files)
    for file in files:
        if file.blob.store_key in lost or file.blob.state != BlobState.VERIFIED:
            problems.append(
                Problem(
                    f"files.{file.path}",
                    f"the bytes of {file.path} are not in the store as they were uploaded. {file.blob.problem}".strip(),
                    "Discard the draft and push again; if it comes back, check the store's disk.",
                )
            )
    return problems


def _unverified(release: Release) -> list[Problem]:
    """What was uploaded and was not read yet, or was found to be something else."""
    return [
        Problem(
            f"files.{upload.path}",
            f"{upload.path} is quarantined: {upload.problem}",
            f"Send the right file, or call this upload off (DELETE {API}/uploads/{upload.pk}). Then seal.",
        )
        if upload.state == UploadState.QUARANTINED
        else Problem(
            f"files.{upload.path}", f"the bytes of {upload.path} are being verified.", "Wait a moment, then seal again."
        )
        for upload in unverified_uploads(release)
    ]


def _inspected(files: list[ReleaseFile], found: _Found) -> Mapping[str, Findings]:
    """Findings of each file, by path. Files that `found` lacks are read now."""
    here = {file.path: found.get((file.path, file.blob_id)) for file in files}
    late = inspect_files((file.path, file.blob) for file in files if here[file.path] is None)
    return file_lint.as_named(late | {path: one for path, one in here.items() if one is not None})


def _facts(files: list[ReleaseFile], inspected: Mapping[str, Findings]) -> dict[str, tuple[int, Mapping[str, Any]]]:
    return {file.path: (file.blob.size_bytes, inspected[file.path].facts) for file in files}


def _against_files(spec: Spec, files: list[ReleaseFile], inspected: Mapping[str, Findings]) -> list[Problem]:
    """Every mistake of the files themselves, and every contradiction to release.yaml."""
    problems = [problem.under("files") for one in inspected.values() for problem in one.problems]
    return problems + against_files(read_partial(spec.as_json()), _facts(files, inspected))


def _settle_roles(files: list[ReleaseFile], inspected: Mapping[str, Findings]) -> None:
    """Gives each file its role after the graphs were read: their external data is data under any name."""
    data = file_lint.external_data(_facts(files, inspected))
    for file in files:
        role = role_of(file.path, is_data=file.path in data)
        if file.role != role:
            file.role = role
            file.save(update_fields=["role"])


def move(
    release: Release,
    to: ReleaseState,
    *,
    actor: Actor,
    verb: str,
    facts: dict[str, Any],
    reason: str = "",
    **changes: Any,
) -> Release:
    """The release in another state, with the event that names it. Raises StateChanged."""
    seen = transition(release, to, moves=MOVES, **changes)
    append_event(
        verb=verb,
        subject_type="release",
        subject_id=str(release.pk),
        actor=actor,
        from_state=seen,
        to_state=to,
        reason=reason,
        facts=facts,
    )
    return release


@transaction.atomic
def grant_waiver(*, actor: Actor, release: Release, reason: str, kind: str | None = None) -> Waiver:
    """A release manager's word that this release may run its own code, bound to its digest.

    `kind` is `code` (source, TorchScript) or `pickle`; left out, it is the first that the release still needs. Raises
    Refused (also for the release's author), StateChanged for a draft, and Invalid without a reason or a need. The same word
    of the same person again is the waiver that is there.
    """
    release = lock_release(release)
    require(actor, Verb.WAIVE_CODE, release.model.team.slug, release.model.slug)
    if release.author_id is not None and release.author_id == actor.user_id:
        raise Refused(
            "own_release", f"{actor.name} pushed {release.name} and cannot waive it. Ask another release manager."
        )
    require_sealed(release, "can be given a waiver")
    needed = waivers_needed(release)
    if not needed:
        raise Invalid("no_waiver_needed", f"{release.name} carries no code and needs no waiver. Roll it out as it is.")
    refuse("invalid_waiver", "The waiver", [*_reason_problems(reason), *_kind_problems(kind, needed)])
    row = {
        "release": release,
        "manifest_digest": release.digest or "",
        "kind": kind or min(waivers_missing(release) or needed),
        "reason": reason.strip(),
        "granted_by_id": actor.user_id,
    }
    if repeated := Waiver.objects.filter(**row).first():
        return repeated
    told = {run.node: run.containment for run in code_runs_of(release)}  # what was known of where it would run
    hidden = hidden_of(release)
    waiver = Waiver.objects.create(**row)
    author = release.author.username if release.author else None
    append_event(
        verb="release.waived",
        subject_type="release",
        subject_id=str(release.pk),
        actor=actor,
        reason=reason.strip(),
        facts={
            "model": release.model.slug,
            "release": release.name,
            "digest": release.digest,
            "kind": waiver.kind,
            "author": author,
            "containment": told,
            **({"hidden": dict(hidden)} if hidden else {}),
        },
    )
    return waiver


def _kind_problems(kind: str | None, needed: frozenset[str]) -> list[Problem]:
    problems: list[Problem] = []
    if kind is not None:
        Text(one_of=tuple(sorted(needed)), says="a waiver that this release needs").read(kind, "kind", problems)
    return problems


def _reason_problems(reason: str) -> list[Problem]:
    problems: list[Problem] = []
    Text(4000).read(reason, "reason", problems)
    if not problems and not reason.strip():
        problems.append(Problem("reason", "a waiver says why.", "Write what was reviewed, and by whom."))
    return problems


def lock_release(release: Release) -> Release:
    """The release's row, locked until the transaction ends. Raises NotFound."""
    locked = (
        Release.objects.select_for_update(no_key=True, of=("self",))
        .select_related("model__team")
        .filter(pk=release.pk)
        .first()
    )
    if locked is None:
        raise NotFound(
            "no_such_release",
            "There is no such release; the draft was discarded, or sealed as a release that was there. Push again.",
        )
    return locked
