"""Retiring, restoring and collecting: what may go, what must stay, and that nobody loses bytes in a race."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

import registry.tasks  # noqa: F401  # registers the jobs' handlers
from accounts.core.access import Actor, Role
from ledger.core.errors import DomainError, Refused, Stale, StateChanged
from ledger.models import Event, Job
from registry import actions
from registry.actions.blobs import forget_unused
from registry.core.garbage_collection import Fate, Item, Kind
from registry.models import Alias, AliasEvent, Blob, Release, ReleaseFile, ServedModel, Tombstone, Upload
from registry.queries.gc_plan import present_plan
from registry.storage import FolderStore, adapter, store
from rollouts.core.lifecycle import RolloutState
from rollouts.models import Rollout
from serving.core.lifecycle import DeploymentState
from serving.models import Route
from tests.factories import make_actor, make_admin, make_deployment, make_environment
from tests.model_files import onnx_file
from tests.registry_samples import ONNX, announced, developer, draft_with, put, release_yaml, served_model, sha256
from validators.models import GateRun, GoldenSet

pytestmark = pytest.mark.django_db
SHARED, OTHER = b'{"shared": true}', onnx_file("other")


@pytest.fixture
def dev() -> Actor:
    return developer()


@pytest.fixture
def admin() -> Actor:
    return make_admin("root")


@pytest.fixture
def model(dev: Actor) -> ServedModel:
    return served_model(dev)


def sealed(dev: Actor, model: ServedModel, data: bytes = ONNX) -> Release:
    return actions.seal(actor=dev, release=draft_with(dev, model, data, tokenizer__tokenizer_json=SHARED))


def retired(dev: Actor, release: Release) -> Release:
    return actions.retire(actor=dev, release=release, expected_version=release.version, reason="superseded")


def fate(subject: str) -> Item:
    return next(item for item in present_plan().items if item.subject == subject)


def pass_time(settings: Any) -> None:
    """From now on marks are due at once. (A tombstone's own dates cannot be changed: the database refuses.)"""
    settings.UNDELETE_DAYS = 0


# --- retiring


def test_retiring_needs_a_reason_a_role_and_the_version(dev: Actor, model: ServedModel) -> None:
    release = sealed(dev, model)
    with pytest.raises(DomainError, match="told for good"):
        actions.retire(actor=dev, release=release, expected_version=release.version, reason=" ")
    with pytest.raises(Stale):
        actions.retire(actor=dev, release=release, expected_version=99, reason="old")
    with pytest.raises(Refused):
        actions.retire(
            actor=make_actor(Role.CI, team="vision"), release=release, expected_version=release.version, reason="old"
        )
    done = retired(dev, release)
    assert (done.state, done.version) == ("retired", release.version + 1) and done.retired_at is not None
    event = Event.objects.get(verb="release.retired")
    assert (event.from_state, event.to_state, event.reason) == ("sealed", "retired", "superseded")
    with pytest.raises(StateChanged, match="only a sealed release"):
        retired(dev, done)
    with pytest.raises(StateChanged, match="only a sealed release"):
        retired(dev, draft_with(dev, model, OTHER))


def _route(release: Release, other: Release) -> str:
    Route.objects.create(
        environment=make_environment("production"), model=release.model, stable=release, changed_at=timezone.now()
    )
    return "stable in production"


def _candidate(release: Release, other: Release) -> str:
    where = make_environment("production")
    Route.objects.create(
        environment=where, model=release.model, stable=other, candidate=release, changed_at=timezone.now()
    )
    return "candidate in production"


def _deployment(release: Release, other: Release) -> str:
    make_deployment(release, make_environment("staging"), state=DeploymentState.FAILED)
    return "deployed in staging (failed)"


def _rollout(release: Release, other: Release, **columns: Any) -> Rollout:
    return Rollout.objects.create(
        model=release.model, environment=make_environment("production"), policy={}, policy_digest="", **columns
    )


def _live_rollout(release: Release, other: Release) -> str:
    _rollout(release, other, candidate=release, stable=other, state=RolloutState.SHIFTING)
    return "candidate of rollout"


def _undo_window(release: Release, other: Release) -> str:
    _rollout(release, other, candidate=other, stable=release, state=RolloutState.PAUSED)
    return "would go back to it"


def _warm(release: Release, other: Release) -> str:
    undo_until = timezone.now() + timedelta(hours=1)
    _rollout(release, other, candidate=other, stable=release, state=RolloutState.PROMOTED, undo_until=undo_until)
    return "kept warm in production"


def _gates(release: Release, other: Release) -> str:
    where = make_environment("staging")
    GateRun.objects.create(release=release, environment=where, policy={}, policy_digest="", requested_by="dev")
    return "its gates run"


def _alias(release: Release, other: Release) -> str:
    point(release)
    return "alias sentiment/champion"


def point(release: Release | None, model: ServedModel | None = None) -> Alias:
    """An alias as its verb writes it."""
    model = release.model if release else model
    alias = Alias.objects.create(model=model, name="champion", release=release, changed_at=timezone.now())
    AliasEvent.objects.create(alias=alias, version=1, to_release=release, actor="dev", at=timezone.now())
    return alias


HOLDS = [_route, _candidate, _deployment, _live_rollout, _undo_window, _warm, _gates, _alias]


@pytest.mark.parametrize("use", HOLDS)
def test_a_release_in_use_is_not_retired(
    dev: Actor, model: ServedModel, use: Callable[[Release, Release], str]
) -> None:
    release, other = sealed(dev, model), sealed(dev, model, OTHER)
    said = use(release, other)
    with pytest.raises(StateChanged, match=r"sentiment r1 is in use") as refused:
        retired(dev, release)
    assert any(said in usage for usage in refused.value.facts["used_by"])
    assert said in fate("sentiment/r1").reason


def test_what_is_over_holds_nothing(dev: Actor, model: ServedModel) -> None:
    release, other = sealed(dev, model), sealed(dev, model, OTHER)
    make_deployment(release, make_environment("staging"), state=DeploymentState.GONE)
    over = timezone.now() - timedelta(seconds=1)
    _rollout(release, other, candidate=other, stable=release, state=RolloutState.PROMOTED, undo_until=over)
    assert retired(dev, release).state == "retired"


@pytest.mark.parametrize("use", [_route, _candidate, _deployment, _live_rollout, _undo_window, _alias])
def test_nothing_begins_to_use_a_retired_release(
    dev: Actor, model: ServedModel, use: Callable[[Release, Release], str]
) -> None:
    """The database refuses it, whoever writes."""
    release, other = retired(dev, sealed(dev, model)), sealed(dev, model, OTHER)
    with pytest.raises(IntegrityError, match="is retired"), transaction.atomic():
        use(release, other)


@pytest.mark.takes("release: draft → sealed", "release: sealed → retired", "release: retired → sealed")
def test_a_retired_release_is_restored_as_it_was(dev: Actor, admin: Actor, model: ServedModel) -> None:
    release = sealed(dev, model)
    gone = retired(dev, release)
    assert actions.collect_unused(actor=admin).marked == 2
    back = actions.restore(actor=dev, release=gone, expected_version=gone.version, reason="still wanted")
    assert (back.state, back.digest, back.manifest) == ("sealed", release.digest, release.manifest)
    assert back.retired_at is None and set(Tombstone.objects.values_list("outcome", flat=True)) == {"restored"}
    assert Event.objects.get(verb="release.restored").reason == "still wanted"
    with pytest.raises(StateChanged, match="nothing to take back"):
        actions.restore(actor=dev, release=back, expected_version=back.version, reason="again")


# --- collecting


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


# --- races: two real transactions


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
