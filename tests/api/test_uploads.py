"""Uploads in parts: the way through, who may know of them, and what becomes of those that nobody goes on with."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from ledger.models import Job
from registry import actions
from registry.models import Blob, ReleaseFile, Upload
from registry.storage import adapter
from tests.support.worlds.factories import make_user
from tests.support.worlds.registry_samples import ONNX, announced, release_yaml, served_model, sha256
from tests.support.worlds.upload_setup import DATA, PART, Api, dev, draft, leftovers, refused, small_parts, stored  # noqa: F401
from tests.support.worlds.uploading import begin, complete, pieces, put, send, sign, some_bytes, upload

pytestmark = pytest.mark.django_db


# --- the way through


@pytest.mark.takes("upload: open → verifying", "upload: verifying → verified")
def test_a_file_in_parts_is_verified_by_a_worker_and_sealed(dev: Any, run_jobs: Callable[[], int]) -> None:
    data, tokenizer = some_bytes(2 * PART, seed=3), b"{}"
    files = [
        {"path": "artifact/model.onnx", "sha256": sha256(ONNX), "size_bytes": len(ONNX)},
        {"path": "artifact/model.data", "sha256": sha256(data), "size_bytes": len(data)},
        {"path": "tokenizer/tokenizer.json", "sha256": sha256(tokenizer), "size_bytes": len(tokenizer)},
    ]
    release = draft(dev, files)
    made = begin(dev, release, "artifact/model.data", data)
    assert made.status_code == 201
    told = made.json()
    assert (told["exists"], told["state"], told["parts"], told["part_size"]) == (False, "open", 2, PART)
    assert told["missing"] == [1, 2] and told["received"] == []
    assert begin(dev, release, "artifact/model.data", data).json()["upload_id"] == told["upload_id"]

    send(dev, told, data, [2])
    seen = dev.get(told["links"]["self"]).json()
    assert seen["missing"] == [1] and [part["number"] for part in seen["received"]] == [2]
    assert seen["received"][0]["sha256"] == sha256(data[PART:])
    assert refused(complete(dev, told["upload_id"]), 422, "part_missing")["missing"] == [1]
    send(dev, told, data, [1])
    done = complete(dev, told["upload_id"])
    assert done.status_code == 202 and done.json()["state"] == "verifying"
    assert complete(dev, told["upload_id"]).json()["state"] == "verifying"

    for path, content in (("artifact/model.onnx", ONNX), ("tokenizer/tokenizer.json", tokenizer)):
        assert upload(dev, release, path, content)["state"] == "verified"  # one part, hashed as it was written
    seen = dev.get(f"/api/v1/releases/{release}").json()
    assert seen["missing"] == ["artifact/model.data"] == seen["verifying"]
    body = refused(dev.post(f"/api/v1/releases/{release}/seal"), 422, "unverified_files")
    assert [error["field"] for error in body["errors"]] == ["files.artifact/model.data"]

    assert run_jobs() == 1
    assert dev.get(told["links"]["self"]).json()["state"] == "verified"
    assert complete(dev, told["upload_id"]).json()["state"] == "verified"
    blob = Blob.objects.get(sha256=sha256(data))
    assert blob.store_key == f"{sha256(data)}/{told['upload_id'].replace('-', '')}"
    assert (blob.part_size, blob.part_sha256) == (PART, [sha256(piece) for piece in pieces(data, PART)])
    assert leftovers() == []


def test_a_file_of_one_part_is_signed_at_once(dev: Any) -> None:
    release = draft(dev)
    told = begin(dev, release, "tokenizer/vocab.txt", b"a\nb\n").json()
    [signed] = told["signed"]
    assert (signed["number"], signed["size_bytes"], signed["method"]) == (1, 4, "PUT")
    assert put(dev, signed, b"a\nb\n").json()["sha256"] == sha256(b"a\nb\n")
    assert complete(dev, told["upload_id"]).json()["state"] == "verified"
    assert ReleaseFile.objects.get().path == "tokenizer/vocab.txt"


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART, 5 * PART])
def test_every_size_arrives(dev: Any, run_jobs: Callable[[], int], size: int) -> None:
    data = some_bytes(size).replace(b"\0", b"x").replace(b"\x80", b"x")
    upload(dev, draft(dev), "artifact/weights.data", data)
    run_jobs()
    file = ReleaseFile.objects.select_related("blob").get()
    with adapter().open(file.blob.store_key) as content:
        assert content.read() == data
    assert stored() == {file.blob.store_key: size}


def test_what_the_team_has_is_not_sent_again(dev: Any, run_jobs: Callable[[], int]) -> None:
    upload(dev, draft(dev), "artifact/weights.data", DATA)
    run_jobs()
    other = draft(dev)
    told = begin(dev, other, "artifact/other.data", DATA)
    assert told.status_code == 200 and told.json()["exists"] is True
    assert told.json()["file"]["path"] == "artifact/other.data"
    assert Upload.objects.count() == 1 and len(stored()) == 1


def test_announced_part_digests_are_kept_and_checked(dev: Any) -> None:
    release, cut = draft(dev), pieces(DATA, PART)
    digests = [sha256(piece) for piece in cut]
    told = begin(dev, release, "artifact/weights.data", DATA, {"part_sha256": digests}).json()
    assert list(Upload.objects.get().parts.order_by("number").values_list("sha256", flat=True)) == digests
    body = refused(begin(dev, release, "artifact/w.data", DATA, {"part_sha256": digests[1:]}), 422, "invalid_file")
    assert body["errors"][0]["field"] == "part_sha256"
    send(dev, told, DATA)
    assert complete(dev, told["upload_id"]).status_code == 202


# --- the simple way stays, for small files


def test_the_simple_way_is_bounded_and_names_the_other(dev: Any, settings: Any) -> None:
    settings.MAX_SIMPLE_UPLOAD_BYTES = 10
    release = draft(dev)
    answer = dev.put(
        f"/api/v1/releases/{release}/files/artifact/model.onnx", b"x" * 11,
        content_type="application/octet-stream", headers={"X-Content-SHA256": sha256(b"x" * 11)},
    )  # fmt: skip
    assert "/api/v1/uploads" in refused(answer, 422, "too_large")["errors"][0]["fix"]


def test_bytes_that_came_whole_and_in_parts_are_one_blob(
    dev: Any, run_jobs: Callable[[], int], django_capture_on_commit_callbacks: Any
) -> None:
    release = draft(dev)
    dev.put(
        f"/api/v1/releases/{release}/files/artifact/one.data", DATA, content_type="application/octet-stream",
        headers={"X-Content-SHA256": sha256(DATA)},
    )  # fmt: skip
    upload_id = str(Upload.objects.create(
        release_id=release, path="artifact/two.data", sha256=sha256(DATA), size_bytes=len(DATA), part_size=PART,
        expires_at=timezone.now(),
    ).pk)  # fmt: skip
    send(dev, {"upload_id": upload_id, "part_size": PART}, DATA)
    complete(dev, upload_id)
    with django_capture_on_commit_callbacks(execute=True):
        actions.verify(Upload.objects.get(), lambda **_: True)
    assert Blob.objects.get().store_key == sha256(DATA) and ReleaseFile.objects.count() == 2
    assert stored() == {sha256(DATA): len(DATA)}
    assert Upload.objects.get().is_stored is False


# --- who may know what


def test_another_teams_digest_answers_as_absent(dev: Any, api: Api, run_jobs: Callable[[], int]) -> None:
    upload(dev, draft(dev), "artifact/weights.data", DATA)
    run_jobs()
    eve = make_user("eve", team="search", role=Role.MODEL_TEAM)
    served_model(actor_for(eve), slug="ranking", team="search")
    spy = api(eve)
    body = release_yaml({"model": "ranking"})
    release = spy.post("/api/v1/models/ranking/releases", body, format="json").json()["id"]
    known = begin(spy, release, "artifact/weights.data", DATA)
    unknown = begin(spy, release, "artifact/other.data", some_bytes(len(DATA), seed=5))
    assert known.status_code == unknown.status_code == 201

    def shape(answer: Any) -> dict[str, Any]:
        personal = ("upload_id", "path", "sha256", "expires_at", "links")
        return {name: value for name, value in answer.json().items() if name not in personal}

    assert shape(known) == shape(unknown)
    # Nor does saying its sha256 give the bytes: they must be sent, and are read.
    told = known.json()
    send(spy, told, some_bytes(len(DATA), seed=6))
    complete(spy, told["upload_id"])
    run_jobs()
    assert spy.get(told["links"]["self"]).json()["state"] == "quarantined"
    assert not ReleaseFile.objects.filter(release__model__slug="ranking").exists()
    # Who has the bytes gets the blob that is there, in the same words as anybody.
    assert upload(spy, release, "artifact/weights.data", DATA)["state"] == "verifying"
    run_jobs()
    assert ReleaseFile.objects.get(release__model__slug="ranking").blob_id == sha256(DATA)
    assert Blob.objects.count() == 1


def test_strangers_see_no_upload_and_readers_send_none(dev: Any, api: Api) -> None:
    told = begin(dev, draft(dev), "artifact/weights.data", DATA).json()
    here = told["links"]["self"]
    stranger, viewer = (
        api(make_user("eve", team="search")),
        api(make_user("vi", team="vision", role=Role.RELEASE_MANAGER)),
    )
    for client, status in ((stranger, 404), (viewer, 403), (api(), 401)):
        assert sign(client, told["upload_id"], {1: DATA[:PART]}).status_code == status
        assert complete(client, told["upload_id"]).status_code == status
        assert client.delete(here).status_code == status
    assert (stranger.get(here).status_code, viewer.get(here).status_code) == (404, 200)
    assert Upload.objects.get().state == "open"


# --- the sweep


def test_what_nobody_goes_on_with_is_swept(dev: Any) -> None:
    release = draft(dev)
    told = begin(dev, release, "artifact/weights.data", DATA).json()
    send(dev, told, DATA, [1])
    assert Job.objects.filter(kind=actions.SWEEP).count() == 1
    sweeper = Actor.system("sweep")
    assert actions.sweep_uploads(actor=sweeper) == 0
    Upload.objects.update(expires_at=timezone.now())
    assert actions.sweep_uploads(actor=sweeper) == 1
    assert leftovers() == [] and Upload.objects.get().state == "aborted"
    assert actions.sweep_uploads(actor=sweeper) == 0


def test_a_worker_that_gave_up_is_replaced_by_completing_again(dev: Any, run_jobs: Callable[[], int]) -> None:
    told = upload(dev, draft(dev), "artifact/weights.data", DATA)
    actions.note_failure(Upload.objects.get(), "the store was away")
    Job.objects.filter(kind=actions.VERIFY).delete()
    assert dev.get(told["links"]["self"]).json()["problem"] == "the store was away"
    complete(dev, told["upload_id"])
    run_jobs()
    assert Upload.objects.get().state == "verified" and Upload.objects.get().problem == ""


# --- going on


def test_a_push_goes_on_with_its_own_draft_and_nobody_elses(dev: Any, api: Api) -> None:
    files = announced(artifact__model_onnx=ONNX)
    body = release_yaml() | {"files": files, "resume": True}

    def post(client: Any, changes: Any = None) -> tuple[int, str]:
        answer = client.post("/api/v1/models/sentiment/releases", body | (changes or {}), format="json")
        return answer.status_code, answer.json()["id"]

    _, first = post(dev)
    assert post(dev) == (200, first)
    assert post(dev, {"resume": False})[0] == 201
    assert post(dev, {"files": announced(artifact__model_onnx=b"other")})[0] == 201
    assert post(dev, {"provenance": {"notes": "other"}})[0] == 201
    unclear = dev.post("/api/v1/models/sentiment/releases", body | {"resume": "yes"}, format="json")
    assert refused(unclear, 422, "invalid_spec")["errors"][0]["field"] == "resume"
    colleague = api(make_user("bo", team="vision", role=Role.CI))
    assert post(colleague)[0] == 201
    # what was sent for the draft is still there
    told = begin(dev, first, "artifact/model.onnx", ONNX).json()
    send(dev, told, ONNX)
    assert begin(dev, first, "artifact/model.onnx", ONNX).json()["missing"] == []
    assert complete(dev, told["upload_id"]).json()["state"] == "verified"
    assert begin(dev, first, "artifact/model.onnx", ONNX).status_code == 200
