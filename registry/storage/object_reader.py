"""An object of a bucket as a file: read as it is asked for, and sought."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, HTTPClientError

from ledger.core.errors import Unavailable

#: How many lost connections in a row a reader resumes from.
READ_TRIES = 3


class ObjectReader(io.RawIOBase):
    """`size` bytes, of which `stream(start)` gives all from `start` on; a stream that breaks is opened again where it was."""

    def __init__(self, stream: Callable[[int], Any], size: int) -> None:
        self._stream, self._size = stream, size
        self._at = 0
        self._body: Any = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset != self._at:
            self._drop()
            self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._size:
            return 0
        for attempt in range(READ_TRIES):
            try:
                if self._body is None:
                    self._body = self._stream(self._at)
                data = self._body.read(len(buffer))
                if not data:
                    raise OSError("the bucket ended the object early")
                break
            except (BotoCoreError, HTTPClientError, OSError) as error:
                self._drop()
                if attempt == READ_TRIES - 1:
                    raise Unavailable(
                        "store_unreachable", f"The bucket stopped sending in mid-object: {error}. Try again."
                    ) from error
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def close(self) -> None:
        self._drop()
        super().close()
