"""Keeps the newest reading of every guard that counts in Prometheus, so that the engine never waits for one.

A query's number may be a sum over many counters, and then a fall of one is hidden by the growth of another: the sum grew by
less than was counted, or by a counter's whole past when it came back. So what is handed on is not that number. It is what was
safely seen to be added since this reader began, from pairs of samples that can be compared; an interval that cannot be is left
out, for both arms and both queries alike.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from django.utils import timezone

from rollouts.core.counter_deltas import Counts, Reading
from rollouts.models import Rollout
from rollouts.queries.prometheus_guards import NOT_CONFIGURED, prometheus_guards, queries_of
from serving.ports import CounterQuery, CounterSample, ExternalMetrics, MetricsError

log = structlog.get_logger(__name__)
#: Prometheus scrapes every 15 s or so; looking a few times in between keeps what is known fresh.
READ_EVERY_S = 2.0
#: For all queries of one guard together.
READ_TIMEOUT_S = 5.0
#: Between samples further apart than this, counters may have begun anew without a trace (see
#: `serving.traffic.adapters.prometheus.RESETS_OVER`).
COMPARABLE_OVER_S = 300.0
#: What was last read longer ago than this, or than three rounds of all guards, no longer counts as known.
OLD_AFTER_S = 15.0
_AT_ONCE = 4

Key = tuple[int, str]  # rollout, guard


@dataclass
class Followed:
    """A guard of a rollout: its four queries, the previous samples, and the sums since `epoch` began."""

    key: Key
    words: str
    queries: tuple[CounterQuery, ...]
    epoch: str
    before: dict[str, CounterSample] = field(default_factory=dict)
    before_at: float = 0.0  # monotonic seconds
    known: dict[str, frozenset[str]] = field(default_factory=dict)  # every series that was ever in a query's sum
    added: dict[str, float] = field(default_factory=dict)
    newest: Reading | str = "its counters have not been read yet"


class PrometheusReader:
    """Reads in threads of its own. `every_s` is the rest between two readings of one guard; without `metrics` it says so.

    `now` is the clock that readings are dated by. `follow` and `latest` are for the engine's thread, and wait for nothing.
    """

    def __init__(
        self,
        metrics: ExternalMetrics | None,
        *,
        every_s: float = READ_EVERY_S,
        now: Callable[[], datetime] = timezone.now,
    ) -> None:
        self.metrics, self.every_s, self._now = metrics, every_s, now
        self._followed: dict[Key, Followed] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._fence = -1
        self._round_s = 0.0
        self._is_stopping = False

    def follow(self, rollouts: Iterable[Rollout], *, fence: int) -> None:
        """From now on exactly these rollouts are read for. `fence` is the leader's token.

        With another token all begins anew: another engine may have taken in counts of its own reader meanwhile.
        """
        wanted = {rollout.pk: rollout for rollout in rollouts}
        with self._lock:
            if fence != self._fence:
                self._followed.clear()
            self._fence = fence
            here = {pk for pk, _ in self._followed}
            for pk in here - set(wanted):
                for key in [key for key in self._followed if key[0] == pk]:
                    del self._followed[key]
            for pk in set(wanted) - here:
                self._begin(wanted[pk])
            is_needed = bool(self._followed) and self.metrics is not None
        if is_needed and self._thread is None and not self._is_stopping:
            self._thread = threading.Thread(target=self._run, name="external-reader", daemon=True)
            self._thread.start()

    def _begin(self, rollout: Rollout) -> None:
        try:
            for guard in prometheus_guards(rollout):
                key = (rollout.pk, guard.name)
                self._followed[key] = Followed(key, guard.words, queries_of(rollout, guard), f"{uuid.uuid4()}")
        except Exception:  # one odd policy must not keep the others from being read; its own rollout holds without it
            log.exception("external_counters_not_followed", rollout=rollout.pk)

    def latest(self, rollout_id: int) -> dict[str, Reading | str]:
        """By guard: the newest reading, or the sentence (without its full stop) why there is none."""
        with self._lock:
            mine = [one for key, one in self._followed.items() if key[0] == rollout_id]
            if self.metrics is None:
                return {one.key[1]: NOT_CONFIGURED for one in mine}
            return {one.key[1]: self._unless_old(one) for one in mine}

    def _unless_old(self, one: Followed) -> Reading | str:
        age_s = time.monotonic() - one.before_at
        if isinstance(one.newest, str) or age_s <= max(OLD_AFTER_S, 3 * self._round_s):
            return one.newest
        return f"{one.words} cannot be told: its counters were last read {age_s:.0f} s ago"

    def read_now(self) -> None:
        """Every guard once, in the caller's thread."""
        with self._lock:
            due = list(self._followed.values())
        for one in due:
            self._read(one)

    def stop(self) -> None:
        """Ends the threads; a reading that is under way ends with its time-out."""
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(READ_TIMEOUT_S + 1)

    def _run(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="external-reader") as pool:
            while not self._is_stopping:
                began = time.monotonic()
                with self._lock:
                    due = list(self._followed.values())
                list(pool.map(self._read, due))
                self._round_s = time.monotonic() - began
                self._wake.wait(max(0.05, began + self.every_s - time.monotonic()))

    def _read(self, one: Followed) -> None:
        if self.metrics is None or self._is_stopping:
            return
        try:
            samples = self.metrics.read(one.queries, timeout_s=READ_TIMEOUT_S)
            newest = taken(one, samples, time.monotonic(), self._now().timestamp())
        except Exception as error:  # a reader that ends over one odd answer would blind every rollout
            log.exception("external_counters_not_read", rollout=one.key[0], guard=one.key[1])
            newest = f"the counters of {one.words} cannot be made out ({type(error).__name__}: {error})"
        with self._lock:
            one.newest = newest


def taken(one: Followed, samples: Mapping[str, CounterSample | MetricsError], now: float, at: float) -> Reading | str:
    """The reading after these samples, with them taken in; or why there is none, and then they are not.

    `now` in monotonic seconds, `at` in seconds since the epoch.
    """
    good: dict[str, CounterSample] = {}
    for query in one.queries:
        sample = samples.get(query.name) or MetricsError("malformed", "the query was not answered")
        if isinstance(sample, MetricsError):
            return f"{one.words} of the {query.name.split()[0]} cannot be told ({sample.reason}: {sample.message})"
        good[query.name] = sample
    arms = list(dict.fromkeys(name.split()[0] for name in good))
    for arm in arms:
        if good[f"{arm} bad"].value > good[f"{arm} total"].value:
            return _too_many(one, arm, good[f"{arm} bad"].value, good[f"{arm} total"].value)
    if one.before and not _are_comparable(one, good, now - one.before_at):
        log.info("external_interval_left_out", rollout=one.key[0], guard=one.key[1])
    elif one.before:
        more = {name: good[name].value - one.before[name].value for name in good}
        for arm in arms:
            if more[f"{arm} bad"] > more[f"{arm} total"]:  # one exporter was scraped before the other: it will catch up
                return _too_many(one, arm, more[f"{arm} bad"], more[f"{arm} total"])
        one.added = {name: one.added.get(name, 0.0) + more[name] for name in good}
    one.before, one.before_at = good, now
    one.known = {name: one.known.get(name, frozenset()) | sample.series for name, sample in good.items()}
    taken_at = at - max(sample.age_s for sample in good.values())
    return Reading(one.epoch, taken_at, _counts(one, "candidate"), _counts(one, "stable"))


def _are_comparable(one: Followed, now: Mapping[str, CounterSample], after_s: float) -> bool:
    """Whether the numbers may be subtracted: none fell, no counter vanished, came back or began anew in between."""
    if after_s > COMPARABLE_OVER_S:
        return False
    for name, sample in now.items():
        before = one.before[name]
        came = sample.series - before.series
        if sample.value < before.value or sample.resets > before.resets:
            return False
        if before.series - sample.series or came & one.known[name]:
            return False
    return True


def _counts(one: Followed, arm: str) -> Counts:
    added = one.added
    return Counts(round(added.get(f"{arm} total", 0.0)), bad={one.key[1]: round(added.get(f"{arm} bad", 0.0))})


def _too_many(one: Followed, arm: str, bad: float, total: float) -> str:
    return (
        f"{one.words} of the {arm} cannot be told (more bad ones than all: {bad:g} of {total:g}); "
        "bad_query and total_query do not count the same thing"
    )
