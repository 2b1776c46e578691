"""Sends files in parts, several at once, and goes on where an earlier run was cut off.

Everything that the server is told goes from one thread; only the parts themselves travel in several. Memory stays at one
chunk for each connection.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from sluicegate.client.connection import CHUNK_BYTES, Connection
from sluicegate.client.errors import Problem, Unreachable, refuse
from sluicegate.client.folder import LocalFile, open_file
from sluicegate.client.progress import Meter, Progress

#: Parts under way at once. Source: four were the fastest at parts of 16 MiB in our measurement.
CONNECTIONS = 4
#: Parts signed in one call; their addresses are used within minutes.
SIGNED_AT_ONCE = 4
#: Retries of a part that the store refused, with a pause that doubles from PAUSE_S to LONGEST_PAUSE_S;
#: while other parts of its file arrive it is not counted: another push of the same folder may be sending this very part.
TRIES, PAUSE_S, LONGEST_PAUSE_S = 12, 0.5, 10.0
#: An address may have ended while its part waited for its turn: it is signed anew.
ENDED = 403
#: How often completing is repeated while a worker reads, so that one that died is replaced.
NUDGE_S = 10.0


@dataclass
class _Upload:
    """A file under way: the parts that the server does not have yet."""

    file: LocalFile
    id: str
    part_size: int
    missing: set[int]
    seen_missing: int = 0

    def place(self, number: int) -> tuple[int, int]:
        """(offset, size in bytes)."""
        offset = (number - 1) * self.part_size
        return offset, min(self.part_size, self.file.size_bytes - offset)

    def sha256(self, number: int) -> str:
        digest = hashlib.sha256()
        for chunk in _chunks(self.file, *self.place(number)):
            digest.update(chunk)
        return digest.hexdigest()


@dataclass
class _Counter:
    """Counts sent bytes, from any thread, for the meter."""

    meter: Meter
    total: int
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        with self.lock:
            self.done += count
            self.meter(self.done, self.total)


class _Stopped(Exception):
    """The command is ending; a part under way breaks off."""


@dataclass
class _Sent:
    """A part under way, and how often it was tried."""

    upload: _Upload
    number: int
    signed: dict[str, Any]
    tries: int = 1


def send_files(
    client: Connection, draft: str, files: list[LocalFile], progress: Progress, connections: int = 0
) -> None:
    """Uploads every file, or leaves it in verification. Raises ClientError; uploaded parts then stay there."""
    total = sum(file.size_bytes for file in files)
    with progress.progress("Sending", is_bytes=True) as meter:
        sending = _Sending(client, draft, _Counter(meter, total), connections or CONNECTIONS)
        try:
            for file in files:
                sending.add(file)
            sending.finish()
        finally:
            sending.stop()
    if sending.resumed_bytes:
        progress.say(f"  {sending.resumed_bytes} bytes were there from an earlier run, and were not sent again.")


class _Sending:
    def __init__(self, client: Connection, draft: str, counter: _Counter, connections: int) -> None:
        self.client, self.draft, self.counter = client, draft, counter
        self.resumed_bytes = 0
        self._connections = connections
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix="part")
        self._under_way: dict[Future[int], _Sent] = {}
        self._stopping = threading.Event()

    def add(self, file: LocalFile) -> None:
        """Begins the file, and hands its parts to the connections as they become free."""
        body = {"release": self.draft, "path": file.path, "size_bytes": file.size_bytes, "sha256": file.sha256}
        told = self.client.post_again("/uploads", body)
        if told["exists"] or told["state"] != "open":
            self.counter.add(file.size_bytes)
            return
        upload = _Upload(file, told["upload_id"], told["part_size"], set(told["missing"]), len(told["missing"]))
        received = sum(part["size_bytes"] for part in told["received"])
        self.resumed_bytes += received
        self.counter.add(received)
        if not upload.missing:
            self._complete(upload)
        elif signed := told.get("signed"):
            self._submit([_Sent(upload, part["number"], part) for part in signed])
        else:
            numbers = sorted(upload.missing)
            for at in range(0, len(numbers), SIGNED_AT_ONCE):
                self._submit(self._sign(upload, numbers[at : at + SIGNED_AT_ONCE]))

    def finish(self) -> None:
        self._settle(0)

    def stop(self) -> None:
        self._stopping.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _sign(self, upload: _Upload, numbers: list[int]) -> list[_Sent]:
        """The parts with their addresses; none when another push completed the file."""
        body = {"numbers": numbers, "sha256": [upload.sha256(number) for number in numbers]}
        try:
            signed = self.client.post_again(f"/uploads/{upload.id}/parts:sign", body)["parts"]
        except Problem as problem:
            if problem.code != "upload_over" or not self._is_complete(upload, self._look(upload)):
                raise
            return []
        return [_Sent(upload, part["number"], part) for part in signed]

    def _look(self, upload: _Upload) -> dict[str, Any]:
        told: dict[str, Any] = self.client.get(f"/uploads/{upload.id}")
        return told

    def _is_complete(self, upload: _Upload, told: dict[str, Any]) -> bool:
        """Whether all of the file is there, as it is when another push of the same folder sent it."""
        if told["state"] in ("open", "aborted"):
            return False
        upload.missing.clear()
        return True

    def _submit(self, parts: list[_Sent]) -> None:
        self._settle(2 * self._connections - len(parts))
        for part in parts:
            self._under_way[self._pool.submit(self._put, part)] = part

    def _settle(self, most: int) -> None:
        """Waits until at most this many parts are in flight, and handles all that ended."""
        while self._under_way:
            is_enough = len(self._under_way) <= max(0, most)
            done, _ = wait(self._under_way, timeout=0 if is_enough else None, return_when=FIRST_COMPLETED)
            if is_enough and not done:
                return
            for future in done:
                self._after(self._under_way.pop(future), future)

    def _after(self, part: _Sent, future: Future[int]) -> None:
        try:
            status = future.result()
        except Unreachable:
            if part.tries >= TRIES:
                raise
            status = 503
        if status >= 300 and self._arrived_otherwise(part):
            status = 200
        if not part.upload.missing:
            return  # another push completed the file
        if status < 300:
            part.upload.missing.discard(part.number)
            if not part.upload.missing:
                self._complete(part.upload)
        elif part.tries < TRIES and (status >= 500 or status in (ENDED, 404, 408, 409, 429)):
            time.sleep(min(LONGEST_PAUSE_S, PAUSE_S * 2 ** (part.tries - 1)))
            for again in self._sign(part.upload, [part.number]):
                again.tries = part.tries + 1
                self._under_way[self._pool.submit(self._put, again)] = again
        else:
            raise _refused(part, status)

    def _arrived_otherwise(self, part: _Sent) -> bool:
        """Whether the part that could not be sent is there all the same, as another push of the same folder sent it."""
        told = self._look(part.upload)
        if self._is_complete(part.upload, told):
            return True
        still_missing = len(told["missing"])
        if still_missing < part.upload.seen_missing:
            part.tries = 1
        part.upload.seen_missing = still_missing
        return told["state"] == "open" and part.number not in told["missing"]

    def _put(self, part: _Sent) -> int:
        offset, size = part.upload.place(part.number)
        sent = 0

        def chunks() -> Iterator[bytes]:
            nonlocal sent
            for chunk in _chunks(part.upload.file, offset, size):
                if self._stopping.is_set():
                    raise _Stopped
                yield chunk
                sent += len(chunk)
                self.counter.add(len(chunk))

        status = 0
        try:
            status = self.client.put_part(part.signed["url"], chunks(), size_bytes=size, headers=part.signed["headers"])
        finally:
            if not 200 <= status < 300:
                self.counter.add(-sent)
        return status

    def _complete(self, upload: _Upload) -> None:
        self.client.post_again(f"/uploads/{upload.id}:complete")


def _refused(part: _Sent, status: int) -> Problem:
    """The end of a part's last try. Only a 4xx answer means that the part itself is wrong."""
    which = f"Part {part.number} of {part.upload.file.path}"
    if status >= 500 or status == 429:
        said = f"{which} was refused {part.tries} times, the last time with {status}: the store does not take it now."
        return Problem(
            status, {"detail": said, "next_step": "Push again later: parts that arrived are not sent again."}
        )
    said = (
        f"{which} was refused ({status}): its bytes have not the sha256 that was announced, or its address is not good."
    )
    return Problem(
        status, {"detail": said, "next_step": "Do not change the folder while it is pushed; then push again."}
    )


def _chunks(file: LocalFile, offset: int, size: int) -> Iterator[bytes]:
    """Just these bytes of the file, in pieces. Raises Mistake when the file has become shorter."""
    with open_file(file.source) as stream:
        stream.seek(offset)
        while size > 0:
            chunk = stream.read(min(CHUNK_BYTES, size))
            if not chunk:
                raise refuse(
                    f"{file.source} has become shorter while it was sent.", "Push again when no program writes to it."
                )
            size -= len(chunk)
            yield chunk


def await_verified(client: Connection, draft: str, progress: Progress) -> None:
    """Returns once no file of the draft waits to be read. Raises Mistake naming the files that were found wrong."""
    with progress.progress("Verifying") as meter:
        began, nudged, most = time.monotonic(), time.monotonic(), 0
        while True:
            seen = client.get(f"/releases/{draft}")
            if seen.get("quarantined"):
                raise refuse(
                    f"{len(seen['quarantined'])} files do not match their announcement.",
                    errors=[
                        {"field": one["path"], "message": one["problem"], "fix": ""} for one in seen["quarantined"]
                    ],
                )
            waiting = seen.get("verifying", [])
            most = max(most, len(waiting))
            meter(most - len(waiting), most, "" if time.monotonic() - began < NUDGE_S else "waits for a worker")
            if not waiting:
                return
            if time.monotonic() - nudged >= NUDGE_S:
                nudged = time.monotonic()
                _nudge(client, draft, seen)
            time.sleep(min(1.0, 0.1 + (time.monotonic() - began) / 10))


def _nudge(client: Connection, draft: str, seen: dict[str, Any]) -> None:
    """Has the files read by another worker, should theirs have given up."""
    for upload in seen.get("uploads", []):
        try:
            client.post_again(f"/uploads/{upload}:complete")
        except Problem as problem:
            if problem.status not in (404, 409):
                raise
