"""Counts a process's writes to the database, names where each comes from, and ends the process at one of them.

A *write* is a statement that changes rows or sends a notice, and the commit of a transaction that holds one. Its *site*
is the statement's kind and table and the product's functions that made it, without line numbers or values, so that the
same write has the same name in every run. A *point* is one side of the n-th write at a site, counted per process.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

ROOMS = frozenset(
    {
        "sluicegate",
        "web",
        "notifications",
        "audit",
        "rollouts",
        "validators",
        "serving",
        "registry",
        "accounts",
        "ledger",
    }
)
BEFORE, AFTER = "before", "after"
LASTING = "  for good"
#: Every state's one compare-and-set. Who calls it is the writer, or the writes of all lifecycles would be one site.
THE_MOVER = "ledger.actions.transitions"
#: So many callers tell one write of a function from another.
DEPTH = 3
_WRITE = re.compile(r"^\W*(INSERT|UPDATE|DELETE|MERGE|TRUNCATE|COPY)\b", re.I)
_WRITE_IN_WITH = re.compile(r"^\W*WITH\b.*?(?<!FOR )(?<!KEY )\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM)\b", re.I | re.S)
_TABLE = re.compile(r"\b(?:INTO|UPDATE|FROM|TRUNCATE)\s+(?:ONLY\s+)?\"?(\w+)", re.I)


@dataclass(frozen=True)
class Point:
    """`how` is the signal's number: SIGKILL ends the process there, SIGSTOP freezes it."""

    site: str
    nth: int
    side: str
    how: int = int(signal.SIGKILL)

    @property
    def is_freeze(self) -> bool:
        return self.how == signal.SIGSTOP

    def __str__(self) -> str:
        word = "frozen" if self.is_freeze else "killed"
        return f"{word} {self.side} write {self.nth} of {self.site}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Points:
    """Watches every connection of this process.

    Each write's site goes to `trace`, a file, before it is made; after it, where it changed something for good, `LASTING`
    with the number of the site's line: threads write at the same time.
    `torn_after` breaks the product: transactions are committed in their middle, as if nobody had thought of any, after each write
    that begins with this text.
    """

    def __init__(self, trace: str, at: Point | None, *, torn_after: str | None = None) -> None:
        self._trace = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._at, self._torn_after = at, torn_after
        self._seen: Counter[str] = Counter()
        self._lines = 0
        self._lock = threading.Lock()

    def watch(self) -> None:
        """From now on, for connections that are opened later."""
        connection_created.connect(self._opened, weak=False)
        for name, is_commit in (("_commit", True), ("_rollback", False)):
            setattr(BaseDatabaseWrapper, name, self._ending(getattr(BaseDatabaseWrapper, name), is_commit=is_commit))

    def _opened(self, *, connection: Any, **_: Any) -> None:
        connection.written = set()
        if self._statement not in connection.execute_wrappers:  # it connects anew when it was cut off
            connection.execute_wrappers.append(self._statement)

    def _ending(self, real: Callable[[Any], Any], *, is_commit: bool) -> Callable[[Any], Any]:
        def ending(connection: Any) -> Any:
            written, connection.written = getattr(connection, "written", set()), set()
            if not (is_commit and written):
                return real(connection)
            return self._at_site(f"COMMIT {'+'.join(sorted(written))}", lambda: (real(connection), True))

        return ending

    def _statement(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        what = written_by(sql)
        if not what:
            return execute(sql, params, many, context)
        connection = context["connection"]

        def write() -> tuple[Any, bool]:
            answer = execute(sql, params, many, context)
            has_changed = context["cursor"].rowcount != 0
            if has_changed and connection.in_atomic_block:
                connection.written.add(what.partition(" ")[2])
                is_torn = self._torn_after is not None and what.startswith(self._torn_after)
                if is_torn and not connection.savepoint_ids:
                    connection.connection.commit()
            return answer, has_changed and not connection.in_atomic_block

        return self._at_site(what, write)

    def _at_site(self, what: str, write: Callable[[], tuple[Any, bool]]) -> Any:
        site = f"{what} @ {_who()}"
        with self._lock:
            self._seen[site] += 1
            nth = self._seen[site]
            line = self._say(site)
        is_here = self._at is not None and (self._at.site, self._at.nth) == (site, nth)
        if is_here and self._at.side == BEFORE:
            self._end()
        answer, is_lasting = write()
        if is_lasting:
            with self._lock:
                self._say(f"{LASTING} {line}")
        if is_here and self._at.side == AFTER:
            self._end()
        return answer

    def _end(self) -> None:
        """To this thread, which goes no further then; a signal to the process lets it run on until another has taken it."""
        assert self._at is not None
        signal.pthread_kill(threading.get_ident(), self._at.how)

    def _say(self, what: str) -> int:
        os.write(self._trace, f"{what}\n".encode())
        self._lines += 1
        return self._lines - 1


def sites_in(trace: Path) -> list[str]:
    """The sites of the writes in their order."""
    return [line for line in trace.read_text().splitlines() if not line.startswith(LASTING)]


def late_in(lines: list[str], since: int, at: Point | None = None) -> list[str]:
    """The sites of writes that changed something for good after the process was frozen, when it had said `since` lines.

    Those are what it began later, and the write that it was frozen before, `at`. What another thread had on its way by
    then the database had done long before anybody else led, though it is heard of later.
    """
    own = [number for number, line in enumerate(lines) if at is not None and line == at.site]
    frozen_before = own[at.nth - 1] if at is not None and len(own) >= at.nth else None
    lasting = [int(line.removeprefix(LASTING)) for line in lines[since:] if line.startswith(LASTING)]
    return [lines[number] for number in lasting if number >= since or number == frozen_before]


def written_by(sql: str) -> str:
    """`INSERT ledger_event`, or nothing for a statement that writes nothing."""
    if found := _WRITE.match(sql) or _WRITE_IN_WITH.match(sql):
        table = _TABLE.search(sql, found.start(1))
        return f"{found[1].split()[0].upper()} {table[1] if table else '?'}"
    return "NOTIFY gateways" if "pg_notify(" in sql else ""


def _who() -> str:
    """The innermost functions of the product on the stack, the writer first: `append_event < move < _weigh`."""
    frame, names = sys._getframe(1), []
    while frame is not None and len(names) < DEPTH:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in ROOMS and module != THE_MOVER:
            name = frame.f_code.co_qualname.replace(".<locals>", "")
            names.append(f"{module}.{name}" if not names else name)
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(names) or "nobody"
