"""What the gateways counted: each is read once a turn for all its models, and none waits for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import structlog

from serving.models import Gateway
from serving.ports import GatewayCounters, GatewayError, TrafficCounters

log = structlog.get_logger(__name__)
#: A gateway may take so long to answer; until it has, it is not asked again.
READ_TIMEOUT_S = 1.0
#: A turn waits no longer than this for a gateway, and not at all for one that gave no answer the last time.
WAIT_S = 0.5

#: What a gateway has counted, by model, or the sentence (without its full stop) why that is not known.
StatsPage = Mapping[str, GatewayCounters] | str


@dataclass
class _Reader:
    """One gateway between two turns."""

    url: str
    asked_at: float = 0.0  # monotonic seconds
    is_busy: bool = False
    is_awaited: bool = True
    answer: StatsPage | None = None  # not taken yet


class CounterReaders:
    """Asks every gateway in a thread of its own. All methods but the threads' own are for one thread."""

    def __init__(self, counters: TrafficCounters, *, wait_s: float = WAIT_S, timeout_s: float = READ_TIMEOUT_S) -> None:
        self.counters, self.wait_s, self.timeout_s = counters, wait_s, timeout_s
        self._readers: dict[str, _Reader] = {}
        self._changed = threading.Condition()
        self._until = 0.0

    def ask(self, gateways: Iterable[Gateway], models: Mapping[int, Collection[str]]) -> None:
        """Begins to read those that are not being read already. `models` are those of each environment."""
        self._until = time.monotonic() + self.wait_s
        for gateway in gateways:
            reader = self._readers.setdefault(gateway.name, _Reader(gateway.admin_url))
            with self._changed:
                if reader.is_busy:
                    continue
                reader.url, reader.asked_at, reader.is_busy = gateway.admin_url, time.monotonic(), True
            wanted = list(models[gateway.environment_id])
            threading.Thread(
                target=self._read, args=(gateway.name, reader, wanted), name=f"counters-{gateway.name}", daemon=True
            ).start()

    def are_settled(self, names: Iterable[str]) -> bool:
        """Whether all of these have answered, or are waited for no longer."""
        readers = [self._readers[name] for name in names if name in self._readers]
        is_late = time.monotonic() >= self._until
        return all(not one.is_busy or is_late or not one.is_awaited or one.answer is not None for one in readers)

    def wait(self) -> None:
        """Returns when some gateway has answered, or when the time to wait is over."""
        left = self._until - time.monotonic()
        if left > 0:
            with self._changed:
                self._changed.wait(min(left, 0.05))

    def take(self, names: Iterable[str]) -> dict[str, StatsPage]:
        """The answers of these gateways, each once. One that has not answered is not waited for next time."""
        found: dict[str, StatsPage] = {}
        for name in names:
            reader = self._readers[name]
            with self._changed:
                answer, reader.answer = reader.answer, None
            reader.is_awaited = answer is not None and not isinstance(answer, str)
            if answer is None:
                waited_s = time.monotonic() - reader.asked_at
                answer = f"gateway {name} has not told its counters yet (timeout: {reader.url}, {waited_s:.1f} s)"
            found[name] = answer
        return found

    def _read(self, name: str, reader: _Reader, models: list[str]) -> None:
        """Touches no database: this is not the caller's thread."""
        answer: StatsPage
        try:
            answer = self.counters.read(gateway=name, admin_url=reader.url, models=models, timeout_s=self.timeout_s)
        except GatewayError as error:
            why = f"{error.reason}: {error.message}"
            answer = (
                f"gateway {name} does not tell its counters ({why}); if it was stopped for good: "
                f"sluicegate api POST /gateways/{name}/remove --if-match '*'"
            )
        except Exception as error:  # the other gateways' counters stay readable
            log.exception("counters_not_read", gateway=name)
            answer = f"the counters of gateway {name} cannot be made out ({type(error).__name__}: {error})"
        with self._changed:
            reader.answer, reader.is_busy = answer, False
            self._changed.notify_all()
