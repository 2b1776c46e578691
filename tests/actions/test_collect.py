"""Unused bytes: planned, marked, deleted after their time, and told."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

import registry.tasks  # noqa: F401  # registers the jobs' handlers
from accounts.actions import begin_session, forget_expired_sessions
from accounts.core.access import Actor
from accounts.models import UserSession
from ledger.core.errors import Refused, StateChanged
from ledger.models import Event, Job
from registry import actions
from registry.actions.blobs import forget_unused
from registry.core.garbage_collection import Fate, Kind
from registry.models import Blob, Release, ServedModel, Tombstone, Upload
from registry.queries.gc_plan import present_plan
from registry.storage import FolderStore, adapter, store
from tests.support.worlds.collect_setup import OTHER, SHARED, admin, dev, fate, model, retired, sealed  # noqa: F401
from tests.support.worlds.factories import make_user
from tests.support.worlds.registry_samples import ONNX, announced, draft_with, put, release_yaml, sha256
from validators.models import GoldenSet

pytestmark = pytest.mark.django_db


def pass_time(settings: Any) -> None:
    """From now on marks are due at once. (A tombstone's own dates cannot be changed: the database refuses.)"""
    settings.UNDELETE_DAYS = 0


def test_a_plan_changes_nothing(dev: Actor, model: ServedModel) -> None:
    retired(dev, sealed(dev, model))
    before = (Event.objects.count(), Blob.objects.count(), Tombstone.objects.count())
    assert fate(sha256(ONNX)).fate is Fate.MARK
    assert (Event.objects.count(), Blob.objects.count(), Tombstone.objects.count()) == before


def test_only_administrators_collect(dev: Actor) -> None:
    with pytest.raises(Refused):
        actions.collect_unused(actor=dev)


def test_bytes_go_after_their_time_and_the_tombstone_tells_what_they_were(
    dev: Actor, admin: Actor, model: ServedModel, settings: Any
) -> None:
    one, two = sealed(dev, model), sealed(dev, model, OTHER)
    retired(dev, one)
    first = actions.collect_unused(actor=admin)
    assert (first.marked, first.deleted) == (1, 0) and store().exists(sha256(ONNX))
    assert fate(sha256(ONNX)).fate is Fate.WAIT
    assert actions.collect_unused(actor=admin).as_json() == {**first.as_json(), "marked": 0}
    Tombstone.objects.update(ended_at=timezone.now(), outcome="restored")
    pass_time(settings)
    actions.collect_unused(actor=admin)
    done = actions.collect_unused(actor=admin)
    assert (done.deleted, done.freed_bytes, done.left) == (1, len(ONNX), 0)
    assert not store().exists(sha256(ONNX)) and store().exists(sha256(SHARED))
    mark = Tombstone.objects.get(outcome="deleted")
    assert mark.evidence == {
        "releases": [{"release": "sentiment/r1", "digest": one.digest, "path": "artifact/model.onnx"}]
    }
    one.refresh_from_db()
    assert one.manifest and one.attestations.exists() and one.files.count() == 2
    assert fate(sha256(ONNX)).fate is Fate.GONE and fate(sha256(SHARED)).fate is Fate.KEEP
    assert Event.objects.filter(verb="registry.collected").last().facts["sha256s"] == [sha256(ONNX)]
    with pytest.raises(StateChanged, match="were deleted after it was retired"):
        actions.restore(actor=dev, release=one, expected_version=one.version, reason="oh")
    assert two.files.count() == 2


def test_the_same_bytes_uploaded_again_live_again(dev: Actor, admin: Actor, model: ServedModel, settings: Any) -> None:
    release = retired(dev, sealed(dev, model))
    pass_time(settings)
    actions.collect_unused(actor=admin)
    assert actions.collect_unused(actor=admin).deleted == 2
    again, _ = actions.create_draft(
        actor=dev,
        model=model,
        spec=release_yaml({"provenance.notes": "once more"}),
        files=announced(artifact__model_onnx=ONNX),
    )
    assert not again.files.exists()  # the bytes that the retired release had are no offer any more
    put(dev, again, "artifact/model.onnx", ONNX)
    new = actions.seal(actor=dev, release=again)
    assert store().exists(sha256(ONNX)) and Blob.objects.get(pk=sha256(ONNX)).collected_at is None
    assert "needed by sentiment/r2" in fate(sha256(ONNX)).reason
    # and the retired one can be had back as far as its bytes are there: the tokenizer's are not
    with pytest.raises(StateChanged, match="were deleted"):
        actions.restore(actor=dev, release=release, expected_version=release.version, reason="oh")
    assert new.number == 2


def test_marked_bytes_that_are_needed_again_lose_their_mark(dev: Actor, admin: Actor, model: ServedModel) -> None:
    retired(dev, sealed(dev, model))
    actions.collect_unused(actor=admin)
    sealed(dev, model, OTHER)  # with the same tokenizer
    assert fate(sha256(SHARED)).fate is Fate.RESTORE
    assert actions.collect_unused(actor=admin).restored == 1
    assert fate(sha256(SHARED)).fate is Fate.KEEP and fate(sha256(ONNX)).fate is Fate.WAIT


def test_a_golden_set_keeps_its_bytes(admin: Actor, model: ServedModel) -> None:
    blob = actions.put_blob(b"golden")
    Blob.objects.update(created_at=timezone.now() - timedelta(days=1))
    kept = GoldenSet.objects.create(model=model, digest="sha256:1", blob=blob, items=1)
    assert fate(blob.sha256).reason == f"needed by golden set {kept.pk}"
    assert actions.collect_unused(actor=admin).marked == 0


def test_bytes_that_no_row_names_are_explained_and_collected(admin: Actor, settings: Any) -> None:
    key, _ = adapter().put_stream(io.BytesIO(b"left by a worker that was killed"))
    assert fate(key).kind is Kind.BYTES and "lost a race or was cut off" in fate(key).reason
    pass_time(settings)
    assert actions.collect_unused(actor=admin).marked == 1
    assert actions.collect_unused(actor=admin).deleted == 1
    assert not adapter().exists(key) and not Blob.objects.exists()


def test_parts_of_uploads_are_explained_and_stay(dev: Actor, admin: Actor, model: ServedModel) -> None:
    draft, _ = actions.create_draft(actor=dev, model=model, spec=release_yaml(), files=None)
    size = 6 * 2**20
    begun = actions.begin_upload(actor=dev, release=draft, path="artifact/model.onnx", sha256="1" * 64, size_bytes=size)
    upload = Upload.objects.get()
    part = actions.sign_parts(actor=dev, upload=upload, wanted={1: "2" * 64})
    strange = adapter().begin(f"{'3' * 64}/{'4' * 32}", size, size)
    items = {item.subject: item for item in present_plan().of(Kind.BYTES, *Fate)}
    assert begun == upload and len(part) == 1
    assert "never knew" in items[strange.key].reason and items[strange.key].fate is Fate.KEEP
    assert f"parts of upload {upload.pk}, which is open" in items[upload.store_key].reason
    assert actions.collect_unused(actor=admin).marked == 0


def test_a_blob_that_nothing_names_goes_with_its_row(admin: Actor, settings: Any) -> None:
    blob = actions.put_blob(b"nobody wants me")
    assert "came in just now" in fate(blob.sha256).reason
    Blob.objects.update(created_at=timezone.now() - timedelta(days=1))
    pass_time(settings)
    actions.collect_unused(actor=admin)
    assert actions.collect_unused(actor=admin).deleted == 1
    assert not Blob.objects.exists() and Tombstone.objects.get().sha256 == blob.sha256


def test_abandoned_drafts_go_with_their_bytes(dev: Actor, admin: Actor, model: ServedModel, settings: Any) -> None:
    draft = draft_with(dev, model)
    Release.objects.filter(pk=draft.pk).update(created_at=timezone.now() - timedelta(days=8))
    assert "abandoned" in fate(sha256(ONNX)).reason
    assert actions.collect_unused(actor=admin).drafts == 1
    assert not Release.objects.exists()


def test_a_run_that_dies_is_finished_by_the_next(
    dev: Actor, admin: Actor, model: ServedModel, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies with the bytes gone and nothing written of it: the mark is still open, and the blob looks as if it were there."""
    retired(dev, sealed(dev, model))
    pass_time(settings)
    actions.collect_unused(actor=admin)
    real = FolderStore.delete

    def dies(self: FolderStore, key: str) -> None:
        real(self, key)
        raise SystemExit("killed")

    monkeypatch.setattr(FolderStore, "delete", dies)
    with pytest.raises(SystemExit), transaction.atomic():
        actions.collect_unused(actor=admin)
    assert Blob.objects.filter(collected_at=None).count() == 2
    assert Tombstone.objects.filter(ended_at=None).count() == 2
    monkeypatch.setattr(FolderStore, "delete", real)
    assert actions.collect_unused(actor=admin).deleted == 2
    assert not Blob.objects.filter(collected_at=None).exists()
    assert all(item.fate in (Fate.GONE, Fate.RETIRED, Fate.KEEP) for item in present_plan().items)


def test_a_run_that_breaks_off_tells_what_it_did(
    dev: Actor, admin: Actor, model: ServedModel, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    retired(dev, sealed(dev, model))
    pass_time(settings)
    actions.collect_unused(actor=admin)
    real, gone = FolderStore.delete, list[str]()

    def breaks(self: FolderStore, key: str) -> None:
        if gone:
            raise OSError("the disk is away")
        gone.append(key.partition("/")[0])
        real(self, key)

    monkeypatch.setattr(FolderStore, "delete", breaks)
    with pytest.raises(OSError, match="the disk is away"):
        actions.collect_unused(actor=admin)
    told = Event.objects.filter(verb="registry.collected").last().facts
    assert (told["deleted"], told["sha256s"]) == (1, gone)


def test_a_mark_whose_bytes_somebody_else_deleted_ends(dev: Actor, admin: Actor, model: ServedModel) -> None:
    blob = actions.put_blob(b"nobody wants me")
    Blob.objects.update(created_at=timezone.now() - timedelta(days=1))
    actions.collect_unused(actor=admin)
    forget_unused([blob.sha256])  # as a draft does that is discarded
    actions.collect_unused(actor=admin)
    assert Tombstone.objects.get().outcome == "deleted"


def test_a_run_takes_so_many_and_says_what_is_left(dev: Actor, admin: Actor, model: ServedModel) -> None:
    retired(dev, sealed(dev, model))
    first = actions.collect_unused(actor=admin, most=1)
    assert (first.marked, first.left) == (1, 1)
    assert actions.collect_unused(actor=admin, most=1).left == 0


def test_the_worker_keeps_house(
    dev: Actor, model: ServedModel, settings: Any, run_jobs: Callable[[], int], django_capture_on_commit_callbacks: Any
) -> None:
    """Drafts go by themselves; bytes only where the settings say so. One row of work waits for the next time."""
    draft = draft_with(dev, model)
    Release.objects.filter(pk=draft.pk).update(created_at=timezone.now() - timedelta(days=8))
    retired(dev, sealed(dev, model, OTHER))
    jobs = Job.objects.filter(kind=actions.HOUSEKEEPING)
    assert jobs.count() == 1 and jobs.get().due_at > timezone.now() + timedelta(hours=5)
    settings.UNDELETE_DAYS = 0
    for collects, left in ((False, 2), (True, 2), (True, 0)):
        settings.GC_ENABLED = collects
        jobs.update(due_at=timezone.now(), attempts=0)
        with django_capture_on_commit_callbacks(execute=True):
            assert run_jobs() == 1
        assert Blob.objects.filter(collected_at=None).count() == left
        assert (jobs.get().state, jobs.get().attempts) == ("queued", 0)
    assert not Release.objects.filter(state="draft").exists()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE registry_tombstone SET due_at = now()",
        "UPDATE registry_tombstone SET sha256 = ''",
        "DELETE FROM registry_tombstone",
        "TRUNCATE registry_tombstone",
    ],
)
def test_a_tombstone_stays(dev: Actor, admin: Actor, model: ServedModel, sql: str) -> None:
    retired(dev, sealed(dev, model))
    actions.collect_unused(actor=admin)
    connection.check_constraints()
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)


def test_the_worker_forgets_expired_sessions(dev: Actor, model: ServedModel, run_jobs: Callable[[], int]) -> None:
    draft_with(dev, model)
    now = timezone.now()
    Session.objects.bulk_create(
        Session(session_key=f"s{i}", session_data="", expire_date=now + timedelta(hours=1 if i == 0 else -1))
        for i in range(4)
    )
    for key in ("s0", "s1"):
        begin_session(user=make_user(key), key=key, address="", user_agent="")
    assert forget_expired_sessions(most=1) == 1 and Session.objects.count() == 3
    Job.objects.filter(kind=actions.HOUSEKEEPING).update(due_at=now, attempts=0)
    assert run_jobs() == 1
    assert [one.pk for one in Session.objects.all()] == ["s0"] and UserSession.objects.count() == 1
