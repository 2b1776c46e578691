"""What the engines of tests have in common: every gateway that answers is heard, however busy the machine is."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ledger.actions.leadership import Leadership
from rollouts.core.rules import all_failing, mostly_failing
from rollouts.engine.loop import LEASE, Engine
from serving.traffic.adapters.counter_readers import CounterReaders, StatsPage

#: Ticks in which there is room for all effects of a turn: however long they take, none is deferred to the next.
ROOM = 10_000.0


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests whose turns follow at once: failures in one moment are proof, as if it had lasted."""
    for rule in (all_failing, mostly_failing):
        monkeypatch.setattr(rule, "FAILING_OVER_S", 0.0)


class PatientReaders(CounterReaders):
    """A turn goes on without a gateway that has not answered in time, and a fake's thread may get no processor for so long."""

    def take(self, names: Iterable[str]) -> dict[str, StatsPage]:
        found = super().take(names)
        for reader in self._readers.values():
            reader.is_awaited = True  # also the one that failed the last time
        return found


def hear_everyone(engine: Engine) -> Engine:
    """The engine, which waits for every gateway in every turn."""
    for name in ("_readers", "_early_readers"):
        setattr(engine, name, PatientReaders(engine.counters, wait_s=60.0))
    return engine


def leading() -> Leadership:
    """The leadership of an engine that leads for longer than any test lasts."""
    lead = Leadership(LEASE, "test-engine", 6000.0)
    assert lead.take() or lead.holds()
    return lead
