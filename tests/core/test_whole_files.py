"""Files that readers never see half of: what a writer that was killed leaves behind, and what is left alone."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ledger.adapters.files import write_whole

KILLED = """
import os, sys
from pathlib import Path
from ledger.adapters.files import write_whole
os.fsync = lambda _: os.kill(os.getpid(), 9)
write_whole(Path(sys.argv[1]), "half", is_durable=True)
"""


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    write_whole(file, "first")
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False, timeout=120)
        assert done.returncode == -signal.SIGKILL
        drafts = [one for one in names(tmp_path) if one.endswith(".draft")]
        assert len(drafts) == 1 and file.read_text() == "first"  # of this one: it has removed that of the one before
    write_whole(file, "second")
    assert names(tmp_path) == ["told.json"] and file.read_text() == "second"


def test_drafts_of_living_writers_and_of_other_files_stay(tmp_path: Path) -> None:
    alive, dead, other, longer, no_draft = (
        tmp_path / name
        for name in (
            f".told.{'a' * 16}.draft", f".told.{'b' * 16}.draft", f".tol.{'c' * 16}.draft", f".told.next.{'d' * 16}.draft", ".told.x",
        )
    )  # fmt: skip
    for one in (alive, dead, other, longer, no_draft):
        one.write_text("half")
    with alive.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_whole(tmp_path / "told", "whole")
        assert names(tmp_path) == sorted(["told", alive.name, other.name, longer.name, no_draft.name])
    write_whole(tmp_path / "told", "whole")
    assert alive.name not in names(tmp_path)


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    file, failed = tmp_path / "told", list[BaseException]()

    def write(number: int) -> None:
        try:
            for _ in range(50):
                write_whole(file, str(number) * 100)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(one,)) for one in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed and names(tmp_path) == ["told"] and len(set(file.read_text())) == 1


def test_a_draft_that_was_taken_for_a_dead_writers_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[str]()
    lock = fcntl.flock

    def taken_first(opened: int, how: int) -> None:
        drafts = names(tmp_path)
        if len(made) < 2:
            made.append(drafts[0])
            (tmp_path / drafts[0]).unlink()
            if len(made) == 1:
                raise BlockingIOError
        lock(opened, how)

    monkeypatch.setattr("ledger.adapters.files.fcntl.flock", taken_first)
    write_whole(tmp_path / "told", "whole")
    assert len(set(made)) == 2 and names(tmp_path) == ["told"] and (tmp_path / "told").read_text() == "whole"


def test_a_folder_that_may_not_be_read_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:  # a mode does not keep root out
        patched.setattr("ledger.adapters.files.os.listdir", closed)
        write_whole(tmp_path / "told", "whole")
    assert names(tmp_path) == ["told"]


def test_where_there_are_no_locks_files_are_written_and_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("ledger.adapters.files.fcntl.flock", none)
    draft = tmp_path / f".told.{'b' * 16}.draft"
    draft.write_text("half")
    write_whole(tmp_path / "told", b"whole", mode=0o600)
    assert names(tmp_path) == [draft.name, "told"] and os.stat(tmp_path / "told").st_mode & 0o777 == 0o600
