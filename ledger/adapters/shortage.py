"""A machine that is short of files, memory or threads, as the one refusal that every front door renders."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from ledger.core.errors import Unavailable

_SHORT_OF: Final = {
    errno.EMFILE: "open files",
    errno.ENFILE: "open files",
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "memory",
}
#: How Python names a thread that the system does not grant.
_NO_THREAD: Final = "can't start new thread"
_RETRY_AFTER_S: Final = 5
_MOST_CAUSES: Final = 10


def shortage(error: BaseException) -> Unavailable | None:
    """`machine_short` if the error, or a cause of it, is a shortage of files, memory or threads; None for any other."""
    for one in _causes(error):
        short_of = ""
        if isinstance(one, MemoryError):
            short_of = "memory"
        elif isinstance(one, OSError):
            short_of = _SHORT_OF.get(one.errno or 0, "")
        elif isinstance(one, RuntimeError) and _NO_THREAD in str(one):
            short_of = "threads"
        if short_of:
            said = f"The server has no free {short_of} at this moment. Nothing was changed; try again soon."
            return Unavailable("machine_short", said, retry_after_s=_RETRY_AFTER_S)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
