"""Named reads of models, releases and their files."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import F, OuterRef, Q, QuerySet, Subquery, Sum

from accounts.core.access import Actor, Verb, may, teams_where
from accounts.core.scope import models_regex
from ledger.core.errors import NotFound, Refused, StateChanged
from registry.core.file_rules import code_files, path_problems
from registry.core.file_rules import waivers_needed as waivers_for
from registry.core.lifecycle import ReleaseState
from registry.core.oms import SIGNATURE_TYPE
from registry.core.uploads import UploadState
from registry.models import Attestation, Release, ReleaseFile, ServedModel, Upload
from registry.storage import Place, store

#: Columns of a release that no list shows.
LARGE = ("manifest", "spec", "expected_files")


def get_release(model_slug: str, name: str | int) -> Release:
    """A sealed or retired release by its name (`r14`) or number. Raises NotFound."""
    release = find_release(model_slug, name)
    if release is None:
        raise NotFound(
            "no_such_release",
            f"{model_slug} has no release {name}. List its releases; their names are r1, r2, …",
            release=str(name),
        )
    return release


def find_release(model_slug: str, name: str | int) -> Release | None:
    """As `get_release`, with None where there is none."""
    number = _number(name)
    if number is None:
        return None
    return next(iter(_named(slug=model_slug, number=number)), None)


def _named(slug: Any, number: Any) -> QuerySet[Any, Any]:
    return Release.objects.select_related("model__team", "author").filter(model__slug=slug, number=number)


def these_or_numbered(ids: QuerySet[Any, Any], model: int, number: int) -> QuerySet[Release]:
    """The releases of a query of ids, and the model's, by its key, of this number, each found by its index."""
    numbered = Release.objects.filter(model=model, number=number).order_by().values("pk")
    return Release.objects.filter(pk__in=ids.union(numbered)).select_related("model__team", "author")


def blobs_of(ids: Collection[UUID]) -> set[str]:
    """Returns the sha256s of the files of these releases. One query."""
    return set(ReleaseFile.objects.filter(release__in=ids).values_list("blob_id", flat=True))


def size_of_files() -> Subquery:
    """Bytes of the files of each release of an outer query, to order by."""
    rows = ReleaseFile.objects.filter(release=OuterRef("pk")).order_by().values("release")
    return Subquery(rows.annotate(size=Sum("blob__size_bytes")).values("size"))


def releases_named(models: QuerySet[ServedModel], number: int) -> QuerySet[Release]:
    """The release of this number of each of the models, with no more than what events name it by."""
    rows = Release.objects.filter(model__in=models, number=number).select_related("model")
    return rows.only("number", "digest", "model__slug").order_by("-sealed_at")


def releases_by_id(ids: Collection[UUID]) -> dict[UUID, Release]:
    """Those that are there, with no more than what their names are made of."""
    return Release.objects.select_related("model").only("number", "model__slug").in_bulk(ids)


def whole_releases(ids: Collection[UUID]) -> dict[UUID, Release]:
    """Those that are there, with their manifests."""
    return Release.objects.in_bulk(ids) if ids else {}


def last_sealed(models: Collection[ServedModel]) -> dict[int, datetime]:
    """When the newest release of each of these models was sealed, by the model's key. One query, by an index."""
    numbers = ServedModel.objects.filter(pk__in=[model.pk for model in models], last_number__gt=0)
    newest = Release.objects.filter(model__in=numbers, number=F("model__last_number"), sealed_at__isnull=False)
    return {pk: at for pk, at in newest.order_by("model_id").values_list("model_id", "sealed_at") if at is not None}


def names_by_digest(model: ServedModel | Collection[int], digests: Collection[str]) -> dict[str, str]:
    """`r14` by digest, of those of the digests that a release of the model has; or of the models of these keys."""
    models = [model.pk] if isinstance(model, ServedModel) else model
    found = Release.objects.filter(model__in=models, digest__in=digests).only("number", "digest")
    return {release.digest or "": release.name for release in found}


def newest_releases(model: ServedModel, limit: int = 20) -> list[Release]:
    """Sealed and retired releases, the newest first."""
    return list(releases_of(model)[:limit])


def releases_of(model: ServedModel | int) -> QuerySet[Release]:
    """All but drafts, the newest first, without what only one release by itself is asked for: a manifest may be megabytes.

    Of a model by its key, none knows its model yet.
    """
    # Asked of the model, each release knows it without a look, which spares a third of a long page.
    every = Release.objects.filter(model=model) if isinstance(model, int) else model.releases.all()
    return every.filter(number__isnull=False).select_related("author").defer(*LARGE).order_by("-number")


def manifest_of(release: Release) -> dict[str, Any]:
    """The sealed manifest. Raises StateChanged for a draft."""
    require_sealed(release, "has a manifest", or_retired=True)
    manifest: dict[str, Any] = json.loads(release.manifest)
    return manifest


def manifests_of(ids: Collection[UUID]) -> dict[UUID, str]:
    """The canonical text of each of these releases; empty for a draft."""
    return dict(Release.objects.filter(pk__in=ids).values_list("pk", "manifest"))


def waivers_needed(release: Release) -> frozenset[str]:
    """The kinds of waiver without which the release may not run, given or not."""
    found = waivers_for(code_files(release.files.values("path", "role")))
    return found or frozenset({"code"} if release.is_code_bearing else ())


def waivers_missing(release: Release) -> frozenset[str]:
    """Those of the kinds that no release manager has given for just these contents."""
    given = release.waivers.filter(manifest_digest=release.digest) if release.digest else release.waivers.none()
    return waivers_needed(release) - set(given.values_list("kind", flat=True))


def has_code_waiver(release: Release) -> bool:
    """Whether a release manager waived all code of just these contents: source and archives, and pickles."""
    return bool(waivers_needed(release)) and not waivers_missing(release)


def require_sealed(release: Release, can: str, *, or_retired: bool = False) -> None:
    """Raises StateChanged("not_sealed") unless the release is sealed. `can`: what only a sealed release can, as a verb."""
    if release.state == ReleaseState.SEALED or (or_retired and release.state == ReleaseState.RETIRED):
        return
    step = "Seal it first." if release.state == ReleaseState.DRAFT else "Restore it first, or choose another."
    raise StateChanged(
        "not_sealed",
        f"{release.model.slug} {release.name} is {release.state}, and only a sealed release {can}. {step}",
        state=release.state,
    )


def require_runnable(release: Release) -> None:
    """Raises StateChanged("not_sealed") for a draft or a retired release, Refused("code_not_waived") where a waiver is missing."""
    require_sealed(release, "can be run")
    if release.is_code_bearing and not has_code_waiver(release):
        raise Refused(
            "code_not_waived",
            f"{release.model.slug} {release.name} brings its own code, and no release manager has waived it. "
            f"Ask one to waive {release.name}, or push it without code.",
            release=release.name,
            digest=release.digest,
        )


def signature_of(release: Release) -> Attestation:
    """The release's newest signature. Raises NotFound for one that was sealed before releases were signed."""
    found = release.attestations.filter(predicate_type=SIGNATURE_TYPE).order_by("-pk").first()
    if found is None:
        raise NotFound(
            "not_signed",
            f"{release.model.slug} {release.name} was sealed before releases were signed. "
            "Sign it from its stored digests: "
            f"sluicegate api POST /models/{release.model.slug}/releases/{release.name}/signature",
            release=release.name,
        )
    return found


def missing_files(release: Release) -> list[str]:
    """The announced paths that were not uploaded yet."""
    present = set(release.files.values_list("path", flat=True))
    return [file["path"] for file in release.expected_files if file["path"] not in present]


def unverified_uploads(release: Release) -> list[Upload]:
    """The uploads, one of each path, whose parts are all here and whose bytes are being verified or were found wrong."""
    over = release.uploads.filter(state__in=[UploadState.VERIFYING, UploadState.QUARANTINED])
    have = dict(release.files.values_list("path", "blob_id"))
    newest = over.order_by("path", "-created_at").distinct("path")
    return [upload for upload in newest if have.get(upload.path) != upload.sha256]


def place_of(upload: Upload) -> Place:
    """Where the upload's bytes go."""
    return Place(upload.store_key, upload.size_bytes, upload.part_size, upload.store_id)


def received_parts(upload: Upload) -> list[tuple[int, str]]:
    """(number, sha256) of the parts of an open upload that the store has, in order. Empty for one that is not open."""
    if upload.state != UploadState.OPEN or not upload.is_begun:
        return []
    held = store().keys.received_parts(place_of(upload))
    known = dict(upload.parts.values_list("number", "sha256"))
    return [(number, part.sha256 or known.get(number, "")) for number, part in sorted(held.items())]


def visible_upload(actor: Actor, upload_id: UUID) -> Upload:
    """Raises NotFound, also when the actor may not see its model or its draft is gone."""
    upload = Upload.objects.select_related("release__model__team").filter(pk=upload_id).first()
    if (
        upload is None
        or upload.release is None
        or not may(actor, Verb.READ, upload.release.model.team.slug, upload.release.model.slug)
    ):
        raise NotFound(
            "no_such_upload",
            f"There is no upload {upload_id}. Its draft may have been discarded; push again.",
            upload=str(upload_id),
        )
    return upload


def get_file(release: Release, path: str) -> ReleaseFile:
    """Raises NotFound."""
    is_path = not path_problems(path)  # what cannot be a path must not reach the database either
    file = release.files.select_related("blob").filter(path=path).first() if is_path else None
    if file is None:
        raise NotFound("no_such_file", f"{release.name} has no file {path}. Its manifest lists its files.", path=path)
    if file.blob.collected_at is not None:
        raise NotFound(
            "bytes_collected",
            f"{release.name} is {release.state}, and the bytes of {path} were deleted on {file.blob.collected_at:%Y-%m-%d}. "
            "Its manifest and signatures are still there; push the bytes again as a new release.",
            path=path,
        )
    return file


def model_by_id(model_id: int) -> ServedModel:
    """Of one that is known to be there, because a row names it."""
    return ServedModel.objects.select_related("team").get(pk=model_id)


def gate_policies(model_ids: Collection[int]) -> dict[int, dict[str, Any]]:
    """What these models' gate policies state. One query."""
    return dict(ServedModel.objects.filter(pk__in=model_ids).values_list("pk", "gate_policy"))


def visible_models(actor: Actor) -> QuerySet[ServedModel]:
    """The models of the teams in which the actor may read, as far as the scope goes; all of them for an administrator."""
    return models_seen(*sight_of(actor))


def sight_of(actor: Actor) -> tuple[frozenset[str] | None, str | None]:
    """What `models_seen` narrows by: the teams in which the actor may read and a pattern of names, each None for all. Those who have
    the same sight see the same models."""
    pattern = None if actor.scope.models is None else models_regex(actor.scope.models)
    return teams_where(actor, Verb.READ), pattern


def models_seen(teams: frozenset[str] | None, pattern: str | None) -> QuerySet[ServedModel]:
    return ServedModel.objects.select_related("team").order_by("slug").filter(within_sight(teams, pattern))


def within_sight(teams: frozenset[str] | None, pattern: str | None = None, *, of: str = "") -> Q:
    """Narrows models to what is seen (`sight_of`), or rows of a model by the way `of` to it, such as `model__`."""
    narrowed = Q()
    if teams is not None:
        narrowed &= Q(**{f"{of}team__slug__in": teams})
    if pattern is not None:
        narrowed &= Q(**{f"{of}slug__regex": pattern})
    return narrowed


def visible_model(actor: Actor, slug: str) -> ServedModel:
    """Raises NotFound for a model that is not there and, in the same words, for one that the actor may not see."""
    model = ServedModel.objects.select_related("team").filter(slug=slug).first()
    return model if model is not None and may(actor, Verb.READ, model.team.slug, model.slug) else _no_model(slug)


def visible_release(actor: Actor, slug: str, name: str | int) -> Release:
    """As `visible_model`, then as `get_release`."""
    visible_model(actor, slug)
    return get_release(slug, name)


def visible_release_by_id(actor: Actor, release_id: UUID) -> Release:
    """A draft or a release by its id. Raises NotFound, also when the actor may not see it."""
    release = Release.objects.select_related("model__team").filter(pk=release_id).first()
    if release is None or not may(actor, Verb.READ, release.model.team.slug, release.model.slug):
        raise NotFound(
            "no_such_release",
            f"There is no release {release_id}. A draft may have been discarded, or become another release "
            "when it was sealed; list the model's releases.",
            release=str(release_id),
        )
    return release


def _number(name: str | int) -> int | None:
    match = re.fullmatch(r"r?([1-9]\d{0,8})", str(name))
    return int(match[1]) if match else None


def _no_model(slug: str) -> ServedModel:
    raise NotFound(
        "no_such_model",
        f"There is no model {slug} that you may see. List the models, or ask its team for a role.",
        model=slug,
    )
