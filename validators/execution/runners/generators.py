"""A load from several processes, where one core is not enough: each sends its share of one schedule, by the clock that all of them have.

They are programs of their own and no forks, since a worker that is a pool's child may have no children of its own kind. What they
are to send they get through a pipe; when that ends, as it does with their starter, so do they. Either side takes a long silence of the
other for its end: a process that is stopped keeps its pipes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from serving.ports import Parcel
from validators.core.load import Attempt, Floats

_PROJECT = Path(__file__).resolve().parents[3]
#: CPU time of a request until one was measured, and the share of a core that a process may use and be in time.
USUAL_COST_S, _BUSY_FRAC = 0.0005, 0.5
#: So many requests tell what one costs.
_LEAST_SENT = 200
#: To begin, and from the last time-out to the last word: who takes longer is ended.
_START_S, _GRACE_S = 60.0, 10.0
#: Both sides speak several times as often.
_SILENCE_S = 5.0
#: From the clock's last look to the first request, by when each process is ready to send.
_RUN_UP_S = 0.3
_LOOK_EVERY_S = 0.05


class GeneratorLost(Exception):
    """A generator process ended, or fell silent, before it had sent its share: the run says nothing."""


@dataclass
class Generators:
    """How many processes send a load: `wanted`, or (None) as many as its busiest second takes, by what a request was measured to cost."""

    wanted: int | None = None
    cost_s: float = USUAL_COST_S  # CPU seconds for each request
    used: int = 1  # by the last run

    @classmethod
    def asked(cls, policy: Mapping[str, Any]) -> Generators:
        """As a policy's load section asks."""
        return cls(None if policy["generators"] == "auto" else policy["generators"])

    def take(self, schedule: Floats) -> int:
        """How many are to send this schedule; of themselves no more than this process has cores."""
        busiest = int(np.bincount(schedule.astype(int)).max())
        needed = min(math.ceil(busiest * self.cost_s / _BUSY_FRAC), len(os.sched_getaffinity(0)))
        self.used = max(1, min(self.wanted or needed, len(schedule)))
        return self.used

    def learn(self, cpu_s: float, sent: int) -> None:
        if sent >= _LEAST_SENT:
            self.cost_s = cpu_s / sent


class GeneratorsRun:
    """One run of `count` processes, as a run of one process is: `slots` are shared among them, each request by its place."""

    def __init__(self, parcel: Parcel, schedule: Floats, timeout_s: float, *, slots: int, count: int) -> None:
        self.parcel, self.schedule, self.timeout_s = parcel, schedule, timeout_s
        self.slots = [slots // count + (at < slots % count) for at in range(count)]
        self.attempts: list[Attempt] = []
        self.cpu_s = 0.0
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self._crew: list[_Generator] = []

    @property
    def sent(self) -> int:
        return sum(one.sent for one in self._crew)

    @property
    def now_s(self) -> float:
        """Seconds since the run began, as far as all have told what ended; who sent its whole share has told all of it."""
        going = [one.now_s for one in self._crew if not one.has_ended]
        return min(going, default=max((one.now_s for one in self._crew), default=0.0))

    def send_all(self) -> None:
        try:
            with self._started():
                if self._begin():
                    self._await_all()
        except BaseException as failure:  # carried to the caller's thread
            self.failure = failure

    @contextlib.contextmanager
    def _started(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                for first in range(len(self.slots)):
                    self._crew.append(_Generator(self, first, stack.enter_context(tempfile.TemporaryFile())))
                yield
            finally:
                for one in self._crew:
                    one.end()

    def _begin(self) -> bool:
        """Whether they send: not if it is enough before they are ready."""
        began = time.perf_counter()
        while not all(one.is_ready.wait(_LOOK_EVERY_S) or one.is_over for one in self._crew):
            if self.stopped.is_set():
                return False
            if time.perf_counter() > began + _START_S:
                raise GeneratorLost(f"a generator process had not begun after {_START_S:g} s")
        began = time.perf_counter() + _RUN_UP_S
        for one in self._crew:
            one.heard_at = began  # who was ready early had nothing to tell
        self._say_to_all({"began": began})
        return True

    def _await_all(self) -> None:
        until, is_told, said = time.perf_counter() + float(self.schedule[-1]) + self.timeout_s + _GRACE_S, False, 0.0
        while going := [one for one in self._crew if not one.is_over]:
            going[0].reader.join(_LOOK_EVERY_S)
            now = time.perf_counter()
            for one in self._crew:
                if one.is_over:
                    one.own_cpu_s()  # or it was lost, and the others need not go on
                elif now > one.heard_at + _SILENCE_S:
                    raise GeneratorLost(f"a generator process fell silent: it told nothing for {_SILENCE_S:g} s")
            if self.stopped.is_set() and not is_told:
                is_told, until = True, now + self.timeout_s + _GRACE_S
                self._say_to_all({"stop": True})
            elif now > said + _SILENCE_S / 5:
                said = now
                self._say_to_all({})
            if now > until:
                raise GeneratorLost("a generator process did not come to its end")
        self.cpu_s = sum(one.own_cpu_s() for one in self._crew)
        if not self.stopped.is_set() and len(self.attempts) != len(self.schedule):
            raise GeneratorLost(f"{len(self.attempts)} of {len(self.schedule)} requests were told of")

    def _say_to_all(self, told: dict[str, Any]) -> None:
        for one in self._crew:
            one.say(told)


class _Generator:
    """One of the processes, as its starter sees it. Attempts arrive in the order in which they ended, a few times a second."""

    def __init__(self, run: GeneratorsRun, first: int, last_words: IO[bytes]) -> None:
        self.run, self.first = run, first
        self.sent, self.now_s = 0, 0.0
        self.is_ready = threading.Event()
        self.heard_at = 0.0  # by `time.perf_counter`
        self._cpu_s: float | None = None
        self._last_words = last_words
        self._process = subprocess.Popen(
            [sys.executable, "-m", "validators.execution.runners.generator"],
            cwd=_PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._last_words,
            env={"PATH": os.defpath, "PYTHONPATH": str(_PROJECT)},
        )
        self.reader = threading.Thread(target=self._read, name="load-generator", daemon=True)
        self.reader.start()

    @property
    def is_over(self) -> bool:
        return not self.reader.is_alive()

    @property
    def has_ended(self) -> bool:
        """Whether its whole share was sent, and told of."""
        return self._cpu_s is not None

    def _hand_over(self) -> None:
        run, step = self.run, len(self.run.slots)
        parcel = {name: value for name, value in asdict(run.parcel).items() if name != "bodies"}
        own = run.schedule[self.first :: step]
        self.say(
            {
                "parcel": parcel,
                "sizes": [len(body) for body in run.parcel.bodies],
                "requests": len(own),
                "first": self.first,
                "step": step,
                "slots": run.slots[self.first],
                "timeout_s": run.timeout_s,
                "silence_s": _SILENCE_S,
            },
            *run.parcel.bodies,
            own.tobytes(),
        )

    def say(self, told: dict[str, Any], *more: bytes) -> None:
        """Nothing to one that is gone: that shows when its words end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(told).encode() + b"\n" + b"".join(more))
            self._process.stdin.flush()

    def _read(self) -> None:
        self._hand_over()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith(b"\n"):  # it ended in the middle of a word
                return
            told = json.loads(line)
            for at, sent_s, done_s, error, is_refused, is_sent, came_s in told["attempts"]:
                due_s = float(self.run.schedule[at])
                one = Attempt(due_s, sent_s, done_s, error, is_refused, at, is_sent, tuple(came_s))
                self.run.attempts.append(one)
            self.sent, self.now_s, self._cpu_s = told["sent"], told["now_s"], told["cpu_s"]
            self.heard_at = time.perf_counter()
            self.is_ready.set()

    def own_cpu_s(self) -> float:
        """The CPU seconds that its share took. Raises GeneratorLost for one that did not come to its end."""
        if self._cpu_s is None:
            self._last_words.seek(0)
            said = self._last_words.read().decode(errors="replace").strip().splitlines()
            raise GeneratorLost(
                f"a generator process ended with {self._process.wait(_GRACE_S)}: {' '.join(said[-1:]) or 'it said nothing'}"
            )
        return self._cpu_s

    def end(self) -> None:
        """Ends it if it has not ended."""
        self._process.kill()
        self._process.wait()
        self.reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
