"""A load that several processes send: it is one load, whoever of them is lost is missed, and none outlives who started it."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledger.adapters.linux_processes import children_of, is_running, started_at_ticks
from serving.ports import HTTP, PreparedRequests
from tests.support.rigs.gateway_rig import wait_until
from tests.support.servers.stub_requests import backend, requests  # noqa: F401
from tests.support.servers.stub_server import Backend
from validators.core.load import Attempt
from validators.execution.runners import generators, load
from validators.execution.runners.generators import GeneratorLost, Generators
from validators.execution.runners.load import IsEnough

FAR_S = 3600.0


def drive(requests: PreparedRequests, schedule: Any, count: int, **how: Any) -> list[Attempt]:
    values: dict[str, Any] = {"timeout_s": 60, "progress": lambda sent: None, "generators": Generators(count), **how}
    return load.drive(requests, np.asarray(schedule, float), **values)


def connects(requests: PreparedRequests, count: int) -> int:
    """What so many processes ask to have a connection, of what the stub counts: over HTTP its health."""
    return count if requests.parcel and requests.parcel.protocol == HTTP else 0


def processes(starter: int) -> set[int]:
    """The generator processes of a starter."""
    told = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children_of(starter)}
    return {pid for pid, line in told.items() if b"validators.execution.runners.generator\0" in line}


def test_every_request_is_sent_once_and_by_one_clock(backend: Backend, requests: PreparedRequests) -> None:
    schedule = np.linspace(0, 0.5, 50)
    learns = Generators(3)
    found = drive(requests, schedule, 3, generators=learns)
    assert [one.at for one in found] == list(range(50)) and backend.hits == 50 + connects(requests, 3)
    assert [one.due_s for one in found] == schedule.tolist()
    assert not any(one.error for one in found)
    assert all(one.due_s <= one.sent_s <= one.done_s for one in found)
    assert learns.used == 3 and processes(os.getpid()) == set()


def test_a_failure_is_told_as_one_process_tells_it(backend: Backend, requests: PreparedRequests) -> None:
    backend.mode = "full"
    found = drive(requests, np.zeros(6), 2)
    alone = drive(requests, np.zeros(6), 1)
    assert [(one.error, one.is_refused) for one in found] == [(one.error, one.is_refused) for one in alone]
    assert found[0].is_refused


def test_nothing_more_is_sent_once_it_is_enough(requests: PreparedRequests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_PROGRESS_EVERY_S", 0.05)
    found = drive(requests, [0.0] * 4 + [FAR_S] * 4, 2, is_enough=lambda attempts, now_s: len(attempts) == 4)
    assert [one.at for one in found] == [0, 1, 2, 3]


def test_all_of_them_together_leave_no_more_unanswered_than_is_said(
    backend: Backend, requests: PreparedRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_PROGRESS_EVERY_S", 0.05)
    with backend.held():

        def looked(attempts: list[Attempt], now_s: float) -> bool:
            if len(attempts) == 7:
                backend.loop.loop.call_soon_threadsafe(backend._free.set)
            return False

        found = drive(requests, np.zeros(10), 2, most_at_once=3, is_enough=looked)
    assert backend.hits == 3 + connects(requests, 2)
    assert [one.is_sent for one in found].count(True) == 3 and [bool(one.error) for one in found].count(False) == 3


def once_four_ended(send: signal.Signals, is_enough: bool) -> IsEnough:
    """Sends one of the processes a signal, when each has answers to tell of."""
    sent: list[int] = []

    def look(attempts: Sequence[Attempt], now_s: float) -> bool:
        if len(attempts) == 4 and not sent:
            sent.append(min(processes(os.getpid())))
            os.kill(sent[0], send)
        return is_enough and bool(sent)

    return look


def test_a_process_that_is_lost_takes_the_run_with_it(
    requests: PreparedRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_PROGRESS_EVERY_S", 0.05)
    with pytest.raises(GeneratorLost, match="ended with -9"):
        drive(requests, [0.0] * 4 + [FAR_S] * 4, 2, is_enough=once_four_ended(signal.SIGKILL, False))
    assert processes(os.getpid()) == set()


def test_a_process_that_does_not_stop_is_not_waited_for(
    requests: PreparedRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_PROGRESS_EVERY_S", 0.05)
    monkeypatch.setattr(generators, "_GRACE_S", 0.1)
    monkeypatch.setattr(generators, "_SILENCE_S", FAR_S)
    with pytest.raises(GeneratorLost, match="did not come to its end"):
        drive(requests, [0.0] * 4 + [FAR_S] * 4, 2, timeout_s=1, is_enough=once_four_ended(signal.SIGSTOP, True))
    assert processes(os.getpid()) == set()


def test_a_process_that_is_stopped_ends_the_run(requests: PreparedRequests, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock stands still, so nothing can be enough, and its last request is due in an hour."""
    monkeypatch.setattr(load, "_PROGRESS_EVERY_S", 0.05)
    monkeypatch.setattr(generators, "_SILENCE_S", 1.0)
    with pytest.raises(GeneratorLost, match="fell silent"):
        drive(requests, [0.0] * 4 + [FAR_S] * 4, 2, is_enough=once_four_ended(signal.SIGSTOP, False))
    assert processes(os.getpid()) == set()


def test_who_has_sent_its_share_holds_up_nobody(
    backend: Backend, requests: PreparedRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has two requests at once, the other its second in an hour: the clock goes on without the first."""
    monkeypatch.setattr(load, "_PROGRESS_EVERY_S", 0.05)
    alone: list[float] = []

    def look(attempts: Sequence[Attempt], now_s: float) -> bool:
        if len(processes(os.getpid())) == 1:
            alone.append(now_s)
        return now_s > alone[0] + 1 if alone else False

    found = drive(requests, [0.0, 0.0, 0.0, FAR_S], 2, is_enough=look)
    assert [one.at for one in found] == [0, 1, 2]


class Cancelled(Exception):
    pass


@pytest.mark.timeout(60)
def test_a_load_that_is_cancelled_waits_for_nobody_to_begin(
    requests: PreparedRequests, program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_PROGRESS_EVERY_S", 0.05)
    monkeypatch.setattr(generators, "_START_S", FAR_S)
    program("exec sleep 3600")
    told: list[int] = []

    def progress(sent: int) -> None:
        told.append(sent)
        if len(told) > 1:
            raise Cancelled

    with pytest.raises(Cancelled):
        drive(requests, np.zeros(4), 2, progress=progress)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """What is started in the place of a generator process, by the lines of a shell."""

    def start(lines: str) -> None:
        found = tmp_path / "program"
        found.write_text(f"#!/bin/sh\n{lines}\n")
        found.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(found))

    return start


def test_a_process_that_cannot_begin_says_why(requests: PreparedRequests, program: Callable[[str], None]) -> None:
    program("echo No module named validators >&2; exit 1")
    with pytest.raises(GeneratorLost, match="No module named validators"):
        drive(requests, np.zeros(4), 2)


def test_a_process_that_ends_in_the_middle_of_a_word_is_lost(
    requests: PreparedRequests, program: Callable[[str], None]
) -> None:
    program("""printf '{"now_s": 0'; echo no room >&2; exit 3""")
    with pytest.raises(GeneratorLost, match="ended with 3: no room"):
        drive(requests, np.zeros(4), 2)


def test_a_process_that_takes_nothing_in_is_ended(
    requests: PreparedRequests, program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its schedule is more than a pipe holds, so that whoever hands it over is held up."""
    monkeypatch.setattr(generators, "_START_S", 0.2)
    program("exec sleep 3600")
    before = children_of(os.getpid())
    with pytest.raises(GeneratorLost, match="had not begun"):
        drive(requests, np.zeros(100_000), 2)
    assert set(children_of(os.getpid())) <= set(before)


STARTER = """
import sys
import numpy as np
from serving.servers.adapters.triton import TritonServer
from validators.execution.runners import generators, load
from validators.execution.runners.generators import Generators
server = TritonServer("127.0.0.1", int(sys.argv[1]), int(sys.argv[2]))
requests = server.prepared("sentiment", [{"x": np.ones((1, 4), np.float32)}])
load.drive(requests, np.array([0.0, 0.0, 3600.0, 3600.0]), timeout_s=60, progress=lambda sent: None, generators=Generators(2))
"""


def test_no_process_goes_on_for_a_starter_that_is_stopped(backend: Backend) -> None:
    ours = STARTER.replace("load.drive", "generators._SILENCE_S = 1.0; load.drive")
    starter = subprocess.Popen([sys.executable, "-c", ours, str(backend.http_port), str(backend.grpc_port)])
    try:
        wait_until(lambda: backend.hits == 2, "a request of each")
        crew = {pid: started_at_ticks(pid) for pid in processes(starter.pid)}
        starter.send_signal(signal.SIGSTOP)
        wait_until(lambda: not any(is_running(pid, ticks or 0) for pid, ticks in crew.items()), "their end")
    finally:
        starter.kill()
        starter.wait()
    assert len(crew) == 2


@pytest.mark.parametrize("is_stopped", [False, True])
def test_no_process_outlives_its_starter(backend: Backend, is_stopped: bool) -> None:
    with backend.held():
        starter = subprocess.Popen([sys.executable, "-c", STARTER, str(backend.http_port), str(backend.grpc_port)])
        try:
            wait_until(lambda: backend.hits == 2, "a request of each")
            crew = {pid: started_at_ticks(pid) for pid in processes(starter.pid)}
            for pid in crew if is_stopped else ():
                os.kill(pid, signal.SIGSTOP)
        finally:
            starter.kill()
            starter.wait()
        assert len(crew) == 2
        wait_until(lambda: not any(is_running(pid, ticks or 0) for pid, ticks in crew.items()), "their end")


def test_so_many_are_taken_as_the_busiest_second_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    even = np.arange(4000) / 1000
    assert Generators().take(np.arange(400) / 100) == 1
    learns = Generators()
    learns.learn(cpu_s=0.8, sent=2000)  # 1000 a second at .4 ms are .4 of a core
    assert learns.take(even) == 1
    assert learns.take(np.concatenate([even, np.full(300, 2.5)])) == 2, "of one second .52"
    learns.learn(cpu_s=9.0, sent=2000)
    assert learns.take(even) == 8, "4.5 cores are nine halves, and there are eight"
    learns.learn(cpu_s=9.0, sent=10)  # tells nothing
    assert learns.take(even) == 8
    assert Generators(3).take(even) == 3 and Generators(3).take(np.zeros(2)) == 2
