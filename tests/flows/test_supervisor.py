"""The supervisor with small processes in place of the real ones: order, restarts, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DRIVER = """
import asyncio, sys, time
from pathlib import Path
from sluicegate.stack import processes
from sluicegate.stack.processes import Process, StartFailed, Supervisor

processes.WELL_AFTER_S = 600.0  # however slow the machine is
state = Path(sys.argv[1])
def note(name, line): print(f"{name}: {line}", flush=True)
def sh(script): return ["/bin/sh", "-c", script]
order = f"{state}/order"
forever = "while :; do sleep .05; done"
def noted(name):
    return f"trap 'echo -{name} >> {order}; exit 0' TERM; echo +{name} >> {order}; touch {state}/{name}; {forever}"
def process(name, level, script=None, **more):
    return Process(name, level, sh(script or noted(name)), is_ready=lambda: (state / name).exists(), **more)
once = Process("once", 1, sh(f"echo once >> {order}"), runs_once=True)
def deaf(grace_s):
    is_deaf = state / "is_deaf"  # before that it would end as told
    return Process("deaf", 1, sh(f"trap '' TERM; touch {is_deaf}; {forever}"), grace_s=grace_s, is_ready=is_deaf.exists)
listening = [sys.executable, "-c", "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
             "time.sleep(600)"]
def on_port(script=None, **more):
    return Process("web", 1, sh(script) if script else [*listening, sys.argv[3]], ports=[int(sys.argv[3])], **more)
machine = {
    "listening": lambda: [process("store", 0), on_port()],
    "robbed": lambda: [process("store", 0), on_port(forever, is_ready=lambda: True)],
    "orderly": [process("store", 0), once, process("web", 2), process("gate", 3)],
    "stubborn": [process("store", 0), deaf(0.3)],
    "littering": [process("store", 0), Process("litter", 1, sh(f"setsid sleep 300 & echo $! > {state}/stray; wait"))],
    "fickle": [process("store", 0), Process("short", 1, sh("echo gone >&2; exit 4"), settles_s=1.0)],
    "deaf": [process("store", 0), deaf(600)],
    "stuck": [process("store", 0), Process("idle", 1, sh("echo waits >&2; sleep 600"), is_ready=lambda: False, ready_s=1.0)],
    "broken": [process("store", 0), Process("bad", 1, sh("echo no such model >&2; exit 3"), is_ready=lambda: False)],
}[sys.argv[2]]
machine = machine() if callable(machine) else machine
supervisor = Supervisor(machine, state, say=note)
try:
    asyncio.run(supervisor.run(lambda: note("all", "READY")))
except StartFailed as error:
    print(error, flush=True)
    sys.exit(2)
"""


class Driven:
    """A supervisor in a process of its own, and what it said."""

    def __init__(self, state: Path, machine: str, port: int = 0) -> None:
        self.state = state
        self.said = state / "said"
        with self.said.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, str(state), machine, str(port)],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def until(self, is_so: Callable[[], object], within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not is_so():
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.02)

    def until_ready(self) -> None:
        self.until(lambda: "READY" in self.said.read_text())

    def pids(self) -> dict[str, int]:
        return dict(json.loads((self.state / "processes.json").read_text()))

    def order(self) -> list[str]:
        return (self.state / "order").read_text().split()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., Driven]]:
    driven: list[Driven] = []

    def start(machine: str, port: int = 0) -> Driven:
        driven.append(Driven(tmp_path, machine, port))
        return driven[-1]

    yield start
    for one in driven:
        one.process.kill()
        one.process.wait()


def test_levels_start_upwards_and_stop_downwards(drive: Callable[[str], Driven]) -> None:
    driven = drive("orderly")
    driven.until_ready()
    assert driven.order() == ["+store", "once", "+web", "+gate"]
    driven.process.send_signal(signal.SIGINT)
    assert driven.process.wait(60) == 0
    assert driven.order()[4:] == ["-gate", "-web", "-store"]
    assert not (driven.state / "processes.json").exists()


def test_each_part_is_told_when_it_is_ready(drive: Callable[[str], Driven]) -> None:
    driven = drive("orderly")
    driven.until_ready()
    said = driven.said.read_text().splitlines()
    assert [line.split(",")[0] for line in said] == [
        "store: ready",
        "once: done",
        "web: ready",
        "gate: ready",
        "all: READY",
    ]
    assert all(re.fullmatch(r"\w+: (ready|done), \d+\.\d s", line) for line in said[:-1])


def test_who_must_listen_is_ready_once_it_does(drive: Callable[..., Driven]) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    driven = drive("listening", port)
    driven.until_ready()
    socket.create_connection(("127.0.0.1", port), timeout=30).close()


def test_a_port_that_another_program_has_fails_the_start_though_it_answers(drive: Callable[..., Driven]) -> None:
    """The other's answers look like readiness: two stacks said READY for one port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        driven = drive("robbed", port)
        assert driven.process.wait(60) == 2
    said = driven.said.read_text()
    assert f"web cannot have port {port}: another program took it" in said
    assert "READY" not in said


def test_a_killed_child_comes_back_and_others_stay(drive: Callable[[str], Driven]) -> None:
    driven = drive("orderly")
    driven.until_ready()
    before = driven.pids()
    os.kill(before["web"], signal.SIGKILL)
    driven.until(lambda: driven.pids().get("web", before["web"]) != before["web"])
    after = driven.pids()
    assert is_alive(after["web"])
    assert (after["store"], after["gate"]) == (before["store"], before["gate"])
    assert "web: ended with SIGKILL; starts again at once" in driven.said.read_text()
    assert driven.order().count("once") == 1


def test_a_child_that_ends_again_waits_longer_each_time(drive: Callable[[str], Driven]) -> None:
    driven = drive("orderly")
    driven.until_ready()
    for when in ("at once", "in 0.2 s", "in 0.4 s"):
        before = driven.pids()["web"]
        os.kill(before, signal.SIGKILL)
        driven.until(lambda before=before: driven.pids().get("web", before) != before)
        assert f"web: ended with SIGKILL; starts again {when}" in driven.said.read_text()


def test_a_killed_supervisor_leaves_nothing_running(drive: Callable[[str], Driven]) -> None:
    driven = drive("orderly")
    driven.until_ready()
    pids = driven.pids()
    assert pids and all(is_alive(pid) for pid in pids.values())
    driven.process.kill()
    driven.until(lambda: not any(is_alive(pid) for pid in pids.values()))


def test_a_deaf_child_is_killed_after_its_grace(drive: Callable[[str], Driven]) -> None:
    driven = drive("stubborn")
    driven.until_ready()
    pids = driven.pids()
    driven.process.terminate()
    assert driven.process.wait(60) == 0
    assert "deaf: did not end within 0.3 s and is killed" in driven.said.read_text()
    assert not any(is_alive(pid) for pid in pids.values())


def test_what_children_leave_running_is_ended_too(drive: Callable[[str], Driven]) -> None:
    driven = drive("littering")
    driven.until_ready()
    driven.until(lambda: (driven.state / "stray").exists() and (driven.state / "stray").read_text().strip())
    stray = int((driven.state / "stray").read_text())
    assert is_alive(stray)
    driven.process.terminate()
    assert driven.process.wait(60) == 0
    assert not is_alive(stray)


def test_a_process_that_never_becomes_ready_is_named_with_its_last_words(drive: Callable[[str], Driven]) -> None:
    driven = drive("broken")
    assert driven.process.wait(60) == 2
    said = driven.said.read_text()
    assert "bad ends instead of becoming ready" in said
    assert "no such model" in said
    assert driven.order() == ["+store", "-store"]


def test_a_process_that_does_nothing_before_it_is_ready_is_named_with_its_last_words(
    drive: Callable[[str], Driven],
) -> None:
    driven = drive("stuck")
    assert driven.process.wait(60) == 2
    said = driven.said.read_text()
    assert re.search(
        r"idle is not ready after \d+ s, and for \d+ s it wrote nothing into its log and hardly computed", said
    )
    assert "waits" in said and driven.order() == ["+store", "-store"]


def test_a_process_that_ends_before_it_has_settled_is_not_ready(drive: Callable[[str], Driven]) -> None:
    driven = drive("fickle")
    assert driven.process.wait(60) == 2
    assert "short ends instead of becoming ready" in driven.said.read_text()


def test_a_second_interrupt_does_not_wait_for_anybody(drive: Callable[[str], Driven]) -> None:
    driven = drive("deaf")
    driven.until_ready()
    pids = driven.pids()
    driven.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert driven.process.poll() is None  # it waits for the deaf one
    driven.process.send_signal(signal.SIGINT)
    assert driven.process.wait(30) == 0
    assert not any(is_alive(pid) for pid in pids.values())
