"""The log of one server: the output of its processes, in a file that the shim keeps small.

The server writes into a pipe, so its code can neither lengthen nor shorten the file. The standard library only: the shim imports it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Final

#: Of the file. Beyond it the file begins anew with the last KEPT_BYTES.
MOST_BYTES: Final = 8 << 20
KEPT_BYTES: Final = 64 << 10
_PIECE: Final = 64 << 10
#: How long is waited for the last words of a server that ended, in seconds.
_LAST_WORDS_S: Final = 1.0


class BoundedLog:
    """Copies the output in `pipe`, a file descriptor, to the end of a file. A full disk loses words and stops no server."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._source, self.pipe = os.pipe()
        self._copies = threading.Thread(target=self._copy, daemon=True)

    def begin(self) -> None:
        """Closes this process's own end of the pipe, so that the copy ends with the server's last process."""
        os.close(self.pipe)
        self._copies.start()

    def finish(self) -> None:
        """Waits until the server's output is in the file, a second at most."""
        self._copies.join(_LAST_WORDS_S)

    def _copy(self) -> None:
        while data := os.read(self._source, _PIECE):
            with contextlib.suppress(OSError):
                append(self._file, data)
        os.close(self._source)


#: The copy and the shim's own words are written one after another.
_ONE_WRITER: Final = threading.Lock()


def append(file: Path, data: bytes) -> None:
    """Adds at most KEPT_BYTES to the file, which stays within MOST_BYTES. Raises OSError."""
    with _ONE_WRITER, file.open("r+b") as log:
        size = log.seek(0, os.SEEK_END)
        if size + len(data) > MOST_BYTES:
            log.seek(max(0, size - KEPT_BYTES))
            data = (b"(earlier lines are gone)\n" + log.read(KEPT_BYTES) + data)[-2 * KEPT_BYTES :]
            log.seek(0)
            log.truncate()
        log.write(data)
