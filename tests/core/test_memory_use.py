"""What a server holds: its whole family of processes, shared pages by their part, and nothing made up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.agent.memory_use import memory_of


def process(
    proc: Path, pid: int, parent: int, *, name: str = "x", pss: int | None = None, rss: int | None = None
) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    folder.joinpath("stat").write_text(f"{pid} ({name}) S {parent} 1 1\n")
    if pss is not None:
        folder.joinpath("smaps_rollup").write_text(f"Rss: 99999 kB\nPss: {pss} kB\nPss_Anon: 1 kB\n")
    if rss is not None:
        folder.joinpath("status").write_text(f"Name:\tx\nVmHWM:\t 7 kB\nVmRSS:\t {rss} kB\n")


def test_all_that_it_started_counts_and_nothing_of_others(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, pss=100)
    process(tmp_path, 11, 10, name="a) S 1 (b", rss=50)  # names may hold anything
    process(tmp_path, 12, 11, pss=7, rss=1000)
    process(tmp_path, 20, 1, pss=5000)
    process(tmp_path, 21, 20)  # gone as it was looked at, or a kernel thread
    (tmp_path / "self").mkdir()
    assert memory_of([10, 20], tmp_path) == {10: 157 * 1024, 20: 5000 * 1024}


@pytest.mark.parametrize("text", ["", "Pss:\n", "Pss: many kB\n"])
def test_what_cannot_be_read_is_unknown_and_not_nothing(tmp_path: Path, text: str) -> None:
    process(tmp_path, 10, 1)
    (tmp_path / "10" / "smaps_rollup").write_text(text)
    assert memory_of([10, 77], tmp_path) == {}


def test_real_processes_are_measured() -> None:
    """A process whose child fills 64 MiB: both count, and the parent alone is smaller."""
    child = "held = bytearray(b'x' * (64 << 20)); print('ready', flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stdout.readline() == b"ready\n"
        found = memory_of([started.pid, os.getpid()])
        started.communicate(b"\n", timeout=60)
    assert 64 << 20 < found[started.pid] < found[os.getpid()]  # this process started it
