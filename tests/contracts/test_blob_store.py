"""What every blob store keeps: the folder, and a real S3. A new adapter joins by one more parameter of `blobs`."""

from __future__ import annotations

import hashlib
import io
import os
import random
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from django.conf import settings

from ledger.core.errors import DomainError, Invalid, NotFound, Unavailable
from registry.core.uploads import PartTicket
from registry.storage import CHUNK_BYTES, BlobStore, FolderStore, SignedPart, store
from registry.storage.blobs import adapter
from registry.storage.mapped import pieces
from registry.storage.s3 import S3Store, bucket_of
from tests.s3_rig import ACCESS_KEY, SECRET_KEY, SeaweedFS

MAX_BYTES = 3 * CHUNK_BYTES
PART = 5 * 2**20  # the least that S3 allows
UPLOAD = "0123456789abcdef" * 2


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.real("s3"))])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "blobs", max_bytes=MAX_BYTES)
    return s3_store(request.getfixturevalue("seaweed"), tmp_path / "copies")


def s3_store(server: SeaweedFS, copies: Path, **other: Any) -> S3Store:
    bucket, prefix = bucket_of(f"s3://{server.place()}")
    usual = {"endpoint": server.endpoint, "access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "max_bytes": MAX_BYTES}
    return S3Store(bucket, prefix=prefix, copies=copies, **usual | other)


def send(store: BlobStore, part: SignedPart, data: bytes) -> int:
    """The part as a client sends it: to the bucket, or to the app, whose door hands it to the folder."""
    if isinstance(store, FolderStore):
        return send_to_folder(store, part, data)
    return httpx.put(part.url, content=data, headers=part.headers, timeout=60).status_code


def send_to_folder(store: FolderStore, part: SignedPart, data: bytes) -> int:
    url = urlsplit(part.url)
    said = {name: values[0] for name, values in parse_qs(url.query).items()}
    upload, number = url.path.split("/")[-2:]
    ticket = PartTicket(
        upload, int(number), int(said["offset"]), int(said["size"]), said["sha256"], int(said["expires"])
    )
    assert ticket.is_signed_by(settings.SECRET_KEY.encode(), said["signature"])
    try:
        writer = store.part_writer(ticket)
        try:
            for at in range(0, len(data), 100_000):
                writer.write(data[at : at + 100_000])
            writer.finish()
        finally:
            writer.close()
    except DomainError as error:
        return error.status
    return 200


class Parts:
    """A file of so many bytes, cut for an upload to a store."""

    def __init__(self, store: BlobStore, size: int, seed: int = 7, part_size: int = PART) -> None:
        self.store, self.data = store, random.Random(seed).randbytes(size)
        self.key = f"{digest(self.data)}/{UPLOAD}"
        self.place = store.begin(self.key, size, part_size)
        self.pieces = [self.data[p.offset : p.offset + p.size_bytes] for p in self.place.plan.parts()]
        self.sha256s = [digest(piece) for piece in self.pieces]

    def sign(self, number: int, expires_in_s: int = 600) -> SignedPart:
        return self.store.sign_part(self.place, number, self.sha256s[number - 1], expires_in_s)

    def send(self, number: int) -> int:
        return send(self.store, self.sign(number), self.pieces[number - 1])

    def complete(self) -> bool:
        return self.store.complete(self.place, self.sha256s)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Stream:
    """A stream that remembers how much was asked for at once."""

    def __init__(self, data: bytes, fail_after: int | None = None) -> None:
        self.inner, self.largest_ask, self.fail_after = io.BytesIO(data), 0, fail_after

    def read(self, size: int, /) -> bytes:
        self.largest_ask = max(self.largest_ask, size)
        if self.fail_after is not None and self.inner.tell() >= self.fail_after:
            raise ConnectionResetError("the client went away")
        return self.inner.read(size)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, MAX_BYTES])
def test_what_is_put_is_read_back(blobs: BlobStore, size: int) -> None:
    data = bytes(i % 251 for i in range(997)) * (size // 997 + 1)
    data = data[:size]
    assert blobs.put_stream(io.BytesIO(data), digest(data)) == (digest(data), size)
    with blobs.open(digest(data)) as file:
        assert file.read() == data
    assert (
        blobs.exists(digest(data))
        and blobs.size(digest(data)) == size
        and blobs.path(digest(data)).read_bytes() == data
    )


def test_a_stream_is_read_in_pieces(blobs: BlobStore) -> None:
    stream = Stream(b"x" * (2 * CHUNK_BYTES))
    blobs.put_stream(stream)
    assert 0 < stream.largest_ask <= CHUNK_BYTES


def test_a_wrong_sha256_names_both_and_leaves_nothing(blobs: BlobStore) -> None:
    with pytest.raises(Invalid) as caught:
        blobs.put_stream(io.BytesIO(b"these bytes"), digest(b"other bytes"))
    assert caught.value.code == "digest_mismatch"
    assert digest(b"these bytes") in caught.value.message and digest(b"other bytes") in caught.value.message
    assert not blobs.exists(digest(b"these bytes")) and not blobs.exists(digest(b"other bytes"))


def test_a_stream_over_the_limit_is_refused_and_leaves_nothing(blobs: BlobStore) -> None:
    data = b"x" * (MAX_BYTES + 1)
    with pytest.raises(Invalid, match=str(MAX_BYTES)):
        blobs.put_stream(io.BytesIO(data))
    assert not blobs.exists(digest(data))


def test_a_stream_that_breaks_leaves_nothing(blobs: BlobStore) -> None:
    data = b"x" * (2 * CHUNK_BYTES)
    with pytest.raises(ConnectionResetError):
        blobs.put_stream(Stream(data, fail_after=CHUNK_BYTES))
    assert not blobs.exists(digest(data)) and not blobs.exists(digest(data[:CHUNK_BYTES]))


def test_putting_the_same_bytes_again_changes_nothing(blobs: BlobStore) -> None:
    first = blobs.put_stream(io.BytesIO(b"same"))
    assert blobs.put_stream(io.BytesIO(b"same")) == first
    with blobs.open(first[0]) as file:
        assert file.read() == b"same"


def test_many_who_put_the_same_bytes_at_once_all_succeed(blobs: BlobStore) -> None:
    barrier, results = threading.Barrier(8), []

    def put() -> None:
        barrier.wait(60)
        results.append(blobs.put_stream(io.BytesIO(b"raced" * 1000)))

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [(digest(b"raced" * 1000), 5000)] * 8


def test_a_deleted_blob_is_gone_and_deleting_it_again_is_no_error(blobs: BlobStore) -> None:
    sha256, _ = blobs.put_stream(io.BytesIO(b"short-lived"))
    blobs.delete(sha256)
    blobs.delete(sha256)
    assert not blobs.exists(sha256)


@pytest.mark.parametrize("ask", ["open", "path", "size", "chunks"])
def test_unknown_bytes_are_not_found(blobs: BlobStore, ask: str) -> None:
    with pytest.raises(NotFound, match=digest(b"never")):
        list(getattr(blobs, ask)(digest(b"never")))  # chunks are read only when they are asked for


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, "ab", "", "g" * 64, "a" * 63 + "/"])
def test_only_a_sha256_is_a_name(blobs: BlobStore, name: str) -> None:
    with pytest.raises(Invalid, match="64 hex digits"):
        blobs.exists(name)


def test_a_folder_holds_read_only_files_by_name_and_no_leftovers(tmp_path: Path) -> None:
    folder = FolderStore(tmp_path, max_bytes=MAX_BYTES)
    sha256, _ = folder.put_stream(io.BytesIO(b"hello"))
    with pytest.raises(Invalid):
        folder.put_stream(io.BytesIO(b"hello"), "0" * 64)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [tmp_path / sha256[:2] / sha256[2:4] / sha256]
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o400


def test_a_full_disk_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("registry.storage.folder.os.fsync", full)
    with pytest.raises(Unavailable, match="full"):
        FolderStore(tmp_path, max_bytes=MAX_BYTES).put_stream(io.BytesIO(b"x"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.django_db
def test_the_setting_names_the_store(settings: Any, tmp_path: Path) -> None:
    settings.BLOB_STORE = str(tmp_path / "there")
    sha256, _ = store().put_stream(io.BytesIO(b"x"))
    assert (tmp_path / "there" / sha256[:2]).is_dir() and store().exists(sha256)
    settings.BLOB_STORE = "s3://bucket/some/where"
    settings.S3_ACCESS_KEY, settings.S3_SECRET_KEY = ACCESS_KEY, SECRET_KEY
    made = adapter()
    assert isinstance(made, S3Store) and (made.bucket, made.prefix) == ("bucket", "some/where/blobs/")
    for place in ("s3://", "s3://key:secret@bucket", "s3://bucket?region=x"):
        settings.BLOB_STORE = place
        with pytest.raises(Exception, match="s3://bucket/prefix"):
            adapter()


# --- in parts


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


@pytest.mark.real("s3")
def test_a_bucket_that_refuses_or_is_away_is_said_plainly(seaweed: SeaweedFS, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="SLUICEGATE_S3_"):
        s3_store(seaweed, tmp_path, secret_key="wrong").exists("0" * 64)
    with pytest.raises(Unavailable, match="SLUICEGATE_S3_ENDPOINT"):
        s3_store(seaweed, tmp_path, endpoint="http://127.0.0.1:9").exists("0" * 64)


@pytest.mark.real("s3")
def test_a_damaged_object_is_not_copied(seaweed: SeaweedFS, tmp_path: Path) -> None:
    made = s3_store(seaweed, tmp_path)
    sha256, _ = made.put_stream(io.BytesIO(b"as it was"))
    seaweed.client().put_object(Bucket=made.bucket, Key=f"{made.prefix}{sha256}/whole", Body=b"otherwise")
    with pytest.raises(Invalid, match="sha256"):
        made.path(sha256)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_is_read_whole_on_a_kernel_that_cannot_populate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, data = FolderStore(tmp_path, max_bytes=MAX_BYTES), bytes(range(256)) * 9000
    sha256, _ = folder.put_stream(io.BytesIO(data))
    monkeypatch.setattr("registry.storage.mapped._POPULATE_READ", 9999)  # EINVAL, as an older kernel says
    assert b"".join(bytes(chunk) for chunk in folder.chunks(sha256)) == data


def test_a_disk_that_does_not_give_a_file_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    file = tmp_path / "shrinks"
    file.write_bytes(b"x" * (20 << 20))
    with file.open("rb", buffering=0) as opened:
        found = pieces(opened)
        next(found)
        os.truncate(file, 9 << 20)
        with pytest.raises(OSError, match="does not give"):
            for _ in found:
                pass
