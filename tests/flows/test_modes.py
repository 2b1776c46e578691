"""What an older version left open in a state folder is closed when the stack starts, and nothing else is touched."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tempfile
from pathlib import Path

import pytest

from ledger.adapters.files import write_whole
from sluicegate.stack.machine import Options
from sluicegate.stack.modes import tighten
from sluicegate.stack.run import EXIT_INFRASTRUCTURE, up
from tests.support.rigs.other_user import STRANGER, as_stranger


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    path.chmod(0o644)
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    state = tmp_path / "state"
    for name in (
        "traffic.jsonl", "envoy.json", "logs/postgres.log", "blobs/ab/cd/abcd", "valkey/appendonlydir/appendonly.aof.1.incr.aof",
        "blob-cache/ab/abcd", "postgres/data/PG_VERSION",
        "postgres/location", "servers/agent.lock", "servers/sentiment-r1-1-00/repository/model.py",
    ):  # fmt: skip
        open_file(state / name)
    for folder in (state, *(path for path in state.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return state


@pytest.mark.parametrize("uid", [0, 1000])
def test_what_was_open_is_closed(state: Path, uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    tighten(state)
    passed = 0o711 if uid == 0 else 0o700
    assert {name: mode(state / name) for name in ("", "postgres", "servers")} == dict.fromkeys(
        ("", "postgres", "servers"), passed
    )
    for name in ("logs", "blobs", "blobs/ab", "blobs/ab/cd", "valkey", "valkey/appendonlydir", "blob-cache"):
        assert mode(state / name) == 0o700, name
    for name in (
        "traffic.jsonl",
        "envoy.json",
        "logs/postgres.log",
        "blobs/ab/cd/abcd",
        "postgres/location",
        "servers/agent.lock",
    ):
        assert mode(state / name) == 0o600, name
    # theirs, below a folder that is closed to others or has modes of its own
    assert mode(state / "blob-cache/ab/abcd") == 0o644
    assert mode(state / "postgres/data") == 0o755


def test_links_lead_nowhere(state: Path, tmp_path: Path) -> None:
    outside = open_file(tmp_path / "outside" / "file")
    (state / "logs" / "link").symlink_to(outside)
    outside.parent.chmod(0o755)
    (state / "linked").symlink_to(outside.parent)
    tighten(state)
    assert mode(outside) == 0o644
    assert mode(outside.parent) == 0o755


@pytest.mark.needs_root
def test_a_file_that_root_left_is_named_with_what_to_do() -> None:
    with tempfile.TemporaryDirectory(prefix="sluicegate-test-") as above:  # pytest's own folders let nobody else pass
        state = Path(above, "state")
        left = open_file(state / "logs" / "web.log")
        Path(above).chmod(0o711)
        for path in (state, left.parent):
            path.chmod(0o755)
            os.chown(path, STRANGER, STRANGER)

        assert as_stranger(lambda: [started(state)]) == [
            f"{EXIT_INFRASTRUCTURE} sluicegate up: {left} is another user's (Operation not permitted). Give it to the one who starts "
            f"the stack, `sudo chown -R {STRANGER} {left}`, or choose another folder with --state.\n"
        ]


@pytest.mark.needs_root
def test_who_may_not_make_the_folder_is_not_told_to_take_another_users() -> None:
    with tempfile.TemporaryDirectory(prefix="sluicegate-test-") as above:
        Path(above).chmod(0o711)
        for state in (Path(above, "state"), Path(above, "state", "within")):
            assert as_stranger(lambda state=state: [started(state)]) == [
                f"{EXIT_INFRASTRUCTURE} sluicegate up: {Path(above, 'state')}: Permission denied. "
                "Choose another folder with --state where that is the folder's fault.\n"
            ]


def started(state: Path) -> str:
    """How `up` ends, and what it says."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = up(Options(state_dir=state))
    return f"{code} {said.getvalue()}"


def test_new_files_are_private_in_every_process_of_the_service(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "x")
    (tmp_path / "folder").mkdir()
    assert (mode(tmp_path / "file"), mode(tmp_path / "folder")) == (0o600, 0o700)
