"""Broker, workers, blob store and Prometheus, each asked for a sign of life, all at once and within one time-out."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import redis
from celery import current_app
from django.conf import settings

from ledger.adapters.deadline_http import DeadlineConnection, shown
from registry.storage import FolderStore, adapter
from serving.traffic.adapters.prometheus import query_status

WITHIN_S = 3.0
_STEP_S = 1.5
#: Each status request sends a message to every worker, so all requests share an answer for this many seconds.
LATEST_S = 3.0


@dataclass(frozen=True)
class Answer:
    """`is_well` None: unknown. `detail` is for people."""

    is_well: bool | None
    detail: str


def ask_all(asks: Mapping[str, Callable[[], Answer]] | None = None, *, within_s: float = WITHIN_S) -> dict[str, Answer]:
    """The answer of each part; unknown after the time limit. Never raises."""
    asks = (
        asks
        if asks is not None
        else {"broker": _broker, "workers": _workers, "store": _store, "prometheus": _prometheus}
    )
    pool = ThreadPoolExecutor(len(asks), thread_name_prefix="status")
    try:
        begun = {name: pool.submit(_guarded, ask) for name, ask in asks.items()}
        wait(begun.values(), timeout=within_s)
        late = Answer(None, f"no answer within {within_s:g} s")
        return {name: one.result() if one.done() else late for name, one in begun.items()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Latest:
    """The answers of `ask`, asked at most every `for_s` seconds in this process; who comes meanwhile waits for the same ones."""

    def __init__(
        self, ask: Callable[[], dict[str, Answer]], for_s: float = LATEST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._for_s, self._clock = ask, for_s, clock
        self._lock = threading.Lock()
        self._found: tuple[float, dict[str, Answer]] | None = None

    def __call__(self) -> dict[str, Answer]:
        with self._lock:
            if self._found is None or self._clock() - self._found[0] >= self._for_s:
                answers = self._ask()
                self._found = self._clock(), answers
            return dict(self._found[1])


def _guarded(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except Exception as error:  # any error is the answer
        return Answer(False, f"{type(error).__name__}: {error}"[:300])


def _broker() -> Answer:
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=_STEP_S, socket_connect_timeout=_STEP_S) as line:
        told = line.info("server")
    version = told.get("valkey_version") or told.get("redis_version", "of unknown version")
    return Answer(True, f"{shown(settings.REDIS_URL)} answers, {version}")


def _workers() -> Answer:
    found = current_app.control.inspect(timeout=_STEP_S).ping() or {}
    if not found:
        return Answer(False, f"no worker answered within {_STEP_S:g} s; a busy worker may be late")
    return Answer(True, f"{len(found)} answered: {', '.join(sorted(found))}"[:300])


def _store() -> Answer:
    store = adapter()
    if isinstance(store, FolderStore):
        if not store.root.is_dir():
            return Answer(None, f"{store.root} is not there yet; the first upload makes it")
        free = shutil.disk_usage(store.root).free
        return Answer(free > 0, f"{store.root}, with {free / 2**30:.1f} GiB free")
    store.exists(f"{'0' * 64}/whole")  # raises if the bucket is unreachable
    return Answer(True, f"{settings.BLOB_STORE} answers")


def _prometheus() -> Answer:
    if not settings.PROMETHEUS_URL:
        return Answer(None, "none is configured (PROMETHEUS_URL); guards with PromQL have no values")
    with DeadlineConnection(settings.PROMETHEUS_URL, time.monotonic() + _STEP_S, 2**20) as line:
        status = query_status(line)
    return Answer(status == 200, f"{shown(settings.PROMETHEUS_URL)} answered {status}")
