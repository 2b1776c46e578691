"""What Linux does with processes and tells of them. The standard library only: the process that keeps a server imports it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # Source: linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(death_signal: int) -> Callable[[], None]:
    """What a new child must call before its program begins, so that the kernel ends it when its starter ends.

    The kernel ties this to the *thread* that starts the child: start children from a thread that lives as long as they should.

    Source: prctl(2), PR_SET_PDEATHSIG; a change of user clears it, and subprocess changes the user before it calls this.
    """
    parent = os.getpid()

    def tie() -> None:
        die_with_starter(death_signal)
        if os.getppid() != parent:  # the starter ended before the kernel was told
            os.kill(os.getpid(), signal.SIGKILL)

    return tie


def die_with_starter(death_signal: int) -> None:
    """What a program asks for itself: the kernel ends it when the *thread* that started it ends, also while it is stopped.

    One whose starter ended before that is not told of it.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)


def adopt_orphans() -> None:
    """From now on, a process whose parent dies becomes a child of this process, if it descends from it. Source: prctl(2)."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def started_at_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if it is gone or a zombie.

    A pid together with its start time identifies a process. Raises OSError if /proc cannot be read, such as without a free
    file descriptor.
    """
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def is_running(pid: int, ticks: int) -> bool:
    """Whether this very process still runs, and not another that got its pid. Raises OSError if /proc cannot be read."""
    return pid > 0 and started_at_ticks(pid) == ticks


def children_of(parent: int) -> set[int]:
    """The living children of a process. Raises OSError if /proc cannot be read."""
    return {pid for pid, fields in _visible_stats() if int(fields[1]) == parent and fields[0] != "Z"}


def cpu_s_of(sessions: Collection[int]) -> float:
    """Seconds of processor time that the processes of these sessions, and their ended children, have used.

    Raises OSError if /proc cannot be read.
    """
    stats = (fields for _, fields in _visible_stats() if int(fields[3]) in sessions)
    return sum(sum(map(int, fields[11:15])) for fields in stats) / os.sysconf("SC_CLK_TCK")


def _visible_stats() -> Iterator[tuple[int, list[str]]]:
    """(pid, its `_stat`) of each process that this user may see.

    A /proc mounted with hidepid=1 lists other users' processes and refuses to show them. Source: proc(5).
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(PermissionError):
                if fields := _stat(int(entry.name)):
                    yield int(entry.name), fields


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on: state, parent, …; none of a process that is gone.

    Source: proc_pid_stat(5). The second, the name in parentheses, may have blanks and parentheses of its own, and any bytes:
    a process names itself, and the kernel cuts a name after 15 bytes. A process that ends during the read gives ESRCH. Raises
    OSError if /proc cannot be read.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
