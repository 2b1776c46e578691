"""A thread that watches the log, on one database connection, while somebody looks: what happened, and who may no longer hear of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import connection

from audit.core.audience import Audience
from audit.core.topics import Happening
from audit.queries import happening_of, happening_rows
from ledger.actions.events import EVENT_CHANNEL
from ledger.queries import head_seq
from rollouts.queries import active_ticks
from rollouts.queries.gateway_reads import route_standing
from serving.environments.queries.reporting import silent_nodes
from sluicegate.live.frames import Why
from sluicegate.live.readers import Reader, audiences, shut_out
from validators.queries import gate_run_progress

log = logging.getLogger(__name__)

#: The log, and what moves without an event, are looked at so often, whatever notices come: some are lost, as behind a pooler.
LOOK_S: Final = 1.0
#: Whether everybody may still read: so often, and at once after an event about a person or a team.
CHECK_S: Final = 30.0
RETRY_S: Final = 1.0
#: Events of one look; the next look follows at once.
MOST_AT_ONCE: Final = 500
#: Subjects of events after which somebody may read more, or less, than before.
_PEOPLE: Final = frozenset({"user", "team", "session", "membership"})
#: What moves without an event, by the topic's first word → rows that begin with (pk, model's slug).
_MOVING: Final[dict[str, Callable[[], Iterable[tuple[Any, ...]]]]] = {
    "rollout": active_ticks,
    "gate-run": gate_run_progress,
    "health": route_standing,
}


@dataclass(frozen=True)
class News:
    """What one look found. `seq` is the last event's number, of these or from before; `moved` has (topic, model's slug), and an
    empty slug for a topic of `OPEN`."""

    seq: int
    happenings: list[Happening] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)
    gone: dict[Reader, Why] = field(default_factory=dict)
    audiences: dict[int, Audience] = field(default_factory=dict)  # by user, if it may have changed
    people_seq: int = 0  # the last event that may have changed who may read what; 0: none of these


class Watcher:
    """Calls `tell` with the news of each look, from its own thread, until `stop`. `readers` says who listens."""

    def __init__(self, readers: Callable[[], Collection[Reader]], tell: Callable[[News], object]) -> None:
        self._readers, self._tell = readers, tell
        self._stopping = threading.Event()
        self._seq: int | None = None
        self._checked_at = time.monotonic()
        self._moving: dict[str, dict[int, tuple[Any, ...]]] = {}
        self._nodes: list[tuple[str, bool]] | None = None  # which of them report
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="log-watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it within a look; `join` waits for that."""
        self._stopping.set()

    def join(self, within_s: float) -> None:
        self._thread.join(within_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._watch()
            except Exception as error:  # on any error the streams fall silent, and pages show that
                if not self._is_failing:
                    log.warning("the log cannot be watched, trying again: %s", error)
                self._is_failing = True
            finally:
                connection.close()
            self._stopping.wait(RETRY_S)

    def _watch(self) -> None:
        connection.ensure_connection()
        session = connection.connection
        session.execute(f"LISTEN {EVENT_CHANNEL}")
        while not self._stopping.is_set():
            news = self._look()
            self._is_failing = False
            self._tell(news)
            if len(news.happenings) < MOST_AT_ONCE:
                for _ in session.notifies(timeout=LOOK_S, stop_after=1):
                    pass

    def _look(self) -> News:
        if self._seq is None:
            self._seq = head_seq()
        happenings = [happening_of(row) for row in happening_rows(self._seq)[:MOST_AT_ONCE]]
        seq = happenings[-1].seq if happenings else self._seq
        about_people = [one for one in happenings if one.subject_type in _PEOPLE or one.verb == "model.changed"]
        news = News(
            seq=seq,
            happenings=happenings,
            moved=self._moved(),
            gone=self._gone(is_due=bool(about_people)),
            audiences=self._audiences(about_people),
            people_seq=about_people[-1].seq if about_people else 0,
        )
        self._seq = seq
        return news

    def _gone(self, *, is_due: bool) -> dict[Reader, Why]:
        now = time.monotonic()
        readers = self._readers()
        if not readers or not (is_due or now - self._checked_at >= CHECK_S):
            return {}
        self._checked_at = now
        return shut_out(readers)

    def _audiences(self, about: list[Happening]) -> dict[int, Audience]:
        """Of everybody who listens, once something happened to people, teams or owners. (Most events are none of these.)"""
        return audiences(reader.user_id for reader in self._readers()) if about else {}

    def _moved(self) -> list[tuple[str, str]]:
        found = []
        for kind, rows in _MOVING.items():
            now = {row[0]: tuple(row[1:]) for row in rows()}
            before = self._moving.get(kind, now)
            for pk, row in now.items():
                if before.get(pk, row) != row:
                    topics = ("health", f"model:{row[0]}") if kind == "health" else (f"{kind}:{pk}",)
                    found += [(topic, row[0]) for topic in topics]
            self._moving[kind] = now
        nodes = silent_nodes()
        if nodes != self._nodes:
            found += [] if self._nodes is None else [("nodes", "")]
            self._nodes = nodes
        return found
