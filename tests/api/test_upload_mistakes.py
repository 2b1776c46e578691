"""Uploads that are not what was announced, that are refused, or are called off."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from django.conf import settings

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from ledger.models import Event
from registry import actions
from registry.core.uploads import PartTicket
from registry.models import Blob, Release, ReleaseFile, Upload
from tests.support.worlds.registry_samples import ONNX, announced, sha256
from tests.support.worlds.upload_setup import DATA, PART, dev, draft, leftovers, refused, small_parts, stored  # noqa: F401
from tests.support.worlds.uploading import begin, complete, pieces, put, send, sign, some_bytes, upload

pytestmark = pytest.mark.django_db


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
