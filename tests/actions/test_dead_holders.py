"""A lease whose holder was killed on this machine is not waited for; every other holder is."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.actions import leases
from ledger.actions.leadership import Leadership
from ledger.adapters import process_names
from ledger.adapters.process_names import has_ended, process_name

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[2]
NAMES = "import sys; from ledger.adapters.process_names import process_name; print(process_name(), flush=True); sys.stdin.read()"


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(a process of this machine, its name)."""
    started = subprocess.Popen(
        [sys.executable, "-c", NAMES], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    with started:
        yield started, started.stdout.readline().strip()
        started.kill()


def test_a_killed_holder_is_succeeded_at_once(other: tuple[subprocess.Popen[str], str]) -> None:
    process, name = other
    token = leases.acquire("engine", name, 600)
    lead = Leadership("engine", process_name(), 600)
    assert not lead.take()
    process.kill()
    process.wait()
    assert lead.take() and lead.token == (token or 0) + 1  # which fences off late writes of the dead holder


def test_a_frozen_holder_is_waited_for(other: tuple[subprocess.Popen[str], str]) -> None:
    process, name = other
    process.send_signal(signal.SIGSTOP)
    leases.acquire("engine", name, 600)
    assert not Leadership("engine", process_name(), 600).take()
    assert leases.holder("engine") == name


def test_of_two_that_see_the_same_death_one_succeeds(other: tuple[subprocess.Popen[str], str]) -> None:
    process, name = other
    leases.acquire("engine", name, 600)
    process.kill()
    process.wait()
    assert leases.acquire("engine", "first", 600, dead=name) == 2
    assert leases.acquire("engine", "second", 600, dead=name) is None


def test_what_cannot_be_told_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    own = process_name()
    host, pid, ticks, machine, random = own.split(":")
    assert not has_ended(own) and len(own) <= 120
    assert has_ended(f"{host}:{pid}:{int(ticks) + 1}:{machine}:{random}")  # the pid was given to another process
    for name in ("", "a", f"{host}:{pid}:{random}", f"{host}:999999:1:{machine[:-1]}0/1:{random}", f"{own}x"):
        assert not has_ended(name)

    def refuse(pid: int, ticks: int) -> bool:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(process_names, "is_running", refuse)
    assert not has_ended(f"{host}:{pid}:{int(ticks) + 1}:{machine}:{random}")
