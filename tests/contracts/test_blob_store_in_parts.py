"""What every blob store keeps of a file that comes in parts: the folder, and a real S3."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ledger.core.errors import DomainError, Invalid, NotFound, Unavailable
from registry.core.uploads import PartTicket
from registry.storage import BlobStore, FolderStore
from tests.contracts.blob_store_parts import MAX_BYTES, PART, UPLOAD, Parts, digest, s3_store, send
from tests.support.rigs.s3_rig import SeaweedFS


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART, 2 * PART + 12345])
def test_parts_in_any_order_become_the_bytes(blobs: BlobStore, size: int) -> None:
    parts = Parts(blobs, size)
    numbers = list(range(1, parts.place.plan.count + 1))
    random.Random(size).shuffle(numbers)
    for number in numbers:
        assert parts.send(number) == 200
    held = blobs.received_parts(parts.place)
    assert {n: part.size_bytes for n, part in held.items()} == {n: len(parts.pieces[n - 1]) for n in numbers}
    assert parts.complete() is (isinstance(blobs, FolderStore) and len(numbers) == 1)
    assert parts.complete() is False  # once more is no error, and no proof
    # who was cut off before it could note this finds that nothing is to be sent
    assert {n: part.size_bytes for n, part in blobs.received_parts(parts.place).items()} == {
        n: part.size_bytes for n, part in held.items()
    }
    with blobs.open(parts.key) as file:
        assert file.read() == parts.data
        file.seek(max(0, size - 3))
        assert file.read() == parts.data[max(0, size - 3) :]
    assert blobs.size(parts.key) == size and blobs.path(parts.key).read_bytes() == parts.data
    assert blobs.read_range(parts.key, size // 2, 1000) == parts.data[size // 2 : size // 2 + 1000]
    assert blobs.read_range(parts.key, size, 10) == b"" == blobs.read_range(parts.key, size + 5, 10)
    assert b"".join(bytes(chunk) for chunk in blobs.chunks(parts.key)) == parts.data
    assert list(blobs.keys()) == [(parts.key, size)] and list(blobs.unfinished()) == []


def test_a_signed_address_takes_its_bytes_and_no_others(blobs: BlobStore) -> None:
    parts = Parts(blobs, 2 * PART)
    signed = parts.sign(1)
    assert send(blobs, signed, b"x" * PART) in (400, 422)
    assert send(blobs, signed, parts.pieces[0][:-1]) in (400, 422)
    assert send(blobs, signed, parts.pieces[0] + b"x") in (400, 422)
    assert 1 not in blobs.received_parts(parts.place)
    assert send(blobs, signed, parts.pieces[0]) == 200
    assert send(blobs, signed, b"x" * PART) in (200, 400, 422)  # 200 where what is held is not looked at again
    assert parts.send(1) == 200  # sending again is no error
    assert parts.send(2) == 200
    parts.complete()
    with blobs.open(parts.key) as file:
        assert file.read() == parts.data


@pytest.mark.real("s3")
def test_a_bucket_refuses_an_address_that_was_tampered_with(seaweed: SeaweedFS, tmp_path: Path) -> None:
    made = s3_store(seaweed, tmp_path)
    for size in (1000, 2 * PART):
        parts = Parts(made, size)
        signed, piece = parts.sign(1), parts.pieces[0]
        assert send(made, replace(signed, headers={}), piece) == 403
        other = {"x-amz-checksum-sha256": "A" * 43 + "="}
        assert send(made, replace(signed, headers=other), piece) == 403
        url = signed.url.replace(parts.key.partition("/")[0], "0" * 64)
        assert send(made, replace(signed, url=url), piece) == 403
        assert made.received_parts(parts.place) == {}


def test_an_address_ends(blobs: BlobStore) -> None:
    parts = Parts(blobs, 100)
    before = time.time()
    signed = parts.sign(1, expires_in_s=1)
    if isinstance(blobs, FolderStore):
        assert before <= int(parse_qs(urlsplit(signed.url).query)["expires"][0]) <= time.time() + 2
        return  # the door looks at it: tests/api/test_upload_door.py
    time.sleep(2.5)
    assert send(blobs, signed, parts.pieces[0]) == 403


def test_completing_names_what_is_missing(blobs: BlobStore) -> None:
    parts = Parts(blobs, 3 * PART)
    parts.send(2)
    with pytest.raises(Invalid, match="1, 3") as caught:
        parts.complete()
    assert caught.value.code == "part_missing" and caught.value.facts["missing"] == [1, 3]
    assert not blobs.exists(parts.key)


def test_completing_with_another_sha256_is_refused(blobs: BlobStore) -> None:
    parts = Parts(blobs, 2 * PART)
    for number in (1, 2):
        parts.send(number)
    with pytest.raises(Invalid) as caught:
        blobs.complete(parts.place, [parts.sha256s[0], "0" * 64])
    assert caught.value.code == "part_mismatch"
    assert not blobs.exists(parts.key)
    parts.complete()
    assert blobs.exists(parts.key)


def test_an_aborted_upload_leaves_nothing_and_cannot_be_completed(blobs: BlobStore) -> None:
    parts = Parts(blobs, 2 * PART)
    parts.send(1)
    assert [place.key for place in blobs.unfinished()] == [parts.key]
    blobs.abort(parts.place)
    blobs.abort(parts.place)
    assert list(blobs.unfinished()) == [] and list(blobs.keys()) == [] and blobs.received_parts(parts.place) == {}
    with pytest.raises(DomainError) as caught:
        parts.complete()
    assert caught.value.code in ("upload_gone", "part_missing")


@pytest.mark.parametrize("is_completed", [True, False])
def test_parts_that_go_while_they_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_completed: bool
) -> None:
    """Another process has just completed the upload, or aborted it, when the markers are listed."""
    made = FolderStore(tmp_path / "blobs", max_bytes=MAX_BYTES)
    parts = Parts(made, 2 * PART)
    for number in (1, 2):
        parts.send(number)
    listed = os.listdir

    def gone(folder: Path) -> Any:
        monkeypatch.setattr(os, "listdir", listed)
        (parts.complete if is_completed else lambda: made.abort(parts.place))()
        return listed(folder)

    monkeypatch.setattr(os, "listdir", gone)
    assert set(made.received_parts(parts.place)) == ({1, 2} if is_completed else set())
    again = Parts(made, 2 * PART)
    for number in (1, 2):
        again.send(number)
    parts = again
    monkeypatch.setattr(os, "listdir", gone)
    if is_completed:
        again.complete()
        assert made.exists(again.key)
    else:
        with pytest.raises(NotFound) as caught:
            again.complete()
        assert caught.value.code == "upload_gone"


def test_an_upload_whose_beginner_died_is_aborted_by_its_key(blobs: BlobStore) -> None:
    parts = Parts(blobs, 2 * PART)
    blobs.begin(parts.key, 2 * PART, PART)  # by another process, which took it for not begun
    blobs.abort(replace(parts.place, store_id=""))
    assert list(blobs.unfinished()) == []


def test_of_two_who_begin_at_once_one_is_aborted_and_the_other_goes_on(blobs: BlobStore) -> None:
    parts = Parts(blobs, 2 * PART)
    again = blobs.begin(parts.key, 2 * PART, PART)
    if again.store_id:  # else the store has one beginning only
        blobs.abort(again)
    assert [parts.send(number) for number in (1, 2)] == [200, 200]
    parts.complete()
    assert blobs.exists(parts.key) and list(blobs.unfinished()) == []


def test_completed_bytes_survive_an_abort(blobs: BlobStore) -> None:
    parts = Parts(blobs, 2 * PART)
    for number in (1, 2):
        parts.send(number)
    parts.complete()
    blobs.abort(parts.place)
    assert blobs.exists(parts.key)


def test_many_who_complete_at_once_all_succeed(blobs: BlobStore) -> None:
    parts = Parts(blobs, 2 * PART)
    for number in (1, 2):
        parts.send(number)
    barrier, failures = threading.Barrier(8), list[Exception]()

    def complete() -> None:
        barrier.wait(60)
        try:
            parts.complete()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=complete) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == [] and blobs.size(parts.key) == 2 * PART


def test_a_part_has_one_writer_at_a_time(tmp_path: Path) -> None:
    folder = FolderStore(tmp_path, max_bytes=MAX_BYTES)
    folder.begin(f"{digest(b'x')}/{UPLOAD}", 1, PART)
    ticket = PartTicket(UPLOAD, 1, 0, 1, digest(b"x"), 0)
    first = folder.part_writer(ticket)
    with pytest.raises(Unavailable, match="Another connection"):
        folder.part_writer(ticket)
    first.close()  # cut off: nothing counts, and the next one may write
    second = folder.part_writer(ticket)
    assert not second.is_received
    second.write(b"x")
    second.finish()
    second.close()
    with pytest.raises(Invalid, match="new upload"):
        folder.part_writer(replace(ticket, sha256="0" * 64))
    third = folder.part_writer(ticket)
    assert third.is_received
    third.close()
