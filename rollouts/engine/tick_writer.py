"""Writes ticks to the database: effects one by one, holds in batches, and not every quiet one."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog
from django.db import DatabaseError, OperationalError, connection

from ledger.actions.leadership import Leadership, LeadershipLost
from ledger.core.errors import Stale, StateChanged
from rollouts.actions.engine_effects import commit_tick
from rollouts.actions.tick_records import commit_holds
from rollouts.core.tick import Outcome, Tick, outcome_of
from rollouts.engine.timings import DEFAULT_LIMITS, EngineLimits
from rollouts.engine.world import EngineCache, RolloutEntry
from rollouts.models import Rollout

log = structlog.get_logger(__name__)
Hold = tuple[RolloutEntry, Tick, Outcome]


class TickWriter:
    """`bad_attempts` counts the ticks of single rollouts that failed; the others went on."""

    def __init__(self, lead: Leadership, cache: EngineCache, limits: EngineLimits = DEFAULT_LIMITS) -> None:
        self.lead, self.cache, self.limits = lead, cache, limits
        self.bad_attempts = 0

    @contextmanager
    def one(self, rollout: Rollout) -> Iterator[None]:
        """Isolates a rollout: logs any of its errors, and reads the rollout again in the next turn."""
        try:
            yield
        except Stale as error:
            log.warning("engine_fenced_out", rollout=rollout.pk, error=error.message)
            self.lead.lose()
            self.cache.forget()
        except StateChanged as error:
            log.info("tick_dropped", rollout=rollout.pk, error=error.message)
            self.cache.drop(rollout.pk)
        except Exception as error:
            if is_away(error):
                raise
            self.bad_attempts += 1
            self.cache.drop(rollout.pk)
            # rendering a traceback with all its locals would take longer than a tick: plain text
            log.error("rollout_tick_failed", rollout=rollout.pk, traceback=traceback.format_exc())

    def defer(self, entry: RolloutEntry, tick: Tick) -> Hold | None:
        """The hold, for `flush_holds`; None for a quiet hold that stays in memory for now."""
        outcome, limits = outcome_of(tick), self.limits
        every = min(limits.written_every, 1 + len(self.cache.known) // limits.holds_a_turn)
        if outcome.is_quiet and tick.acked_at is None and (tick.number + entry.rollout.pk) % every:
            entry.keep_unwritten(tick, outcome)
            return None
        return entry, tick, outcome

    def flush_holds(self, holds: list[Hold]) -> None:
        """Writes ticks without an effect: many at once or, after an error, one by one."""
        size = self.limits.holds_at_once
        for start in range(0, len(holds), size):
            some = holds[start : start + size]
            try:
                rows = [(entry.rollout, tick, outcome) for entry, tick, outcome in some]
                written = commit_holds(rows, fence=self.lead.fence)
            except DatabaseError as error:
                if is_away(error):
                    raise
                log.warning("holds_written_one_by_one", error=str(error))
                self._one_by_one(some)
            else:
                self._note(some, written)
            self.lead.keep()

    def write_unwritten(self) -> None:
        """Before this engine ends: writes its memory, so that the next engine need not look again."""
        holds = [(entry, *entry.unwritten) for entry in self.cache.known.values() if entry.unwritten is not None]
        with suppress(DatabaseError, LeadershipLost):
            self.flush_holds(holds)

    def _one_by_one(self, holds: list[Hold]) -> None:
        for entry, tick, _ in holds:
            with self.one(entry.rollout):
                entry.mark_written(commit_tick(entry.rollout, tick, fence=self.lead.fence))

    def _note(self, holds: list[Hold], written: set[int]) -> None:
        for entry, _, outcome in holds:
            if entry.rollout.pk in written:
                entry.mark_written(outcome)
            else:
                self.cache.drop(entry.rollout.pk)
                log.info("tick_dropped", rollout=entry.rollout.pk)


def is_away(error: Exception) -> bool:
    """Whether the database is away for all of them; a lock that was not had concerns one rollout alone."""
    return isinstance(error, OperationalError) and (connection.connection is None or connection.connection.closed)
