"""What a server holds and uses: its whole family of processes, shared pages by their part, and nothing made up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.targets.agent.process_use import use_of
from serving.targets.core.use import Use

TICKS = os.sysconf("SC_CLK_TCK")


def process(
    proc: Path,
    pid: int,
    parent: int,
    *,
    name: str = "x",
    pss: int | None = None,
    rss: int | None = None,
    anon: int | None = None,
    ticks: tuple[int, ...] = (),
    files: int | None = None,
) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    folder.joinpath("stat").write_text(f"{pid} ({name}) S {parent} {' '.join(map(str, [*range(9), *ticks]))}\n")
    if pss is not None:
        parts = "" if anon is None else f"Pss_Anon: {anon} kB\nPss_Shmem: 2 kB\n"
        folder.joinpath("smaps_rollup").write_text(f"Rss: 99999 kB\nPss: {pss} kB\n{parts}")
    if rss is not None:
        folder.joinpath("status").write_text(f"Name:\tx\nVmHWM:\t 7 kB\nVmRSS:\t {rss} kB\n")
    for at in range(files or 0):
        (folder / "fd").mkdir(exist_ok=True)
        (folder / "fd" / str(at)).touch()


def test_all_that_it_started_counts_and_nothing_of_others(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, pss=100)
    process(tmp_path, 11, 10, name="a) S 1 (b", rss=50)  # names may hold anything
    process(tmp_path, 12, 11, pss=7, rss=1000)
    process(tmp_path, 20, 1, pss=5000)
    process(tmp_path, 21, 20)  # gone as it was looked at, or a kernel thread
    (tmp_path / "self").mkdir()
    found = use_of([10, 20], tmp_path)
    assert {pid: use.memory_bytes for pid, use in found.items()} == {10: 157 * 1024, 20: 5000 * 1024}
    assert found[20] == Use(5000 * 1024), "what cannot be read is None"


def test_a_family_is_summed_and_what_one_of_it_does_not_tell_is_told_of_none(tmp_path: Path) -> None:
    times = (TICKS, 2 * TICKS, 3 * TICKS, 4 * TICKS)  # its own in user and kernel mode, and that of children that ended
    process(tmp_path, 10, 1, pss=100, anon=60, ticks=times, files=3)
    process(tmp_path, 11, 10, pss=50, anon=40, ticks=times, files=2)
    kib = 1024
    assert use_of([10], tmp_path)[10] == Use(150 * kib, 104 * kib, 4 * kib, 20.0, 5)
    process(tmp_path, 12, 11, pss=1)
    assert use_of([10], tmp_path)[10] == Use(151 * kib)


@pytest.mark.parametrize("text", ["", "Pss:\n", "Pss: many kB\n"])
def test_what_cannot_be_read_is_unknown_and_not_nothing(tmp_path: Path, text: str) -> None:
    process(tmp_path, 10, 1)
    (tmp_path / "10" / "smaps_rollup").write_text(text)
    assert use_of([10, 77], tmp_path) == {}


def test_real_processes_are_measured() -> None:
    """A process whose child fills 64 MiB: both count, and the parent alone is smaller."""
    child = "held = bytearray(b'x' * (64 << 20)); print('ready', flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stdout.readline() == b"ready\n"
        found = use_of([started.pid, os.getpid()])
        started.communicate(b"\n", timeout=60)
    one, all_of_us = found[started.pid], found[os.getpid()]
    assert 64 << 20 < one.memory_bytes < all_of_us.memory_bytes  # this process started it
    assert one.own_bytes and 64 << 20 < one.own_bytes < one.memory_bytes
    assert one.cpu_s and one.cpu_s > 0 and one.open_files and one.open_files >= 6, "each has its input and outputs"
