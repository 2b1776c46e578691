"""Drives a server in open loop: every request is sent when it is due, however many are still unanswered."""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from serving.ports import InferenceError, PreparedRequests
from validators.core.full_server import Burst
from validators.core.load import Attempt, Floats
from validators.execution.runners.generators import Generators, GeneratorsRun

#: Whether enough was sent, of the attempts that ended so far and the seconds since the run began.
IsEnough = Callable[[Sequence[Attempt], float], bool]
_MOST_THREADS = 256
_PROGRESS_EVERY_S = 0.5
#: From the first look at the clock to the first request: time for the threads and the connection to be there.
_RUN_UP_S = 0.1


def drive(
    requests: PreparedRequests,
    schedule: Floats,
    *,
    timeout_s: float,
    progress: Callable[[int], None],
    is_enough: IsEnough = lambda attempts, now_s: False,
    most_at_once: int | None = None,
    generators: Generators | None = None,
) -> list[Attempt]:
    """One attempt for each instant of `schedule` (seconds), `requests` in turn; returns when all are answered or timed out.

    Nothing more is sent once `is_enough` says so, of the attempts that ended so far and the seconds since the run began. Where
    `most_at_once` are unanswered, the next is not sent and counts as failed. `progress` is told how many were sent; both run
    on the caller's thread, so that they delay no request, and what they raise ends the run.

    With `generators` as many processes send as they say, where another process can; they learn what a request costs. Raises
    GeneratorLost for one of them that did not send its share.
    """
    count = generators.take(schedule) if generators and requests.parcel else 1
    slots = min(_slots(schedule, timeout_s, count), most_at_once or count * _MOST_THREADS)
    run: LoadRun | GeneratorsRun
    if count > 1 and requests.parcel:
        run = GeneratorsRun(requests.parcel, schedule, timeout_s, slots=slots, count=min(count, slots))
    else:
        run = LoadRun(requests, schedule, timeout_s, slots=slots)

    def look() -> None:
        progress(run.sent)
        if is_enough(run.attempts, run.now_s):
            run.stopped.set()

    progress(0)
    attempts = _all_of(run, look)
    progress(len(attempts))
    if generators:
        generators.learn(run.cpu_s, len(attempts))
    return attempts


def all_at_once(requests: PreparedRequests, burst: Burst, *, beat: Callable[[], None]) -> list[Attempt]:
    """One attempt for each of the burst's requests, which are all due now, in the order of sending. `beat` runs while that takes long."""
    due = np.zeros(burst.requests)
    return _all_of(LoadRun(requests, due, burst.timeout_s, slots=burst.at_once, waits=True), beat)


def _all_of(run: LoadRun | GeneratorsRun, beat: Callable[[], None]) -> list[Attempt]:
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
    return sorted(run.attempts, key=lambda attempt: attempt.at)


class LoadRun:
    """One run's state, shared by its sender and its workers. At most `slots` requests are unanswered; `waits` for a free one.

    `places`: of the requests in a schedule of which this is a part. `began`, by `time.perf_counter`, is settled when it begins
    unless it was before.
    """

    def __init__(
        self,
        requests: PreparedRequests,
        schedule: Floats,
        timeout_s: float,
        *,
        slots: int,
        waits: bool = False,
        places: range = range(sys.maxsize),
    ) -> None:
        self.requests = requests
        self.schedule, self.timeout_s, self.slots, self.waits = schedule, timeout_s, slots, waits
        self.places = places
        self.attempts: list[Attempt] = []
        self.sent = 0
        self.cpu_s = 0.0
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self.free = threading.Semaphore(slots)
        self.began = math.inf

    @property
    def now_s(self) -> float:
        """Seconds since the run began; none before it did."""
        return max(0.0, time.perf_counter() - self.began)

    def send_all(self) -> None:
        try:
            self._send_all()
        except BaseException as failure:  # carried to the caller's thread
            self.failure = failure

    def _send_all(self) -> None:
        used_s = time.process_time()
        with _little_to_collect(), ThreadPoolExecutor(self.slots, thread_name_prefix="load") as pool:
            pool.submit(self.requests.connect)
            if self.began == math.inf:
                self.began = time.perf_counter() + _RUN_UP_S
            for at, due in zip(self.places, self.schedule.tolist(), strict=False):
                wait_s = self.began + due - time.perf_counter()
                if self.stopped.wait(wait_s) if wait_s > 0 else self.stopped.is_set():
                    break
                self._send(pool, at, due)
                self.sent += 1
        self.cpu_s = time.process_time() - used_s

    def _send(self, pool: ThreadPoolExecutor, at: int, due: float) -> None:
        """In open loop, a request that finds every slot taken is not sent and counts as failed: to wait would close the loop."""
        if self.free.acquire(blocking=self.waits):
            pool.submit(self._attempt, at, due)
            return
        now = time.perf_counter() - self.began
        self.attempts.append(
            Attempt(due, now, now, f"{self.slots} requests were unanswered already", at=at, is_sent=False)
        )

    def _attempt(self, at: int, due: float) -> None:
        sent, error, is_refused = time.perf_counter() - self.began, "", False
        came: Sequence[float] = ()
        try:
            came = self.requests.send(at, timeout_s=self.timeout_s) or ()
        except InferenceError as failure:
            error, is_refused = f"{failure.message} [{failure.reason}]", failure.reason == "full"
        except BaseException as failure:  # of the client itself; carried to the caller's thread
            self.failure = failure
            self.stopped.set()
            return
        finally:
            self.free.release()
        # One at a time, and in the order in which they ended: appending to a list is atomic.
        came_s = tuple(instant - self.began for instant in came)
        self.attempts.append(Attempt(due, sent, time.perf_counter() - self.began, error, is_refused, at, came_s=came_s))


@contextmanager
def _little_to_collect() -> Iterator[None]:
    """What is there already is not looked through for garbage meanwhile: that would hold up whatever is due for a tenth of a second."""
    is_frozen = gc.get_freeze_count() > 0  # by the process itself, for good
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not is_frozen:
            gc.unfreeze()


def _slots(schedule: Floats, timeout_s: float, processes: int) -> int:
    """As many threads as requests may fall due within one time-out, and some for chance."""
    span = float(schedule[-1]) or 1.0
    return int(min(processes * _MOST_THREADS, len(schedule), math.ceil(len(schedule) / span * timeout_s * 1.2) + 8))
