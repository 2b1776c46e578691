"""Drives a server in open loop: every request is sent when it is due, however many are still unanswered."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from serving.ports import InferenceError, InferenceServer
from validators.core.inputs import Arrays
from validators.core.load import Attempt, Burst, Floats

_MOST_THREADS = 256
_PROGRESS_EVERY_S = 0.5
#: From the first look at the clock to the first request: time for the threads and the connection to be there.
_RUN_UP_S = 0.1


def drive(
    server: InferenceServer,
    model: str,
    batches: Sequence[Arrays],
    schedule: Floats,
    *,
    timeout_s: float,
    progress: Callable[[int, int], None],
) -> list[Attempt]:
    """One attempt for each instant of `schedule` (seconds), payloads in turn; returns when all are answered or timed out.

    `progress` runs on the caller's thread, so that a slow one delays no request; what it raises ends the run.
    """
    run = _LoadRun(server, model, batches, schedule, timeout_s, slots=_slots(schedule, timeout_s))
    progress(0, len(schedule))
    attempts = _all_of(run, lambda: progress(run.sent, len(schedule)))
    progress(len(schedule), len(schedule))
    return attempts


def all_at_once(
    server: InferenceServer,
    model: str,
    batches: Sequence[Arrays],
    burst: Burst,
    *,
    beat: Callable[[], None],
) -> list[Attempt]:
    """One attempt for each of the burst's requests, which are all due now, in the order of sending. `beat` runs while that takes long."""
    due = np.zeros(burst.requests)
    return _all_of(_LoadRun(server, model, batches, due, burst.timeout_s, slots=burst.at_once, waits=True), beat)


def _all_of(run: _LoadRun, beat: Callable[[], None]) -> list[Attempt]:
    """The run's attempts by when they were due, once all are answered or timed out. What `beat` raises ends the run."""
    sender = threading.Thread(target=run.send_all, name="load-sender", daemon=True)
    sender.start()
    try:
        sender.join(_PROGRESS_EVERY_S)
        while sender.is_alive():
            beat()
            sender.join(_PROGRESS_EVERY_S)
    finally:
        run.stopped.set()
        sender.join()
    if run.failure is not None:
        raise run.failure
    return sorted(run.attempts, key=lambda attempt: attempt.due_s)


class _LoadRun:
    """One run's state, shared by its sender and its workers. At most `slots` requests are unanswered; `waits` for a free one."""

    def __init__(
        self,
        server: InferenceServer,
        model: str,
        batches: Sequence[Arrays],
        schedule: Floats,
        timeout_s: float,
        *,
        slots: int,
        waits: bool = False,
    ) -> None:
        self.server, self.model, self.batches = server, model, batches
        self.schedule, self.timeout_s, self.slots, self.waits = schedule, timeout_s, slots, waits
        self.attempts: list[Attempt] = []
        self.sent = 0
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self.free = threading.Semaphore(slots)
        self.began = 0.0

    def send_all(self) -> None:
        try:
            self._send_all()
        except BaseException as failure:  # carried to the caller's thread
            self.failure = failure

    def _send_all(self) -> None:
        futures: list[Future[Attempt]] = []
        with ThreadPoolExecutor(self.slots, thread_name_prefix="load") as pool:
            pool.submit(self.server.is_live)
            self.began = time.perf_counter() + _RUN_UP_S
            for at, due in enumerate(self.schedule):
                if self.stopped.wait(max(0.0, self.began + due - time.perf_counter())):
                    break
                self._send(pool, futures, at, float(due))
                self.sent = at + 1
            self.attempts += [future.result() for future in futures]

    def _send(self, pool: ThreadPoolExecutor, futures: list[Future[Attempt]], at: int, due: float) -> None:
        """In open loop, a request that finds every slot taken is not sent and counts as failed: to wait would close the loop."""
        if self.free.acquire(blocking=self.waits):
            futures.append(pool.submit(self._attempt, self.batches[at % len(self.batches)], due))
            return
        now = time.perf_counter() - self.began
        self.attempts.append(Attempt(due, now, now, f"{self.slots} requests were unanswered already"))

    def _attempt(self, batch: Arrays, due: float) -> Attempt:
        sent, error, is_refused = time.perf_counter() - self.began, "", False
        try:
            self.server.infer(self.model, batch, timeout_s=self.timeout_s)
        except InferenceError as failure:
            error, is_refused = f"{failure.message} [{failure.reason}]", failure.reason == "full"
        finally:
            self.free.release()
        return Attempt(due, sent, time.perf_counter() - self.began, error, is_refused)


def _slots(schedule: Floats, timeout_s: float) -> int:
    """As many threads as requests may fall due within one time-out, and some for chance."""
    span = float(schedule[-1]) or 1.0
    return int(min(_MOST_THREADS, len(schedule), math.ceil(len(schedule) / span * timeout_s * 1.2) + 8))
