"""Collection beside seals, restores and routes, in real transactions."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

import registry.tasks  # noqa: F401  # registers the jobs' handlers
from accounts.core.access import Actor
from ledger.core.errors import StateChanged
from registry import actions
from registry.actions.blobs import lock_blob
from registry.models import Blob, Release, ReleaseFile, ServedModel, Tombstone
from registry.storage import store
from tests.support.worlds.collect_setup import SHARED, _route, admin, dev, model, retired, sealed  # noqa: F401
from tests.support.worlds.factories import make_admin
from tests.support.worlds.registry_samples import ONNX, announced, developer, put, release_yaml, served_model, sha256

pytestmark = pytest.mark.django_db


def due_mark(dev: Actor, admin: Actor, model: ServedModel, settings: Any) -> Release:
    """A retired release whose bytes are marked and due."""
    release = retired(dev, sealed(dev, model))
    settings.UNDELETE_DAYS = 0
    assert actions.collect_unused(actor=admin).marked == 2
    return release


def beside(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """The work, begun in a thread and connection of its own, and where its outcome will be."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:  # told to the test
            outcome.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def until_it_waits(thread: threading.Thread) -> None:
    """Until the thread's session waits for a lock of ours, or has ended without."""
    deadline = time.monotonic() + 60
    while thread.is_alive():
        with connection.cursor() as cursor:
            cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
            if cursor.fetchone()[0]:
                return
        assert time.monotonic() < deadline, "it neither waits nor ends"
        time.sleep(0.01)


@pytest.mark.django_db(transaction=True)
def test_a_release_sealed_while_collection_waits_keeps_its_bytes(settings: Any) -> None:
    """A draft takes the marked bytes over and seals; collection, which had already planned to delete them, asks again."""
    dev, admin = developer(), make_admin("root")
    model = served_model(dev)
    due_mark(dev, admin, model, settings)
    files = announced(artifact__model_onnx=ONNX, tokenizer__tokenizer_json=SHARED)
    with transaction.atomic():
        draft, _ = actions.create_draft(
            actor=dev, model=model, spec=release_yaml({"provenance.notes": "again"}), files=files
        )
        assert draft.files.count() == 2
        # not committed: the plan that the other transaction makes cannot see it, and its deletions wait for our locks
        thread, outcome = beside(lambda: actions.collect_unused(actor=admin))
        until_it_waits(thread)
        assert thread.is_alive() or outcome[0].deleted == 0
    thread.join(120)
    release = actions.seal(actor=dev, release=draft)
    assert outcome[0].deleted == 0 and release.number == 2
    for file in ReleaseFile.objects.filter(release=release):
        with store().open(file.blob_id) as stream:
            assert sha256(stream.read()) == file.blob_id


@pytest.mark.django_db(transaction=True)
def test_a_release_restored_while_collection_waits_keeps_its_bytes(settings: Any) -> None:
    dev, admin = developer(), make_admin("root")
    release = due_mark(dev, admin, served_model(dev), settings)
    with transaction.atomic():
        actions.restore(actor=dev, release=release, expected_version=release.version, reason="wanted")
        thread, outcome = beside(lambda: actions.collect_unused(actor=admin))
        until_it_waits(thread)
        assert thread.is_alive() or outcome[0].deleted == 0
    thread.join(120)
    assert outcome[0].deleted == 0 and store().exists(sha256(ONNX)) and store().exists(sha256(SHARED))
    assert Release.objects.get(pk=release.pk).state == "sealed"


@pytest.mark.django_db(transaction=True)
def test_a_draft_is_discarded_though_somebody_holds_its_bytes() -> None:
    """They wait for the collection, and who discarded it is told that it is done."""
    dev = developer()
    model = served_model(dev)
    draft, _ = actions.create_draft(
        actor=dev, model=model, spec=release_yaml(), files=announced(artifact__model_onnx=ONNX)
    )
    put(dev, draft, "artifact/model.onnx", ONNX)

    def discard() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
        actions.discard_draft(actor=dev, release=draft, expected_version=Release.objects.get().version)

    with transaction.atomic():
        lock_blob(sha256(ONNX))
        thread, outcome = beside(discard)
        thread.join(120)
    assert outcome == [None] and not Release.objects.exists() and Blob.objects.get().pk == sha256(ONNX)
    Blob.objects.update(created_at=timezone.now() - timedelta(days=1))
    assert actions.collect_unused(actor=make_admin("root")).marked == 1


@pytest.mark.django_db(transaction=True)
def test_two_collections_at_once_delete_each_blob_once(settings: Any) -> None:
    dev, admin = developer(), make_admin("root")
    due_mark(dev, admin, served_model(dev), settings)
    runs = [beside(lambda: actions.collect_unused(actor=admin)) for _ in range(3)]
    for thread, _ in runs:
        thread.join(120)
    assert sum(outcome[0].deleted for _, outcome in runs) == 2
    assert set(Tombstone.objects.values_list("outcome", flat=True)) == {"deleted"}


@pytest.mark.django_db(transaction=True)
def test_a_release_is_not_retired_beside_a_route_that_begins_to_name_it() -> None:
    dev = developer()
    release = sealed(dev, served_model(dev))
    with transaction.atomic():
        _route(release, release)
        thread, outcome = beside(lambda: retired(dev, release))
        until_it_waits(thread)
        assert thread.is_alive()  # it waits for the route's transaction
    thread.join(120)
    assert isinstance(outcome[0], StateChanged) and "stable in production" in outcome[0].message
