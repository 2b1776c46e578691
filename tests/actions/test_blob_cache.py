"""A node's copies of blobs: fetched once, in ranges, checked while written and before each use, let go when there is no room."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.targets.agent import blob_cache
from serving.targets.agent.blob_cache import AT_ONCE, BlobCache, DamagedBlob


class Source:
    """Blobs in memory that notes every range that is asked for, and how many are asked for at a time.

    Nobody is answered before so many have asked as `waits_for` says.
    """

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.asked: list[tuple[int, int]] = []
        self.at_once = self.most_at_once = 0
        self.waits_for = 0
        self.rest_s = 0.0
        self._lock = threading.Lock()
        self._asked = threading.Condition(self._lock)

    def put(self, data: bytes) -> tuple[str, int]:
        sha256 = hashlib.sha256(data).hexdigest()
        self.data[sha256] = data
        return sha256, len(data)

    def reader_of(self, sha256: str) -> Callable[[int, int], bytes]:
        data = self.data[sha256]

        def read(start: int, length: int) -> bytes:
            with self._lock:
                self.asked.append((start, length))
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                self._asked.notify_all()
                assert self._asked.wait_for(lambda: self.most_at_once >= self.waits_for, 60)
            time.sleep(self.rest_s)
            with self._lock:
                self.at_once -= 1
            return data[start : start + length]

        return read


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(blob_cache, "RANGE_BYTES", 1000)
    return Source()


def aged(cache: BlobCache, sha256: str, by_s: float) -> None:
    path = cache.folder / sha256[:2] / sha256
    os.utime(path, (time.time() - by_s,) * 2)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("??/*")}


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 25_000])
def test_a_blob_is_fetched_in_ranges_side_by_side_and_placed_read_only(
    tmp_path: Path, source: Source, size: int
) -> None:
    data = random.Random(size).randbytes(size)
    sha256, _ = source.put(data)
    side_by_side = AT_ONCE if size == 25_000 else min(2, max(1, -(-size // 1000)))
    source.waits_for, source.rest_s = side_by_side, 0.01  # it rests so that one too many has the time to come
    cache = BlobCache(tmp_path / "cache", source)
    cache.place(sha256, size, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == data
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o444
    assert sorted(source.asked) == [(start, min(1000, size - start)) for start in range(0, size, 1000)] or size <= 1000
    assert source.most_at_once == side_by_side
    assert list((tmp_path / "cache" / "incoming").iterdir()) == []


def test_a_held_blob_moves_nothing_and_takes_its_room_once(tmp_path: Path, source: Source) -> None:
    sha256, size = source.put(b"x" * 5000)
    cache = BlobCache(tmp_path / "cache", source)
    cache.place(sha256, size, tmp_path / "one")
    assert cache.moved_bytes == 5000
    cache.place(sha256, size, tmp_path / "two")
    BlobCache(tmp_path / "cache", source).place(sha256, size, tmp_path / "three")
    assert cache.moved_bytes == 5000 and len(source.asked) == 5
    assert (tmp_path / "one").stat().st_nlink == 4


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data[:-1] + b"!", lambda data: data[::-1]])
def test_bytes_that_are_not_those_that_were_asked_for_leave_nothing(
    tmp_path: Path, source: Source, spoil: Callable[[bytes], bytes]
) -> None:
    sha256, size = source.put(bytes(range(256)) * 10)
    source.data[sha256] = spoil(source.data[sha256])
    cache = BlobCache(tmp_path / "cache", source)
    with pytest.raises(DamagedBlob) as caught:
        cache.place(sha256, size, tmp_path / "file")
    assert caught.value.actual == hashlib.sha256(source.data[sha256]).hexdigest()
    assert not (tmp_path / "file").exists() and names(tmp_path / "cache") == set()
    assert list((tmp_path / "cache" / "incoming").iterdir()) == []


def test_a_store_that_fails_in_the_middle_leaves_nothing(tmp_path: Path, source: Source) -> None:
    sha256, size = source.put(b"x" * 5000)
    read = source.reader_of(sha256)

    def failing(start: int, length: int) -> bytes:
        if start >= 3000:
            raise ConnectionError("reset by the store")
        return read(start, length)

    source.reader_of = lambda sha256: failing  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        BlobCache(tmp_path / "cache", source).place(sha256, size, tmp_path / "file")
    assert not (tmp_path / "file").exists() and names(tmp_path / "cache") == set()


def test_a_copy_that_was_changed_on_disk_is_fetched_anew_and_never_placed(tmp_path: Path, source: Source) -> None:
    sha256, size = source.put(b"weights" * 100)
    cache = BlobCache(tmp_path / "cache", source)
    cache.place(sha256, size, tmp_path / "one")
    copy = tmp_path / "cache" / sha256[:2] / sha256
    copy.chmod(0o644)
    copy.write_bytes(b"other" * 100)  # the same file as the server's, by its link
    cache.place(sha256, size, tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == b"weights" * 100
    assert cache.moved_bytes == 2 * size


def test_the_longest_unused_goes_first_and_what_a_server_uses_stays(tmp_path: Path, source: Source) -> None:
    cache = BlobCache(tmp_path / "cache", source, max_bytes=3500)
    blobs = [source.put(bytes([n]) * 1000) for n in range(4)]
    for n, (sha256, size) in enumerate(blobs[:3]):
        cache.place(sha256, size, tmp_path / f"server-{n}")
        aged(cache, sha256, 300 - n)
    (tmp_path / "server-1").unlink()  # the servers of 1 and 2 have ended, that of 0, the oldest, has not
    (tmp_path / "server-2").unlink()
    cache.place(*blobs[3], tmp_path / "server-3")
    assert names(tmp_path / "cache") == {blobs[n][0] for n in (0, 2, 3)}
    assert (tmp_path / "server-0").read_bytes() == bytes([0]) * 1000


def test_use_keeps_a_copy_young(tmp_path: Path, source: Source) -> None:
    cache = BlobCache(tmp_path / "cache", source, max_bytes=2500)
    first, second, third = (source.put(bytes([n]) * 1000) for n in range(3))
    for number, one in enumerate((first, second)):
        cache.place(*one, tmp_path / "file")
        (tmp_path / "file").unlink()
        aged(cache, one[0], 300 - number)
    cache.place(*first, tmp_path / "file")
    (tmp_path / "file").unlink()
    cache.place(*third, tmp_path / "file")
    assert names(tmp_path / "cache") == {first[0], third[0]}


def test_a_release_that_is_larger_than_the_cache_is_served_all_the_same(tmp_path: Path, source: Source) -> None:
    sha256, size = source.put(b"x" * 5000)
    BlobCache(tmp_path / "cache", source, max_bytes=100).place(sha256, size, tmp_path / "file")
    assert (tmp_path / "file").stat().st_size == 5000


def test_many_who_want_the_same_at_once_fetch_it_once(tmp_path: Path, source: Source) -> None:
    sha256, size = source.put(b"x" * 5000)
    source.rest_s = 0.01
    cache = BlobCache(tmp_path / "cache", source)
    threads = [
        threading.Thread(target=cache.place, args=(sha256, size, tmp_path / f"file-{n}"), daemon=True) for n in range(8)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert cache.moved_bytes == size and len(list(tmp_path.glob("file-*"))) == 8


def test_where_no_link_can_be_made_the_bytes_are_copied(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    sha256, size = source.put(b"x" * 500)
    BlobCache(tmp_path / "cache", source).place(sha256, size, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"x" * 500
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o444


def test_what_a_killed_fetch_left_is_swept_away(tmp_path: Path, source: Source) -> None:
    left = tmp_path / "cache" / "incoming" / "half"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    BlobCache(tmp_path / "cache", source).sweep()
    assert not left.exists()


def test_a_copy_that_was_renewed_is_evicted_after_others(tmp_path: Path, source: Source) -> None:
    cache = BlobCache(tmp_path / "cache", source, max_bytes=2500)
    stable, other, new = (source.put(bytes([n]) * 1000) for n in range(3))
    for number, one in enumerate((stable, other)):
        cache.place(*one, tmp_path / one[0])
        (tmp_path / one[0]).unlink()
        aged(cache, one[0], 300 - number)  # `stable` is the older one
    cache.renew({stable[0], new[0]})  # `new` has no copy yet
    cache.place(*new, tmp_path / "server")
    assert names(tmp_path / "cache") == {stable[0], new[0]}
