"""Bytes that changed in the store: found, named, kept out of releases, and healed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from accounts.actions import actor_for
from accounts.core.access import Actor
from ledger.core.errors import Invalid, Refused, StateChanged
from ledger.models import Event
from registry import actions
from registry.models import Blob, Release, ReleaseFile
from registry.storage import store
from tests.support.worlds.registry_samples import draft_with, person, put, served_model, sha256
from tests.support.worlds.uploading import begin, complete, send, some_bytes

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("recheck")
DATA = some_bytes(5000)


@pytest.fixture
def client(api: Callable[..., Any], settings: Any) -> Any:
    settings.UPLOAD_PART_BYTES = 1000
    user = person("dev")
    served_model(actor_for(user))
    return api(user)


@pytest.fixture
def draft(client: Any) -> Release:
    """A draft with a graph and weights, both whole."""
    dev = actor_for(person_named("dev"))
    return draft_with(dev, served_model(dev), artifact__weights_data=DATA)


def person_named(name: str) -> Any:
    from accounts.models import User

    return User.objects.get(username=name)


def stored_file(data: bytes) -> Path:
    return store().path(sha256(data))


def overwrite(data: bytes, with_data: bytes) -> None:
    file = stored_file(data)
    file.chmod(0o600)
    file.write_bytes(with_data)


def test_whole_bytes_stay_as_they_are(draft: Release) -> None:
    assert actions.recheck_blob(actor=SYSTEM, blob=Blob.objects.get(pk=sha256(DATA))) == ""
    call_command("recheck_blobs")
    assert set(Blob.objects.values_list("state", flat=True)) == {"verified"}


@pytest.mark.takes("blob: verified → quarantined")
@pytest.mark.parametrize("damage", ["flipped", "shorter", "gone"])
def test_damage_is_found_and_no_release_takes_it(draft: Release, damage: str, capsys: Any) -> None:
    if damage == "gone":
        stored_file(DATA).unlink()
    else:
        overwrite(DATA, bytes([DATA[0] ^ 1]) + DATA[1:] if damage == "flipped" else DATA[:-1])
    with pytest.raises(CommandError):
        call_command("recheck_blobs")
    assert f"{sha256(DATA)}: The store" in capsys.readouterr().out
    blob = Blob.objects.get(pk=sha256(DATA))
    assert blob.state == "quarantined" and "upload the file again" in blob.problem
    assert Event.objects.filter(verb="blob.quarantined", subject_id=sha256(DATA)).count() == 1
    with pytest.raises(Invalid) as caught:
        actions.seal(actor=actor_for(person_named("dev")), release=draft)
    assert [error["field"] for error in caught.value.facts["errors"]] == ["files.artifact/weights.data"]
    actions.recheck_blob(actor=SYSTEM, blob=blob)
    assert Event.objects.filter(verb="blob.quarantined").count() == 1  # said once


def test_the_right_bytes_uploaded_again_heal_it(
    draft: Release, client: Any, run_jobs: Callable[[], int], django_capture_on_commit_callbacks: Any
) -> None:
    overwrite(DATA, b"otherwise")
    actions.recheck_blob(actor=SYSTEM, blob=Blob.objects.get(pk=sha256(DATA)))
    with pytest.raises(StateChanged, match="in parts"):  # the simple way would find the damaged file there
        put(actor_for(person_named("dev")), draft, "artifact/again.data", DATA)
    told = begin(client, str(draft.pk), "artifact/again.data", DATA)
    assert told.status_code == 201, "damaged bytes are not there"
    send(client, told.json(), DATA)
    with django_capture_on_commit_callbacks(execute=True):
        complete(client, told.json()["upload_id"])
        run_jobs()
    blob = Blob.objects.get(pk=sha256(DATA))
    assert (blob.state, blob.problem, blob.store_key.count("/")) == ("verified", "", 1)
    assert stored_file(DATA).read_bytes() == DATA
    assert [key for key, _ in store().keys.keys() if key.startswith(sha256(DATA))] == [blob.store_key]  # noqa: SIM118
    assert ReleaseFile.objects.filter(blob=blob).count() == 2  # the file that had it is whole again too
    assert actions.seal(actor=actor_for(person_named("dev")), release=draft).state == "sealed"


@pytest.mark.takes("blob: quarantined → verified")
def test_bytes_restored_from_a_copy_count_again(draft: Release) -> None:
    overwrite(DATA, b"otherwise")
    actions.recheck_blob(actor=SYSTEM, blob=Blob.objects.get(pk=sha256(DATA)))
    overwrite(DATA, DATA)
    assert actions.recheck_blob(actor=SYSTEM, blob=Blob.objects.get(pk=sha256(DATA))) == ""
    assert Blob.objects.get(pk=sha256(DATA)).state == "verified"


def test_only_administrators_have_it_read(draft: Release) -> None:
    with pytest.raises(Refused):
        actions.recheck_blob(actor=actor_for(person_named("dev")), blob=Blob.objects.get(pk=sha256(DATA)))
