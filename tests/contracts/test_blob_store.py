"""What every blob store keeps: the folder, and a real S3. A new adapter joins by one more parameter of `blobs` in conftest.py."""

from __future__ import annotations

import io
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from ledger.core.errors import Invalid, NotFound, Unavailable
from registry.storage import CHUNK_BYTES, BlobStore, FolderStore, store
from registry.storage.blobs import adapter
from registry.storage.s3 import S3Store
from tests.contracts.blob_store_parts import MAX_BYTES, digest, s3_store
from tests.support.rigs.s3_rig import ACCESS_KEY, SECRET_KEY, SeaweedFS


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


def test_a_file_of_several_pieces_is_read_whole(tmp_path: Path) -> None:
    folder, data = FolderStore(tmp_path, max_bytes=MAX_BYTES), bytes(range(256)) * 9000
    sha256, _ = folder.put_stream(io.BytesIO(data))
    assert b"".join(bytes(chunk) for chunk in folder.chunks(sha256)) == data
