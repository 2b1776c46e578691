"""Signed statements about releases: made at the seal, made again for a new key, and added as evidence comes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from ledger.actions import append_event
from ledger.core.errors import Unavailable
from registry.core import oms
from registry.core.attestations import PROVENANCE_TYPE, provenance, subject_of
from registry.models import Attestation, Release
from registry.queries import require_sealed
from registry.signing import installation_keys
from registry.signing.public_keys import PublicKey

#: Of Sluicegate, as installed; a checkout that was never installed does not know.
try:
    VERSION = version("sluicegate")
except PackageNotFoundError:
    VERSION = "unknown"


def sign_manifest(release: Release, manifest: str, digest: str, name: str) -> Attestation:
    """The signature of a release that is being sealed, inside its transaction; its provenance is attested too. Raises Unavailable."""
    read = json.loads(manifest)
    origin = provenance(
        read,
        release_name=name,
        pushed_by=release.author.username if release.author else None,
        drafted_at=release.created_at.isoformat(),
        sealed_at=(release.sealed_at or timezone.now()).isoformat(),
        version=VERSION,
    )
    _add(release, _statement(read["model"], name, digest, PROVENANCE_TYPE, origin), PROVENANCE_TYPE, about=digest)
    statement = oms.statement_of(manifest=read, digest=digest, release_name=name)
    return _add(release, statement, oms.SIGNATURE_TYPE, about=digest)


def sign_release(*, actor: Actor, release: Release) -> tuple[Attestation, bool]:
    """(the release's signature by the present key, whether it was made now): from the stored digests, no byte is read.

    For releases that were sealed before they were signed, and after a rotation. Raises Refused, StateChanged, Unavailable.
    """
    require(actor, Verb.PUSH_RELEASE, release.model.team.slug, release.model.slug)
    digest = _sealed_digest(release)
    with transaction.atomic():
        before = release.attestations.filter(predicate_type=oms.SIGNATURE_TYPE, about=digest)
        known = set(before.values_list("pk", flat=True))
        signature = sign_manifest(release, release.manifest, digest, release.name)
        is_new = signature.pk not in known
        if is_new:
            append_event(
                verb="release.signed",
                subject_type="release",
                subject_id=str(release.pk),
                actor=actor,
                facts={
                    "model": release.model.slug,
                    "release": release.name,
                    "digest": digest,
                    "signed_by": signature.key_id,
                },
            )
    return signature, is_new


@transaction.atomic
def attest(
    *, actor: Actor, release: Release, predicate_type: str, predicate: Mapping[str, Any], about: str
) -> Attestation:
    """The signed statement of this kind about `about` (a digest) for the release; the one that is there, if there is.

    Raises Refused, StateChanged for a draft, Unavailable.
    """
    require(actor, Verb.READ, release.model.team.slug, release.model.slug)
    digest = _sealed_digest(release)
    statement = _statement(release.model.slug, release.name, digest, predicate_type, predicate)
    return _add(release, statement, predicate_type, about=about)


@transaction.atomic
def rotate_key(*, actor: Actor, use: installation_keys.Use) -> tuple[PublicKey | None, PublicKey]:
    """(the key before, the new one). What the one before signed stays valid. For administrators."""
    require(actor, Verb.ADMINISTER, "")
    before, after = _rotated(use)
    append_event(
        verb="key.rotated",
        subject_type="key",
        subject_id=after.key_id,
        actor=actor,
        from_state=before.key_id if before else "",
        to_state=after.key_id,
        facts={"use": use.value},
    )
    return before, after


def _rotated(use: installation_keys.Use) -> tuple[PublicKey | None, PublicKey]:
    try:
        return installation_keys.rotate(use)
    except (ImproperlyConfigured, OSError) as error:
        raise _unusable(error) from error


def _statement(model: str, name: str, digest: str, predicate_type: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "_type": oms.STATEMENT_TYPE,
        "subject": subject_of(model, name, digest),
        "predicateType": predicate_type,
        "predicate": predicate,
    }


def _add(release: Release, statement: Mapping[str, Any], predicate_type: str, *, about: str) -> Attestation:
    try:
        key_id = installation_keys.present_key(installation_keys.Use.RELEASES).key_id
        same = {"release": release, "predicate_type": predicate_type, "about": about, "key_id": key_id}
        found = Attestation.objects.filter(**same).first()
        if found is not None:
            return found
        bundle, key_id = installation_keys.sign_statement(statement)
    except (ImproperlyConfigured, OSError) as error:
        raise _unusable(error) from error
    same["key_id"] = key_id  # it may have been rotated in between
    return Attestation.objects.get_or_create(**same, defaults={"bundle": bundle})[0]


def _sealed_digest(release: Release) -> str:
    require_sealed(release, "can be signed", or_retired=True)
    return release.digest or ""


def _unusable(error: Exception) -> Unavailable:
    return Unavailable(
        "signing_key_unusable", f"The signing key cannot be used: {error}. Mend the file, then try again."
    )
