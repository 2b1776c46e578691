"""A child that is waited for: what it says, why it failed, and that it never outlives who started it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.stack import child


def test_a_child_reads_a_text_and_says_what_it_has_to() -> None:
    assert child.run([sys.executable, "-c", "print(input()[::-1])"], timeout_s=30, text="abc\n") == "cba\n"


@pytest.mark.parametrize(
    ("argv", "timeout_s", "why"),
    [
        ([sys.executable, "-c", "raise SystemExit('no such model')"], 30, "no such model"),
        ([sys.executable, "-c", "raise SystemExit(3)"], 30, "exit status 3"),
        (["/nowhere/python"], 30, "/nowhere/python"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], 0.1, "timed out after 0.1 seconds"),
    ],
)
def test_a_child_that_fails_says_why(argv: list[str], timeout_s: float, why: str) -> None:
    with pytest.raises(child.ChildFailed, match=why):
        child.run(argv, timeout_s=timeout_s)


CHILD = """
import os, sys, time
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(300)
"""
STARTER = (
    "import sys; from sluicegate.stack import child; child.run([sys.executable, '-c', *sys.argv[1:]], timeout_s=300)"
)


def test_a_child_ends_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    pid, root = tmp_path / "pid", Path(__file__).resolve().parents[2]
    starter = subprocess.Popen([sys.executable, "-c", STARTER, CHILD, str(pid)], cwd=root)
    try:
        _until(pid.exists)
        assert _is_there(int(pid.read_text()))
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    _until(lambda: not _is_there(int(pid.read_text())))


def _is_there(pid: int) -> bool:
    """A process that has ended and waits to be reaped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)
