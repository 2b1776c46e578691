"""The end of a server's log: bounded, and without what must not be shown."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from serving.targets.agent import shim_record
from serving.targets.agent.launcher import LocalLauncher
from serving.targets.agent.log_tail import LOOK_EVERY_S, MOST_CHARS, MOST_LINES, LogTail, cleaned, tail_of
from validators.core.load import LATENCY_EDGES_MS, Attempt, summarise


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("loading /srv/state/servers/x/model.py:12", "loading model.py:12"),
        ("\x1b[31mred\x1b[0m \x07bell", "red bell"),
        ("password=hunter2 api_key: abc123", "password=… api_key: …"),
        ("Authorization: Bearer eyJhbGciOi", "Authorization: Bearer …"),
        ("digest " + "a" * 64, "digest …"),
        ("aws_secret_access_key=wJalrX/K7", "aws_secret_access_key=…"),
        ("AWS_SECRET_ACCESS_KEY: 'two words', x", "AWS_SECRET_ACCESS_KEY: …, x"),
        ("DATABASE_URL=postgresql://u:hunter2@db:5432/x", "DATABASE_URL=postgresql://u:…@db:5432/x"),
        ("redis://:p@ss@cache", "redis://:…@cache"),
        ("access_key=AKIA1 credentials: abc", "access_key=… credentials: …"),
        ("the password is hunter2", "the password is …"),
        ("Authorization: Basic dXNlcjpwdw==", "Authorization: Basic …"),
        ('{"password": "hun\\"ter 2", "a": 1}', '{"password": …, "a": 1}'),
        ("token => abc", "token => …"),
        ("tokenizer: 5 words at http://127.0.0.1:8000/v2", "tokenizer: 5 words at http://127.0.0.1:8000/v2"),
        ("the secret is s3cr3t", "the secret is …"),
    ],
)
def test_what_must_not_be_shown_is_not(line: str, shown: str) -> None:
    assert cleaned(line, "s3cr3t") == shown


@pytest.mark.parametrize("is_one_line", [True, False])
def test_of_a_huge_log_only_the_end_is_read(tmp_path: Path, is_one_line: bool) -> None:
    """A release can make its log as large as a disk, for nothing: as a hole."""
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, 2)
        file.write(b"x" * 100_000 if is_one_line else b"\nthe last words\n")
    launcher = LocalLauncher.__new__(LocalLauncher)
    tracemalloc.start()
    said, shown = launcher.log_tail(tmp_path), tail_of(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 << 20
    assert is_one_line or ("the last words" in said and "the last words" in shown)


def test_a_tail_is_bounded_whatever_the_log_is(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text(json.dumps({"secret": "topsecret"}))
    log = tmp_path / "server.log"
    log.write_text("".join(f"line {i} topsecret\n" for i in range(100_000)))
    shown = tail_of(tmp_path)
    assert len(shown) <= MOST_CHARS and shown.count("\n") <= MOST_LINES and "topsecret" not in shown
    assert shown.rstrip().endswith("line 99999 …")
    log.write_bytes(b"\xff\xfe" * 200_000)
    assert len(tail_of(tmp_path)) <= MOST_CHARS


def test_a_log_whose_secret_cannot_be_read_is_shown_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "launch.json").write_text(json.dumps({"secret": "topsecret"}))
    (tmp_path / "server.log").write_text("began with topsecret\n")
    tail = LogTail()
    with monkeypatch.context() as short:
        short.setattr(shim_record, "read", lambda *_, **__: (_ for _ in ()).throw(OSError(24, "Too many open files")))
        assert tail.changed(tmp_path, now_s=0.0) is None
    assert tail.changed(tmp_path, now_s=LOOK_EVERY_S) == "began with …\n"


def test_it_is_looked_at_now_and_then_and_told_when_it_grew(tmp_path: Path) -> None:
    tail, log = LogTail(), tmp_path / "server.log"
    assert tail.changed(tmp_path, now_s=0.0) is None  # there is none
    log.write_text("one\n")
    assert tail.changed(tmp_path, now_s=1.0) is None
    assert tail.changed(tmp_path, now_s=LOOK_EVERY_S) == "one\n"
    assert tail.changed(tmp_path, now_s=2 * LOOK_EVERY_S) is None
    log.write_text("one\ntwo\n")
    assert tail.changed(tmp_path, now_s=3 * LOOK_EVERY_S) == "one\ntwo\n"
    log.write_text("one\ntwo\nlast\n")
    assert tail.changed(tmp_path, now_s=3 * LOOK_EVERY_S) is None
    assert tail.changed(tmp_path, now_s=3 * LOOK_EVERY_S, at_once=True) == "one\ntwo\nlast\n"


def test_a_runs_histogram_counts_every_answer_once_and_takes_the_same_room() -> None:
    rng = np.random.default_rng(1)
    attempts = [Attempt(0.0, 0.0, float(ms) / 1000) for ms in rng.lognormal(3, 2, 5000)]
    attempts += [Attempt(0.0, 0.0, 1.0, "failed"), Attempt(0.0, 0.0, 99.0)]
    found = summarise(attempts, duration_s=10, slo_ms=100)
    assert len(found.latency_counts) == len(LATENCY_EDGES_MS) + 1 and sum(found.latency_counts) == 5001
    within = sum(found.latency_counts[: LATENCY_EDGES_MS.index(100) + 1])
    assert within == len(attempts) - found.over
    assert found.latency_counts[-1] >= 1
