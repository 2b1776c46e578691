"""What is sealed is final; waivers, signatures and contracts."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from ledger.core.errors import Invalid, NotFound, Refused, StateChanged
from registry import actions, queries
from registry.actions import inspections
from registry.actions.blobs import lock_blob
from registry.core.lifecycle import ReleaseState
from registry.models import Blob, Release, ReleaseFile, ServedModel, Waiver
from registry.signing import installation_keys
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import (
    CONTRACT,
    developer,
    draft_with,
    person,
    put,
    release_yaml,
    served_model,
    sha256,
)
from tests.support.worlds.registry_setup import dev, model, sealed, stored, verbs  # noqa: F401

pytestmark = pytest.mark.django_db


# --- sealed is final, also for the database


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE registry_release SET manifest = '{}'",
        "UPDATE registry_release SET digest = 'sha256:0'",
        "UPDATE registry_release SET number = 9",
        "UPDATE registry_release SET spec = '{}'",
        "UPDATE registry_release SET expected_files = '[1]'",
        "UPDATE registry_release SET is_code_bearing = true",
        "UPDATE registry_release SET author_id = NULL",
        "UPDATE registry_release SET state = 'draft', number = NULL, digest = NULL",
        "DELETE FROM registry_release",
        "UPDATE registry_releasefile SET path = 'artifact/other.onnx'",
        "UPDATE registry_releasefile SET role = 'code'",
        "DELETE FROM registry_releasefile",
        "INSERT INTO registry_releasefile (release_id, path, role, blob_id) "
        "SELECT release_id, 'artifact/x.json', role, blob_id FROM registry_releasefile",
        "UPDATE registry_blob SET size_bytes = size_bytes + 1",
        "UPDATE registry_blob SET sha256 = repeat('0', 64)",
    ],
)
def test_raw_sql_cannot_change_what_is_sealed(dev: Actor, model: ServedModel, sql: str) -> None:
    sealed(dev, model)
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.mark.parametrize(
    "tables", ["registry_release CASCADE", "registry_releasefile", "registry_blob CASCADE", "registry_waiver"]
)
def test_no_table_of_sealed_things_can_be_emptied(dev: Actor, model: ServedModel, tables: str) -> None:
    sealed(dev, model)
    connection.check_constraints()  # else PostgreSQL itself refuses, for the rows of this very transaction
    with pytest.raises(IntegrityError, match="never deleted"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {tables}")


def test_the_orm_cannot_change_what_is_sealed(dev: Actor, model: ServedModel) -> None:
    release = sealed(dev, model)
    file = release.files.get()
    for attempt in (
        lambda: Release.objects.filter(pk=release.pk).update(manifest="{}"),
        lambda: Release.objects.bulk_update([Release(pk=release.pk, digest="sha256:1")], ["digest"]),
        lambda: Release.objects.get().delete(),
        lambda: Release.objects.all()._raw_delete("default"),
        lambda: ReleaseFile.objects.update(path="artifact/x.onnx"),
        lambda: ReleaseFile.objects.all().delete(),
        lambda: ReleaseFile.objects.create(release=release, path="artifact/b.json", role="artifact", blob=file.blob),
        lambda: Blob.objects.update(size_bytes=0),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            attempt()
    release.author_id = None
    with pytest.raises(IntegrityError), transaction.atomic():
        release.save()


def test_a_sealed_release_may_only_retire_and_come_back_as_it_was(dev: Actor, model: ServedModel) -> None:
    release = sealed(dev, model)
    Release.objects.filter(pk=release.pk).update(state=ReleaseState.RETIRED, version=3)
    with pytest.raises(IntegrityError), transaction.atomic():
        Release.objects.filter(pk=release.pk).update(state=ReleaseState.DRAFT)
    with pytest.raises(IntegrityError), transaction.atomic():
        Release.objects.filter(pk=release.pk).update(manifest="{}")
    draft = draft_with(dev, model, onnx_file("x"))
    with pytest.raises(IntegrityError), transaction.atomic():
        Release.objects.filter(pk=draft.pk).update(
            state=ReleaseState.RETIRED, number=8, digest="sha256:8", sealed_at=timezone.now()
        )


@pytest.mark.django_db(transaction=True)
def test_files_are_read_before_the_transaction_of_the_seal_and_not_again_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones take longer than the database lets a transaction stand still, and whoever else needs the draft waits."""
    dev = developer()
    draft, read = draft_with(dev, served_model(dev)), list[bool]()
    real = inspections.read_header

    def watched(*args: Any) -> Any:
        read.append(connection.in_atomic_block)
        return real(*args)

    monkeypatch.setattr(inspections, "read_header", watched)
    assert actions.seal(actor=dev, release=draft).state == "sealed"
    assert read and not any(read)


# --- waivers


def code_release(dev: Actor, model: ServedModel) -> Release:
    draft, _ = actions.create_draft(actor=dev, model=model, spec=release_yaml({"runtime.backend": "python"}))
    put(dev, draft, "artifact/model.py", b"print('hello')")
    return actions.seal(actor=dev, release=draft)


def test_a_release_manager_waives_code_and_never_the_author(dev: Actor, model: ServedModel) -> None:
    release, manager = code_release(dev, model), actor_for(person("rm", Role.RELEASE_MANAGER))
    assert release.is_code_bearing and not queries.has_code_waiver(release)
    with pytest.raises(Refused, match="release_manager"):
        actions.grant_waiver(actor=dev, release=release, reason="fine")
    with pytest.raises(Invalid, match="says why"):
        actions.grant_waiver(actor=manager, release=release, reason="  ")
    waiver = actions.grant_waiver(actor=manager, release=release, reason="Read by two people.")
    assert waiver.manifest_digest == release.digest and queries.has_code_waiver(release)
    assert verbs(release.pk)[-1] == "release.waived"
    assert actions.grant_waiver(actor=manager, release=release, reason="Read by two people. ") == waiver
    assert Waiver.objects.count() == 1 and verbs(release.pk).count("release.waived") == 1
    for attempt in (lambda: Waiver.objects.update(reason="other"), lambda: Waiver.objects.all().delete()):
        with pytest.raises(IntegrityError), transaction.atomic():
            attempt()


def test_an_author_who_is_also_administrator_cannot_waive(dev: Actor, model: ServedModel) -> None:
    release = code_release(dev, model)
    with pytest.raises(Refused, match="Ask another release manager"):
        actions.grant_waiver(actor=Actor(dev.name, user_id=dev.user_id, is_admin=True), release=release, reason="mine")


def test_only_sealed_code_needs_a_waiver(dev: Actor, model: ServedModel) -> None:
    manager = actor_for(person("rm", Role.RELEASE_MANAGER))
    with pytest.raises(Invalid, match="carries no code"):
        actions.grant_waiver(actor=manager, release=sealed(dev, model), reason="why")
    with pytest.raises(StateChanged, match="Seal it first"):
        actions.grant_waiver(actor=manager, release=draft_with(dev, model, b"2"), reason="why")


# --- blobs and signatures


def test_a_blob_is_stored_once() -> None:
    first, second = actions.put_blob(b"golden"), actions.put_blob(b"golden")
    assert first == second and first.size_bytes == 6 and stored() == [sha256(b"golden")]


def test_a_signature_holds_for_its_digest_and_key_only(settings: Any, tmp_path: Path) -> None:
    digest = "sha256:" + "1" * 64
    signature, key_id = installation_keys.sign(digest)
    key = Path(settings.SIGNING_KEY_FILE)
    assert (
        key.stat().st_mode & 0o777 == 0o600
        and "PUBLIC KEY" in installation_keys.present_key(installation_keys.Use.REPORTS).pem
    )
    assert installation_keys.verify(digest, signature, key_id) and installation_keys.sign(digest)[1] == key_id
    assert not installation_keys.verify("sha256:" + "2" * 64, signature, key_id)
    assert not installation_keys.verify(digest, "AAAA", key_id) and not installation_keys.verify(
        digest, "not base64!", key_id
    )
    settings.SIGNING_KEY_FILE = str(tmp_path / "other.pem")
    assert not installation_keys.verify(digest, signature, key_id) and not installation_keys.verify(
        digest, signature, installation_keys.sign(digest)[1]
    )


def test_a_contract_is_what_a_model_promises(dev: Actor, model: ServedModel) -> None:
    assert model.contract == CONTRACT
    for name in ("r2", "2", "latest", "r0", "draft", "r1; drop"):
        with pytest.raises(NotFound, match="no release"):
            queries.get_release("sentiment", name)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(600)  # ten thousand rows, and a manifest of them
def test_a_draft_of_ten_thousand_held_files_takes_no_more_locks_than_there_is_room_for() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        for number in range(10_000):
            lock_blob(hashlib.sha256(str(number).encode()).hexdigest())
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert cursor.fetchone()[0] <= 1024
