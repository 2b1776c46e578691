"""Long pure work in a child process, which leaves the interpreter lock and the memory of this process alone.

A web process answers many requests at once. Reading one large document in a thread of it slows all of them. The child runs
functions of this project on bytes and plain values. It has no database, a bound on its memory, and one on the processor time of
each call. `python -m ledger.adapters.apart FD` is the child.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from ledger.adapters.linux_processes import die_with_starter
from ledger.core.errors import Invalid, Unavailable

#: Input up to this size is read in the calling process.
SMALL_BYTES: Final = 256 << 10
#: Processor time of one call, in seconds. The costliest document that any limit on size allows takes 20 s.
MOST_CPU_S: Final = 60
#: Address space of the child.
MOST_MEMORY_BYTES: Final = 4 << 30
#: Children at a time of one process, and how long a request waits for its turn.
MOST_CHILDREN: Final = 2
_MOST_WAIT_S: Final = 30.0
_RETRY_AFTER_S: Final = 10
#: Exit of a child without memory; of a child that the kernel ended for its memory, and for its processor time.
_NO_MEMORY: Final = 3
_OVERDRAWN: Final = frozenset({_NO_MEMORY, -signal.SIGKILL, -signal.SIGXCPU})
#: In place of an argument of the kind Through.
_HERE: Final = "\0through"
_ROOT: Final = Path(__file__).resolve().parents[2]
_SLOTS = threading.BoundedSemaphore(MOST_CHILDREN)


class Seekable(Protocol):
    """An open binary file, or the like of one in a store."""

    def read(self, size: int, /) -> bytes: ...

    def seek(self, offset: int, /) -> int: ...


@dataclass(frozen=True)
class Through:
    """An argument that stays in the calling process, where the child reads it piece by piece."""

    readable: Seekable


class Apart:
    """A child process for calls one after another. It starts with the first call, and ends with the context.

    A call raises the function's own errors, Unavailable `readers_busy` and Invalid `too_costly`.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is None or self._line is None:
            return
        self._line.close()
        self._child.kill()
        self._child.wait()
        self._child = self._line = None
        _SLOTS.release()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns the result of `function(*args)`; the child reads an argument of the kind Through in this process.

        The function stands at the top of a module. Arguments and result are plain values and dataclasses.
        """
        line = self._started()
        through = next((one for one in args if isinstance(one, Through)), None)
        try:
            plain = [_HERE if one is through else one for one in args] if through else args
            line.send((function.__module__, function.__qualname__, plain))
            while True:
                word, value = line.recv()
                if word == "returned":
                    return value
                if word == "raised":
                    raise value
                assert through is not None
                through.readable.seek(value[0])
                line.send_bytes(through.readable.read(value[1]))
        except (EOFError, ConnectionError) as error:
            assert self._child is not None
            if (code := self._child.wait()) not in _OVERDRAWN:
                raise RuntimeError(f"the reading process ended with {code}") from error
            said = f"Reading takes more than {MOST_CPU_S} s or {MOST_MEMORY_BYTES >> 30} GiB of memory. Send less."
            raise Invalid("too_costly", said) from error

    def _started(self) -> Connection:
        if self._line is not None:
            return self._line
        if not _SLOTS.acquire(timeout=_MOST_WAIT_S):
            said = "Other large documents are being read. Nothing was changed; try again soon."
            raise Unavailable("readers_busy", said, retry_after_s=_RETRY_AFTER_S)
        try:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                self._child = subprocess.Popen(
                    [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                )
                self._line = Connection(ours.detach())
        except BaseException:
            _SLOTS.release()
            raise
        return self._line


def _environment() -> dict[str, str]:
    kept = {"PYTHONPYCACHEPREFIX": sys.pycache_prefix} if sys.pycache_prefix else {}
    return {"PYTHONPATH": str(_ROOT), "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", **kept}


def run_sized(size_bytes: int, function: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of `function(*args)`, from a child if the input is over SMALL_BYTES. Raises as `Apart.call` does."""
    if size_bytes <= SMALL_BYTES:
        return function(*args)
    with Apart() as apart:
        return apart.call(function, *args)


class _Remote:
    """The file of the calling process."""

    def __init__(self, line: Connection) -> None:
        self._line, self._at = line, 0

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return offset

    def read(self, size: int, /) -> bytes:
        self._line.send(("read", (self._at, size)))
        data = self._line.recv_bytes()
        self._at += len(data)
        return data


def _answer(line: Connection) -> None:
    """Serves calls until the calling process closes the line."""
    while True:
        module, name, args = line.recv()
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + MOST_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        function = getattr(import_module(module), name)
        try:
            result = function(*(_Remote(line) if one == _HERE else one for one in args))
        except MemoryError:
            sys.exit(_NO_MEMORY)
        except Exception as error:
            line.send(("raised", error))
            continue
        line.send(("returned", result))


def _main(fd: int) -> None:
    die_with_starter(signal.SIGKILL)
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(EOFError, ConnectionError):
        _answer(Connection(fd))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
