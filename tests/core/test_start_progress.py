"""A start is given up when it does nothing, and not because it takes long."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ledger.adapters.linux_processes import cpu_s_of
from sluicegate.stack.progress import LONGEST_START_S, StartProgress, Work


class Start:
    """A process that starts, with a clock of its own."""

    def __init__(self) -> None:
        self.at, self.work = 0.0, Work(0, 0.0)
        self.progress = StartProgress(lambda: self.work, clock=lambda: self.at)

    def goes_on(self, seconds: float, *, log_bytes: int = 0, cpu_s: float = 0.0) -> str:
        self.at += seconds
        self.work = Work(self.work.log_bytes + log_bytes, self.work.cpu_s + cpu_s)
        return self.progress.why_hopeless(60.0)


@pytest.mark.parametrize("signs", [{"log_bytes": 1}, {"cpu_s": 1.8}])
def test_a_start_that_works_is_waited_for(signs: dict[str, float]) -> None:
    start = Start()
    assert [start.goes_on(50, **signs) for _ in range(10)] == [""] * 10  # type: ignore[arg-type]


@pytest.mark.parametrize("cpu_s", [0.0, 0.002])
def test_a_start_that_does_nothing_is_given_up(cpu_s: float) -> None:
    start = Start()
    assert start.goes_on(30, log_bytes=10) == ""
    assert [start.goes_on(1, cpu_s=cpu_s) for _ in range(60)] == [""] * 60
    assert start.goes_on(1, cpu_s=cpu_s) == "91 s, and for 61 s it wrote nothing into its log and hardly computed"


def test_a_start_that_computes_for_ever_ends() -> None:
    start = Start()
    assert start.goes_on(LONGEST_START_S, cpu_s=LONGEST_START_S) == ""
    assert start.goes_on(1, cpu_s=1) == "1800 s"


def test_processor_time_is_that_of_the_sessions_processes_and_their_children() -> None:
    code = (
        "import sys, time; begun = time.process_time()\nwhile time.process_time() < begun + .3: pass\n"
        "print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout and process.stdin and process.stdout.readline() == b"1\n"
        assert cpu_s_of([process.pid]) >= 0.25 and cpu_s_of([]) == 0.0
        process.stdin.close()
