"""How ticks get into the database: effects one by one, holds many at once, and of quiet ones not every one."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog
from django.db import DatabaseError, OperationalError, connection

from accounts.core.errors import Stale, StateChanged
from rollouts.actions.engine_effects import commit_tick
from rollouts.actions.tick_records import Outcome, Tick, commit_holds, outcome_of
from rollouts.engine.leadership import Leadership, LeadershipLost
from rollouts.engine.world import EngineCache, RolloutEntry
from rollouts.models import Rollout

log = structlog.get_logger(__name__)
#: So many holds are written by one statement: enough to be cheap, few enough to be short.
HOLDS_AT_ONCE = 200
#: Over so many rollouts, quiet ticks are written in turns, each rollout's every so many ticks at the latest.
HOLDS_A_TURN, WRITTEN_EVERY = 250, 5

Hold = tuple[RolloutEntry, Tick, Outcome]


class TickWriter:
    """`bad_attempts` counts what broke of single rollouts; the others went on."""

    def __init__(self, lead: Leadership, book: EngineCache) -> None:
        self.lead, self.book = lead, book
        self.bad_attempts = 0

    @contextmanager
    def one(self, rollout: Rollout) -> Iterator[None]:
        """Whatever goes wrong with one rollout stays with it, and it is read again."""
        try:
            yield
        except Stale as error:
            log.warning("engine_fenced_out", rollout=rollout.pk, error=error.message)
            self.lead.lose()
            self.book.forget()
        except StateChanged as error:
            log.info("tick_dropped", rollout=rollout.pk, error=error.message)
            self.book.drop(rollout.pk)
        except Exception as error:
            if is_away(error):
                raise
            self.bad_attempts += 1
            self.book.drop(rollout.pk)
            # rendering a traceback with all its locals would take longer than a tick: plain text
            log.error("rollout_tick_failed", rollout=rollout.pk, traceback=traceback.format_exc())

    def put_off(self, known: RolloutEntry, tick: Tick) -> Hold | None:
        """The tick with what is to be written of it; None for a quiet one that stays in memory for now."""
        outcome = outcome_of(tick)
        every = min(WRITTEN_EVERY, 1 + len(self.book.known) // HOLDS_A_TURN)
        if outcome.is_quiet and tick.acked_at is None and (tick.number + known.rollout.pk) % every:
            known.keep(tick, outcome)
            return None
        return known, tick, outcome

    def flush_holds(self, holds: list[Hold]) -> None:
        """Writes ticks that change nothing but what is known: many at once or, should that fail, one by one."""
        for start in range(0, len(holds), HOLDS_AT_ONCE):
            some = holds[start : start + HOLDS_AT_ONCE]
            try:
                written = commit_holds([(tick, outcome) for _, tick, outcome in some], fence=self.lead.fence)
            except DatabaseError as error:
                if is_away(error):
                    raise
                log.warning("holds_written_one_by_one", error=str(error))
                self._one_by_one(some)
            else:
                self._note(some, written)
            self.lead.keep()

    def write_unwritten(self) -> None:
        """Before this engine goes: what it kept in memory, so that the next one need not look again."""
        holds = [(known, *known.unwritten) for known in self.book.known.values() if known.unwritten is not None]
        with suppress(DatabaseError, LeadershipLost):
            self.flush_holds(holds)

    def _one_by_one(self, holds: list[Hold]) -> None:
        for known, tick, _ in holds:
            with self.one(known.rollout):
                known.wrote(commit_tick(tick))

    def _note(self, holds: list[Hold], written: set[int]) -> None:
        for known, _, outcome in holds:
            if known.rollout.pk in written:
                known.wrote(outcome)
            else:
                self.book.drop(known.rollout.pk)
                log.info("tick_dropped", rollout=known.rollout.pk)


def is_away(error: Exception) -> bool:
    """Whether the database is away for all of them; a lock that was not had concerns one rollout alone."""
    return isinstance(error, OperationalError) and (connection.connection is None or connection.connection.closed)
