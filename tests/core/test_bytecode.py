"""Processes that are started again find their modules compiled, also if the folder of the sources is read-only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.stack.machine import with_bytecode


def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    (tmp_path / "found.py").write_text("x = 1\n")
    env = with_bytecode({"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}, tmp_path)
    code = "import found; print(found.__spec__.cached)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    kept = Path(done.stdout.strip())
    assert kept.is_relative_to(tmp_path / "bytecode") and kept.exists()


def test_sources_that_cannot_be_written_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert with_bytecode({}, tmp_path) == {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}


def test_what_the_caller_chose_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"PYTHONPYCACHEPREFIX": "/elsewhere", "PYTHONDONTWRITEBYTECODE": "1"}
    assert with_bytecode(chosen, tmp_path) == {"PYTHONPYCACHEPREFIX": "/elsewhere"}
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    assert with_bytecode({"A": "b"}, tmp_path) == {"A": "b"}
