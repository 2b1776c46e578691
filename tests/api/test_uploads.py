"""Uploads in parts over REST, into a folder: the way through, every refusal, and nothing told to those who may not know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import pytest
from django.conf import settings
from django.db import connections
from django.utils import timezone

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from accounts.actions import actor_for
from accounts.api.credentials import Unknown
from accounts.core.access import Actor, Role
from ledger.models import Event, Job
from registry import actions
from registry.core.uploads import PartTicket
from registry.models import Blob, Release, ReleaseFile, Upload
from registry.storage import adapter
from sluicegate.body_middleware import BodyMiddleware
from sluicegate.upload_middleware import UploadMiddleware
from tests.factories import make_user
from tests.registry_samples import ONNX, announced, person, release_yaml, served_model, sha256
from tests.uploading import begin, complete, pieces, put, send, sign, some_bytes, upload

pytestmark = pytest.mark.django_db
Api = Callable[..., Any]
PART = 1000
DATA = some_bytes(3 * PART + 17)


@pytest.fixture(autouse=True)
def small_parts(settings: Any) -> None:
    settings.UPLOAD_PART_BYTES = PART


@pytest.fixture
def dev(api: Api) -> Any:
    user = person("dev")
    served_model(actor_for(user))
    return api(user)


def draft(client: Any, files: Any = None) -> str:
    body = release_yaml() | ({"files": files} if files is not None else {})
    answer = client.post("/api/v1/models/sentiment/releases", body, format="json")
    assert answer.status_code == 201, answer.json()
    return str(answer.json()["id"])


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    assert body["detail"]
    return body


def stored() -> dict[str, int]:
    return dict(adapter().keys())


def leftovers() -> list[str]:
    return [path.name for path in (Path(settings.BLOB_STORE) / "incoming").glob("*")]


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


# --- what is not so


def test_bytes_that_are_not_the_announced_ones_are_quarantined(dev: Any, run_jobs: Callable[[], int]) -> None:
    release, other = draft(dev), some_bytes(len(DATA), seed=9)
    told = begin(dev, release, "artifact/weights.data", DATA).json()
    send(dev, told, other)
    assert complete(dev, told["upload_id"]).status_code == 202
    run_jobs()
    seen = dev.get(told["links"]["self"]).json()
    assert seen["state"] == "quarantined" and sha256(other) in seen["problem"] and sha256(DATA) in seen["problem"]
    assert not Blob.objects.exists() and not ReleaseFile.objects.exists()
    assert Event.objects.get(verb="upload.quarantined").facts["path"] == "artifact/weights.data"
    body = refused(dev.post(f"/api/v1/releases/{release}/seal"), 422, "unverified_files")
    assert sha256(other) in body["errors"][0]["message"]
    assert dev.get(f"/api/v1/releases/{release}").json()["quarantined"][0]["path"] == "artifact/weights.data"
    # The right bytes, uploaded again, are taken.
    assert upload(dev, release, "artifact/weights.data", DATA)["upload_id"] != told["upload_id"]
    run_jobs()
    assert ReleaseFile.objects.get().blob_id == sha256(DATA)
    assert dev.get(f"/api/v1/releases/{release}").json()["quarantined"] == []


@pytest.mark.parametrize("way", ["the file before, in parts", "the file before, by PUT", "called off"])
@pytest.mark.takes("upload: verifying → quarantined", "upload: quarantined → aborted")
def test_a_quarantined_upload_is_no_dead_end(dev: Any, run_jobs: Callable[[], int], way: str) -> None:
    """A path that had its file already, and was sent a wrong one: one names the file again, or takes back what was sent."""
    release, path, before = draft(dev), "artifact/weights.data", some_bytes(50, seed=7)
    address = f"/api/v1/releases/{release}/files/{path}"

    def put_before() -> Any:
        headers = {"X-Content-SHA256": sha256(before)}
        return dev.put(address, before, content_type="application/octet-stream", headers=headers)

    assert put_before().status_code == 200
    told = begin(dev, release, path, DATA).json()
    send(dev, told, some_bytes(len(DATA), seed=9))
    complete(dev, told["upload_id"])
    run_jobs()
    body = refused(dev.post(f"/api/v1/releases/{release}/seal"), 422, "unverified_files")
    assert told["upload_id"] in body["errors"][0]["fix"]
    if way == "called off":
        assert dev.delete(told["links"]["self"]).status_code == 204
    elif way == "the file before, in parts":
        assert begin(dev, release, path, before).json()["exists"]
    else:
        assert put_before().status_code == 200
    seen = dev.get(f"/api/v1/releases/{release}").json()
    assert seen["quarantined"] == [] and ReleaseFile.objects.get(path=path).blob_id == sha256(before)
    assert dev.get(told["links"]["self"]).json()["state"] == "aborted"
    refused(dev.post(f"/api/v1/releases/{release}/seal"), 422, "incomplete_release")  # for another reason: no model


def test_a_single_part_with_a_lie_about_the_whole_is_read_and_quarantined(
    dev: Any, run_jobs: Callable[[], int]
) -> None:
    told = begin(dev, draft(dev), "artifact/weights.data", b"announced").json()
    [signed] = sign(dev, told["upload_id"], {1: b"otherwise"}).json()["parts"]
    assert put(dev, signed, b"otherwise").status_code == 200
    assert complete(dev, told["upload_id"]).json()["state"] == "verifying"
    run_jobs()
    assert Upload.objects.get().state == "quarantined" and not Blob.objects.exists()


def test_a_wrong_part_is_refused_and_may_be_sent_rightly(dev: Any) -> None:
    told = begin(dev, draft(dev), "artifact/weights.data", DATA).json()
    cut = pieces(DATA, PART)
    [signed] = sign(dev, told["upload_id"], {1: cut[0]}).json()["parts"]
    refused(put(dev, signed, cut[1]), 422, "digest_mismatch")
    refused(put(dev, signed, cut[0][:-1]), 422, "upload_cut_short")
    refused(put(dev, signed, cut[0] + b"x"), 422, "too_large")
    assert dev.get(told["links"]["self"]).json()["received"] == []
    assert put(dev, signed, cut[0]).status_code == 200
    assert put(dev, signed, cut[0]).status_code == 200
    body = refused(sign(dev, told["upload_id"], {1: cut[1]}), 422, "part_mismatch")
    assert "new upload" in body["errors"][0]["fix"]


@pytest.mark.parametrize("changed", ["offset", "size", "sha256", "expires", "signature"])
def test_an_address_that_was_changed_is_refused(dev: Any, changed: str) -> None:
    told = begin(dev, draft(dev), "artifact/weights.data", DATA).json()
    cut = pieces(DATA, PART)
    [signed] = sign(dev, told["upload_id"], {1: cut[0]}).json()["parts"]
    url = urlsplit(signed["url"])
    said = dict(pair.split("=") for pair in url.query.split("&"))
    for value in ({**said, changed: "1"}, {k: v for k, v in said.items() if k != changed}):
        answer = dev.put(f"{url.path}?{urlencode(value)}", cut[0], content_type="application/octet-stream")
        refused(answer, 403, "bad_signature")


def test_an_address_ends(dev: Any) -> None:
    told = begin(dev, draft(dev), "artifact/weights.data", DATA).json()
    sign(dev, told["upload_id"], {1: DATA[:PART]})
    ticket = PartTicket(told["upload_id"].replace("-", ""), 1, 0, PART, sha256(DATA[:PART]), 1_000_000_000)
    said = {"offset": 0, "size": PART, "sha256": ticket.sha256, "expires": ticket.expires_at_s}
    said["signature"] = ticket.signature(settings.SECRET_KEY.encode())
    address = f"/api/v1/upload-parts/{ticket.upload}/1?{urlencode(said)}"
    refused(dev.put(address, DATA[:PART], content_type="application/octet-stream"), 403, "address_ended")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"numbers": [0], "sha256": ["a" * 64]}, "numbers[0]"),
        ({"numbers": [5], "sha256": ["a" * 64]}, "numbers[0]"),
        ({"numbers": [True], "sha256": ["a" * 64]}, "numbers[0]"),
        ({"numbers": [1, 1], "sha256": ["a" * 64] * 2}, "numbers"),
        ({"numbers": [1], "sha256": ["A" * 64]}, "sha256[0]"),
        ({"numbers": [1], "sha256": []}, "numbers"),
        ({"numbers": [1] * 101, "sha256": ["a" * 64] * 101}, "numbers"),
        ({}, "numbers"),
    ],
)
def test_a_bad_list_of_parts_names_its_mistake(dev: Any, body: dict[str, Any], field: str) -> None:
    told = begin(dev, draft(dev), "artifact/weights.data", DATA).json()
    answer = dev.post(f"/api/v1/uploads/{told['upload_id']}/parts:sign", body, format="json")
    assert field in {error["field"] for error in refused(answer, 422, "invalid_parts")["errors"]}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"path": "../model.onnx"}, "path"),
        ({"path": "/etc/passwd"}, "path"),
        ({"sha256": "A" * 64}, "sha256"),
        ({"sha256": None}, "sha256"),
        ({"size_bytes": -1}, "size_bytes"),
        ({"size_bytes": "10"}, "size_bytes"),
        ({"size_bytes": 1 << 50}, "size_bytes"),
        ({"release": "draft"}, "release"),
    ],
)
def test_a_bad_beginning_names_its_mistake(dev: Any, changes: dict[str, Any], field: str) -> None:
    answer = begin(dev, draft(dev), "artifact/weights.data", DATA, changes)
    assert field in {error["field"] for error in refused(answer, 422, "invalid_file")["errors"]}
    assert not Upload.objects.exists()


def test_only_announced_files_are_taken(dev: Any) -> None:
    release = draft(dev, announced(artifact__model_onnx=ONNX))
    assert "path" in str(refused(begin(dev, release, "artifact/w.data", DATA), 422, "invalid_file")["errors"])
    refused(begin(dev, release, "artifact/model.onnx", DATA), 422, "invalid_file")


def test_other_bytes_for_the_same_path_call_the_first_upload_off(dev: Any) -> None:
    release = draft(dev)
    first = begin(dev, release, "artifact/weights.data", DATA).json()
    send(dev, first, DATA, [1])
    second = begin(dev, release, "artifact/weights.data", some_bytes(50)).json()
    assert second["upload_id"] != first["upload_id"]
    assert dev.get(first["links"]["self"]).json()["state"] == "aborted"
    refused(sign(dev, first["upload_id"], {2: DATA[PART : 2 * PART]}), 409, "upload_over")
    refused(complete(dev, first["upload_id"]), 409, "upload_over")


@pytest.mark.takes("upload: open → aborted", "upload: verifying → aborted")
def test_a_discarded_draft_takes_its_uploads_along(
    dev: Any, django_capture_on_commit_callbacks: Any, run_jobs: Callable[[], int]
) -> None:
    release = draft(dev)
    first = begin(dev, release, "artifact/weights.data", DATA).json()
    send(dev, first, DATA, [1, 2])
    verifying = upload(dev, release, "artifact/more.data", some_bytes(2 * PART))
    with django_capture_on_commit_callbacks(execute=True):
        assert dev.delete(f"/api/v1/releases/{release}").status_code == 204
    assert set(Upload.objects.values_list("state", "is_stored")) == {("aborted", False)}
    assert stored() == {} and leftovers() == []
    for told in (first, verifying):
        refused(dev.get(f"/api/v1/uploads/{told['upload_id']}"), 404, "no_such_upload")
    run_jobs()
    assert not Blob.objects.exists()


def test_a_sealed_release_takes_nothing_more(dev: Any) -> None:
    release = draft(dev)
    upload(dev, release, "artifact/model.onnx", ONNX)
    open_one = begin(dev, release, "artifact/weights.data", DATA).json()
    send(dev, open_one, DATA)
    assert dev.post(f"/api/v1/releases/{release}/seal").status_code == 200
    refused(begin(dev, release, "artifact/more.data", DATA), 409, "not_a_draft")
    complete(dev, open_one["upload_id"])
    actions.verify(Upload.objects.get(pk=open_one["upload_id"]), lambda **_: True)
    assert Upload.objects.get(pk=open_one["upload_id"]).state == "aborted"
    assert [file["path"] for file in Release.objects.get(pk=release).files.values("path")] == ["artifact/model.onnx"]


def test_an_upload_is_aborted_and_its_parts_go(dev: Any, django_capture_on_commit_callbacks: Any) -> None:
    told = begin(dev, draft(dev), "artifact/weights.data", DATA).json()
    send(dev, told, DATA, [1])
    assert leftovers()
    with django_capture_on_commit_callbacks(execute=True):
        assert dev.delete(told["links"]["self"]).status_code == 204
    assert dev.delete(told["links"]["self"]).status_code == 204
    assert leftovers() == [] and Upload.objects.get().state == "aborted"


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


# --- the door in front of Django


@pytest.fixture
def door() -> Iterator[Callable[..., httpx.Response]]:
    """`door(method, url, body, headers)`: through both middlewares alone; what they hand on to Django is told by the status 299.

    Whoever sends `Authorization: Bearer known` is known.
    """

    async def django(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def require_sender(headers: Any) -> None:
        if dict(headers).get(b"authorization") != b"Bearer known":
            raise Unknown("not_authenticated", "Who are you?")

    app = BodyMiddleware(UploadMiddleware(django), require_sender)

    def call(method: str, url: str, body: Any = b"", headers: Any = None) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
                return await client.request(method, url, content=body, headers=headers)

        return asyncio.run(run())

    yield call
    connections.close_all()


def test_the_door_takes_a_part_as_it_comes(dev: Any, door: Callable[..., httpx.Response], settings: Any) -> None:
    settings.UPLOAD_PART_BYTES = 3 << 20
    data = some_bytes(4 << 20)
    told = begin(dev, draft(dev), "artifact/weights.data", data).json()
    cut = pieces(data, told["part_size"])
    [signed] = sign(dev, told["upload_id"], {1: cut[0]}).json()["parts"]

    async def slowly() -> Any:
        for at in range(0, len(cut[0]), 70_000):
            yield cut[0][at : at + 70_000]

    assert door("PUT", signed["url"], cut[1]).json()["code"] == "wrong_size"
    assert door("PUT", signed["url"], cut[0][::-1]).json()["code"] == "digest_mismatch"
    assert door("PUT", signed["url"].replace("signature=", "signature=0"), cut[0]).status_code == 403
    done = door("PUT", signed["url"], slowly())
    assert done.status_code == 200 and done.json() == {"number": 1, "size_bytes": 3 << 20, "sha256": sha256(cut[0])}
    assert door("PUT", signed["url"], cut[0]).status_code == 200
    assert [part["number"] for part in dev.get(told["links"]["self"]).json()["received"]] == [1]


def test_a_part_that_breaks_off_does_not_count(dev: Any) -> None:
    told = begin(dev, draft(dev), "artifact/weights.data", DATA).json()
    [signed] = sign(dev, told["upload_id"], {1: DATA[:PART]}).json()["parts"]
    url, said = urlsplit(signed["url"]), list[Any]()
    messages = iter([{"type": "http.request", "body": DATA[:500], "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def told_back(message: Any) -> None:
        said.append(message)

    scope = {"type": "http", "method": "PUT", "path": url.path, "query_string": url.query.encode(), "headers": []}
    asyncio.run(UploadMiddleware(None)(scope, receive, told_back))  # type: ignore[arg-type]
    assert said[0]["status"] == 422 and b"upload_cut_short" in said[1]["body"]
    assert dev.get(told["links"]["self"]).json()["received"] == []
    assert put(dev, signed, DATA[:PART]).status_code == 200  # its place is free again


FILES = "/api/v1/releases/12345678-1234-1234-1234-123456789012/files/artifact"
KNOWN = {"Authorization": "Bearer known"}


async def unending() -> Any:
    raise AssertionError("the body was read")
    yield b""


def test_every_body_is_bounded_before_it_is_read(door: Callable[..., httpx.Response], settings: Any) -> None:
    settings.MAX_SIMPLE_UPLOAD_BYTES = 10
    folder = FILES
    for name in ("model.onnx", "a%0Ab"):
        refused(door("PUT", f"{folder}/{name}", unending(), {"Content-Length": "11"}), 413, "too_large")
    assert "POST /api/v1/uploads" in door("PUT", f"{folder}/a", unending(), {"Content-Length": "11"}).json()["detail"]
    for address, most in (
        ("/api/v1/tokens", 64 << 10),
        (f"/api/v1/upload-parts/{'0' * 32}/99999999", 1 << 20),
        ("/api/v1/models/a/releases", 16 << 20),
        ("/api/v1/rollouts", 1 << 20),
        ("/", 1 << 20),
        ("/nowhere", 1 << 20),
    ):
        refused(door("POST", address, unending(), KNOWN | {"Content-Length": str(most + 1)}), 413, "too_large")
        refused(door("PUT", address, unending()), 411, "length_needed")  # in chunks
    assert door("PUT", f"{folder}/model.onnx", b"x" * 10, KNOWN).status_code == 299
    assert door("POST", "/api/v1/models", b"x" * 1000, KNOWN).status_code == 299
    assert door("GET", "/api/v1/models").status_code == 299


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_a_strangers_body_is_not_read(door: Callable[..., httpx.Response], method: str) -> None:
    for address in (f"{FILES}/a", "/api/v1/models", "/api/v1/models/a/releases", "/api/v1/nowhere", "/api/v1/tokens/x"):
        told = door(method, address, unending(), {"Content-Length": "5000"})
        refused(told, 401, "not_authenticated")
        assert told.headers["www-authenticate"].startswith("Bearer") and told.headers["connection"] == "close"
    for address, sent_to in (
        ("/webhooks/new/", "?next=/webhooks/new/"),
        ("/a%3F&/", "?next=/a%3F%26/"),
        ("/sign-out/", ""),
    ):
        told = door(method, address, unending(), {"Content-Length": "5000"})
        assert (told.status_code, told.headers["location"]) == (303, f"/sign-in/{sent_to}")
    # where signing in begins: little, and in memory
    refused(door(method, "/sign-in/", unending(), {"Content-Length": "70000"}), 413, "too_large")
    assert door(method, "/api/v1/tokens", b"x" * 5000).status_code == 299
    assert door(method, "/sign-in/", b"x" * 5000).status_code == 299


def test_a_body_that_does_not_come_is_told_so(
    door: Callable[..., httpx.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.body_middleware.SILENT_S", 0.1)

    async def stalling() -> Any:
        yield b"x"
        await asyncio.sleep(5)

    refused(door("POST", "/api/v1/models", stalling(), KNOWN | {"Content-Length": "1000"}), 408, "too_slow")
    monkeypatch.setattr("sluicegate.body_middleware.WHOLE_S", 0.2)
    monkeypatch.setattr("sluicegate.body_middleware.SILENT_S", 5)

    async def dripping() -> Any:
        for _ in range(1000):
            yield b"x"
            await asyncio.sleep(0.02)

    refused(door("POST", "/api/v1/models", dripping(), KNOWN | {"Content-Length": "1000"}), 408, "too_slow")


def test_a_strangers_body_has_seconds(door: Callable[..., httpx.Response], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.body_middleware.STRANGERS_S", 0.3)

    async def dripping() -> Any:
        for _ in range(40):
            yield b"x"
            await asyncio.sleep(0.02)

    length = {"Content-Length": "40"}
    for address in ("/sign-in/", "/api/v1/tokens"):
        refused(door("POST", address, dripping(), length), 408, "too_slow")
    assert door("POST", "/webhooks/new/", dripping(), KNOWN | length).status_code == 299


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
