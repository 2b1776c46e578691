"""Runs steps in child processes, and ends a child that takes longer than its step may."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from benchmarks.gpu_proof.outcome import Outcome, Step, Verdict, unknown
from benchmarks.gpu_proof.parts import ROOT

#: For the end of a stage's servers, and then of the process itself, in seconds.
_CLOSES_S = 45.0
Record = Callable[[Step, Outcome], None]
CHILD = (sys.executable, "-m", "benchmarks.gpu_proof.child")


def run_all(
    steps: Sequence[Step],
    given: Mapping[str, Any],
    record: Record,
    *,
    until_s: float,
    missing: Mapping[str, str],
    child: Sequence[str] = CHILD,
) -> None:
    """Calls `record` with the outcome of every step. Of a stage, steps without their parts come first.

    Args:
        given: part and configuration, as `child.py` reads them; `config.earlier` grows by the numbers of each step.
        until_s: the end of the whole part, by `time.monotonic`. Steps that are left then are unknown.
        missing: why a part is not here, by its name.
    """
    for _, staged in groupby(steps, key=lambda step: step.stage):
        left = []
        for step in staged:
            why = [f"{name}: {missing[name]}" for name in step.needs if name in missing]
            if why:
                record(step, unknown(f"Not run, because a part is missing: {'; '.join(why)}."))
            else:
                left.append(step)
        while left:
            left = _run_stage(left, given, record, until_s, child)


def _run_stage(
    left: list[Step], given: Mapping[str, Any], record: Record, until_s: float, child: Sequence[str]
) -> list[Step]:
    """Returns the steps that are left after a step that ended its process. They need another process."""
    if time.monotonic() >= until_s:
        for step in left:
            record(step, unknown("Not run: the time of the part was over."))
        return []
    with tempfile.TemporaryFile("w+") as words:
        process = subprocess.Popen(
            child,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                json.dump({**given, "steps": [step.name for step in left]}, process.stdin)
                process.stdin.close()
            lines = _Lines(process)
            for at, step in enumerate(left):
                began = time.monotonic()
                line = lines.next(min(step.budget_s, max(0.0, until_s - time.monotonic())))
                if not line:
                    why = "ended" if line is None else f"did not end within {min(step.budget_s, 600):g} s"
                    outcome = unknown(f"The step's process {why}. {_last_words(words)}".strip())
                    record(step, replace(outcome, seconds=round(time.monotonic() - began, 2)))
                    return left[at + 1 :]
                found = json.loads(line)
                given["config"]["earlier"][step.name] = found["numbers"]
                record(step, Outcome(Verdict(found["verdict"]), found["sentence"], found["numbers"], found["seconds"]))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSES_S)
            return []
        finally:
            _end(process)


class _Lines:
    """Lines of a process's standard output, each within a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._file = process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._file, selectors.EVENT_READ)
        self._rest = b""

    def next(self, within_s: float) -> str | None:
        """The next line; an empty string if none came within the time, None at the end of the output."""
        deadline = time.monotonic() + within_s
        while b"\n" not in self._rest:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                return ""
            more = os.read(self._file, 1 << 20)
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()


def _end(process: subprocess.Popen[str]) -> None:
    """Ends the process and all of its group. Servers have groups of their own: they end by the lock that the process held."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()


def _last_words(file: Any) -> str:
    file.seek(0)
    lines = [line.strip() for line in file.read().splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
