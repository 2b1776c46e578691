"""What /proc shows of processes: names of any bytes, and processes that this user may not see."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.adapters import linux_processes
from ledger.adapters.linux_processes import children_of, cpu_s_of, is_running, started_at_ticks
from serving.targets.agent.process_use import use_of

_PR_SET_NAME = 15
#: A process that names itself; the kernel cuts the name after 15 bytes, here within a letter.
_NAMED = f"""
import ctypes, time
while time.process_time() < 0.05:  # the kernel counts in hundredths of a second
    pass
ctypes.CDLL(None).prctl({_PR_SET_NAME}, "calcul-répété-é".encode(), 0, 0, 0)
print("named", flush=True)
input()
"""


@pytest.fixture
def named() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", _NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        with pytest.raises(UnicodeDecodeError):
            Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
        yield process.pid
        process.kill()


def test_a_process_may_have_a_name_that_is_no_text(named: int) -> None:
    ticks = started_at_ticks(named)
    assert ticks is not None and is_running(named, ticks)
    assert named in children_of(os.getpid()) and cpu_s_of({named}) > 0
    use = use_of([named])[named]
    assert use.memory_bytes > 0 and use.cpu_s is not None


def test_processes_that_this_user_may_not_see_are_left_out(named: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that mounts /proc with hidepid=1. Whether such a process runs is unknown."""
    read, hidden = linux_processes._stat, os.getppid()

    def stat(pid: int) -> list[str]:
        if pid == hidden:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return read(pid)

    monkeypatch.setattr(linux_processes, "_stat", stat)
    assert named in children_of(os.getpid()) and cpu_s_of({named}) > 0
    with pytest.raises(PermissionError):
        is_running(hidden, 1)


def test_a_user_without_a_free_file_descriptor_learns_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(*_: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_bytes", no_file)
    for look in (lambda: started_at_ticks(1), lambda: children_of(1), lambda: cpu_s_of({1})):
        with pytest.raises(OSError, match="Too many open files"):
            look()
