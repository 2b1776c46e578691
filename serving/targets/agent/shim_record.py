"""What a server's shim wrote down of it, in the server's folder."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ledger.adapters.linux_processes import is_running
from serving.targets.agent import server_shim

log = logging.getLogger(__name__)
#: Of one record.
MOST_BYTES = 64 << 10
_LOOK_EVERY_S = 0.03
#: Longer than a shim ends for what a server left running.
_NOTED_WITHIN_S = 4.0


def read(file: Path) -> dict[str, Any]:
    """The JSON object in the file; {} without one. Raises OSError if the file is there and cannot be read.

    Without containment a release's code can write the file, so a file over MOST_BYTES is not read.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES} bytes", str(file))
        found = json.loads(data)
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def left_if_unreadable(folder: Path) -> Iterator[None]:
    """Logs what forbids to clear a server's folder, such as another user's files, so that a sweep goes on with the others.

    Raises OSError if this process has no free file descriptor: the sweep is made again.
    """
    try:
        yield
    except OSError as error:
        if error.errno in server_shim.NO_ROOM:
            raise
        log.warning("the leftover server %s stays: %s", folder.name, error)


def record_of(folder: Path) -> dict[str, Any]:
    """{"pid", "server_pid", …, and "exit_code" once the server ended by itself}; {} when nothing was written."""
    return read(folder / server_shim.SHIM_FILE)


def is_alive(record: dict[str, Any]) -> bool:
    """Whether the server of a record lives. Raises OSError if /proc cannot be read."""
    return bool(record) and is_running(record["server_pid"], record["server_ticks"])


def exit_code_of(folder: Path) -> int | None:
    """How a server ended by itself: its exit status, less than 0 for a signal. None while it lives, or where nobody knows.

    A shim notes it once it has ended what the server left; that is waited for, some seconds at most.
    """
    deadline = time.monotonic() + _NOTED_WITHIN_S
    record = record_of(folder)
    while record and "exit_code" not in record and not is_alive(record):
        may_come = is_running(record["pid"], record["ticks"]) and time.monotonic() < deadline
        record = record_of(folder)  # after the shim was looked at: it writes, and is gone
        if not may_come:
            break
        time.sleep(_LOOK_EVERY_S)
    return int(record["exit_code"]) if "exit_code" in record else None
