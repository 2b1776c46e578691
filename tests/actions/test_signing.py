"""Signatures of releases: made at the seal, accepted by the stock verifier, kept, and valid after a rotation."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connection, transaction
from model_signing import verifying

from accounts.core.access import Actor
from ledger.core.errors import Refused, StateChanged, Unavailable
from ledger.models import Event
from registry import actions
from registry.core import oms
from registry.core.attestations import PROVENANCE_TYPE
from registry.models import Attestation, Release, ServedModel
from registry.signing import installation_keys
from registry.signing.public_keys import read_public_keys, signer_of
from registry.storage import store
from tests.support.worlds.factories import make_admin
from tests.support.worlds.registry_samples import (
    ONNX,
    developer,
    draft_with,
    put,
    served_model,
    sha256,
    verified_bundle,
)

pytestmark = pytest.mark.django_db
#: Sorted by part, a/ comes before a-b/; sorted as text it would not.
FILES = {"artifact/a-b/one.json": b"{}", "artifact/a/two.json": b"[]", "tokenizer/vocab.txt": b"one two"}


@pytest.fixture
def dev() -> Actor:
    return developer()


@pytest.fixture
def model(dev: Actor) -> ServedModel:
    return served_model(dev)


@pytest.fixture
def release(dev: Actor, model: ServedModel) -> Release:
    draft = draft_with(dev, model)
    for path, data in FILES.items():
        put(dev, draft, path, data)
    return actions.seal(actor=dev, release=draft)


def signature_of(release: Release) -> Attestation:
    return release.attestations.get(predicate_type=oms.SIGNATURE_TYPE)


def fetched(release: Release, folder: Path) -> Path:
    """The release as `release fetch` leaves it."""
    for file in release.files.select_related("blob"):
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with store().open(file.blob_id) as stream:
            target.write_bytes(stream.read())
    (folder / oms.SIGNATURE_FILE).write_text(signature_of(release).bundle)
    return folder


def stock_verify(folder: Path, key: Path) -> None:
    verifying.Config().use_elliptic_key_verifier(public_key=key).verify(folder, folder / oms.SIGNATURE_FILE)


def test_the_stock_verifier_accepts_it_and_catches_a_flipped_byte_and_an_extra_file(
    release: Release, tmp_path: Path
) -> None:
    folder, key = fetched(release, tmp_path / "copy"), tmp_path / "key.pem"
    key.write_text(installation_keys.present_key(installation_keys.Use.RELEASES).pem)
    stock_verify(folder, key)
    graph = folder / "artifact" / "model.onnx"
    graph.write_bytes(bytes([ONNX[0] ^ 1]) + ONNX[1:])
    with pytest.raises(ValueError, match=r"Hash mismatch for 'artifact/model\.onnx'"):
        stock_verify(folder, key)
    graph.write_bytes(ONNX)
    (folder / "artifact" / "more.json").write_text("{}")
    with pytest.raises(ValueError, match="Extra files"):
        stock_verify(folder, key)
    (folder / "artifact" / "more.json").unlink()
    (folder / "tokenizer" / "vocab.txt").unlink()
    with pytest.raises(ValueError, match="Missing files"):
        stock_verify(folder, key)


def test_the_stock_verifier_refuses_another_key(release: Release, tmp_path: Path, settings: Any) -> None:
    folder, key = fetched(release, tmp_path / "copy"), tmp_path / "key.pem"
    settings.RELEASE_KEY_FILE = str(tmp_path / "other.pem")
    key.write_text(installation_keys.present_key(installation_keys.Use.RELEASES).pem)
    with pytest.raises(ValueError, match="Key mismatch"):
        stock_verify(folder, key)


def test_the_stock_signer_signs_the_same_subject(release: Release, tmp_path: Path) -> None:
    """Order and root digest are those of the standard's own program, also for a-b/ beside a/."""
    from model_signing import hashing

    folder = fetched(release, tmp_path / "sentiment")
    (folder / oms.SIGNATURE_FILE).unlink()
    theirs = hashing.Config().hash(folder)
    ours = json.loads(oms.read_bundle(signature_of(release).bundle).payload)
    named = [(item.identifier, item.digest.digest_hex) for item in theirs.resource_descriptors()]
    assert named == [(r["name"], r["digest"]) for r in ours["predicate"]["resources"]]


def test_a_seal_is_signed_with_the_whole_manifest(release: Release) -> None:
    made = signature_of(release)
    payload, key = verified_bundle(made.bundle)
    signed = oms.read_signed(payload)
    assert (signed.release, signed.digest) == ("sentiment/r1", release.digest)
    assert signed.manifest == json.loads(release.manifest) and signed.manifest["runtime"]["image"]
    assert made.key_id == key.key_id and made.about == release.digest
    assert Event.objects.get(verb="release.sealed").facts["signed_by"] == made.key_id


def test_a_seal_attests_where_the_release_comes_from(release: Release) -> None:
    made = release.attestations.get(predicate_type=PROVENANCE_TYPE)
    statement = oms.read_statement(verified_bundle(made.bundle)[0])
    assert statement["subject"] == [{"name": "sentiment/r1", "digest": {"sha256": str(release.digest)[7:]}}]
    built, run = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    assert built["externalParameters"]["pushedBy"] == "dev" and built["internalParameters"]["release"] == "r1"
    named = {one["name"]: one.get("digest") for one in built["resolvedDependencies"]}
    assert named["runtime"] == {"sha256": "a" * 64} and named["artifact/model.onnx"] == {"sha256": sha256(ONNX)}
    assert "digest" not in next(
        one for one in built["resolvedDependencies"] if one["name"] == "source"
    )  # a short commit
    assert run["metadata"]["startedOn"] < run["metadata"]["finishedOn"]


def test_a_seal_whose_key_is_unusable_does_not_happen(dev: Actor, model: ServedModel, settings: Any) -> None:
    draft = draft_with(dev, model)
    Path(settings.RELEASE_KEY_FILE).parent.mkdir(parents=True, exist_ok=True)
    Path(settings.RELEASE_KEY_FILE).write_text("not a key")
    with pytest.raises(Unavailable, match="SLUICEGATE_RELEASE_KEY_FILE"):
        actions.seal(actor=dev, release=draft)
    assert Release.objects.get().state == "draft" and not Attestation.objects.exists()
    settings.RELEASE_KEY_FILE = settings.SIGNING_KEY_FILE
    installation_keys.sign("sha256:" + "1" * 64)
    with pytest.raises(ImproperlyConfigured, match="not an ECDSA key"):
        installation_keys.present_key(installation_keys.Use.RELEASES)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE registry_attestation SET bundle = '{}'",
        "DELETE FROM registry_attestation",
        "TRUNCATE registry_attestation",
    ],
)
def test_an_attestation_stays(release: Release, sql: str) -> None:
    connection.check_constraints()  # else PostgreSQL itself refuses, for the rows of this very transaction
    with pytest.raises(IntegrityError, match="never"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)


def test_a_rotation_keeps_what_was_signed_and_signs_anew(dev: Actor, release: Release) -> None:
    admin, digest = make_admin("root"), "sha256:" + "3" * 64
    report = installation_keys.sign(digest)
    old = signature_of(release)
    for use in installation_keys.Use:
        before, after = actions.rotate_key(actor=admin, use=use)
        assert before is not None and before.key_id != after.key_id
    assert verified_bundle(old.bundle)[1].key_id == old.key_id
    assert installation_keys.verify(digest, *report) and installation_keys.sign(digest)[1] != report[1]
    new, is_new = actions.sign_release(actor=dev, release=release)
    assert is_new and new.key_id not in {old.key_id, report[1]} and release.attestations.count() == 4
    assert actions.sign_release(actor=dev, release=release) == (new, False)
    assert [known.is_current for known in installation_keys.known_keys()] == [True, True, False, False]
    rotated = Event.objects.filter(verb="key.rotated").order_by("seq")
    assert [event.facts["use"] for event in rotated] == ["reports", "releases"]
    assert Event.objects.filter(verb="release.signed").count() == 1


def test_a_key_that_is_no_longer_listed_vouches_for_nothing(release: Release, settings: Any) -> None:
    """A stolen key is taken out of the former keys: what it signed is no longer accepted."""
    old = signature_of(release)
    actions.rotate_key(actor=make_admin("root"), use=installation_keys.Use.RELEASES)
    Path(settings.FORMER_KEYS_FILE).write_text("")
    with pytest.raises(oms.BundleError, match="not known here"):
        verified_bundle(old.bundle)


def test_a_broken_list_of_former_keys_is_said(settings: Any, release: Release) -> None:
    Path(settings.FORMER_KEYS_FILE).write_text("hello")
    with pytest.raises(ImproperlyConfigured, match="SLUICEGATE_FORMER_KEYS_FILE"):
        installation_keys.known_keys()


def test_only_administrators_rotate_and_drafts_are_not_signed(dev: Actor, model: ServedModel) -> None:
    with pytest.raises(Refused):
        actions.rotate_key(actor=dev, use=installation_keys.Use.RELEASES)
    with pytest.raises(StateChanged, match="Seal it first"):
        actions.sign_release(actor=dev, release=draft_with(dev, model))


def test_a_changed_bundle_is_refused(release: Release) -> None:
    document = json.loads(signature_of(release).bundle)
    keys = read_public_keys(installation_keys.present_key(installation_keys.Use.RELEASES).pem)
    envelope = document["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"]).replace(b"sentiment/r1", b"sentiment/r2")
    envelope["payload"] = base64.b64encode(payload).decode()
    with pytest.raises(oms.BundleError, match="was changed"):
        signer_of(oms.read_bundle(json.dumps(document)), keys)
