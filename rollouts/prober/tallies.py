"""The prober's counts of its present term as leader, and the examples that wait to be written."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.utils import timezone

from rollouts.core.indicators import PROBE
from rollouts.core.shadow import ComparisonOutcome, Tally
from rollouts.models import Mismatch, ProbeTally
from rollouts.queries.prober_tallies import WRONG
from validators.core.evidence import plain

#: Examples of one rollout.
MOST_EXAMPLES = 50
#: Unchanged counts of stable are written this often (s).
WRITE_STABLE_S = 5.0


@dataclass(frozen=True)
class Example:
    """A wrong answer of the candidate, for people."""

    rollout_id: int
    source: str  # golden or shadow
    summary: str
    facts: dict[str, Any]
    at: datetime = field(default_factory=timezone.now)


class Tallies:
    """Counts by rollout, from any thread. Ignores counts of another term or of an unwatched rollout."""

    def __init__(self) -> None:
        self.epoch = ""
        #: Counts of requests by what was done with them, and of dropped ones by reason, over the life of the process.
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._tallies: dict[int, Tally] = {}
        self._room: dict[int, int] = {}
        self._examples: list[Example] = []
        self._stable: frozenset[int] = frozenset()
        self._written: dict[int, tuple[Tally, datetime]] = {}

    def begin(self, epoch: str) -> None:
        """A new term: everything counts from nothing."""
        with self._lock:
            self.epoch = epoch
            self._tallies, self._room, self._examples, self._written = {}, {}, [], {}

    def watch(self, examples: dict[int, int], stable: Collection[int] = ()) -> None:
        """These rollouts and no others, each with the number of examples that it has already. `stable`: those whose candidate is
        stable now, and is probed."""
        with self._lock:
            self._stable = frozenset(stable)
            self._tallies = {one: self._tallies.get(one, Tally()) for one in examples}
            self._room = {one: self._room.get(one, MOST_EXAMPLES - there) for one, there in examples.items()}

    def note(self, what: str) -> None:
        with self._lock:
            self.seen[what] += 1

    def record(self, epoch: str, example: Example, outcome: ComparisonOutcome) -> None:
        """Counts an outcome; keeps `example` if the candidate was wrong and there is room."""
        with self._lock:
            tally = self._tallies.get(example.rollout_id)
            if epoch != self.epoch or tally is None:
                return
            tally.add(outcome)
            self.seen[f"{example.source}_compared"] += 1
            if outcome.candidate_bad and self._room.get(example.rollout_id, 0) > 0:
                self._room[example.rollout_id] -= 1
                self._examples.append(replace(example, summary=plain(example.summary), facts=plain(example.facts)))

    def write(self) -> None:
        """All tallies in one statement, and the new examples in another; inside the caller's transaction.

        A tally is written even when nothing changed: its age shows whether the prober lives. An unchanged tally of stable is written
        less often.
        """
        now = timezone.now()
        with self._lock:
            tallies = {one: replace(tally) for one, tally in self._tallies.items() if self._is_due(one, tally, now)}
            self._written |= {one: (tally, now) for one, tally in tallies.items()}
            examples, stable = list(self._examples), self._stable
        rows = [
            ProbeTally(
                rollout_id=one, guard=PROBE.name if one in stable else WRONG, epoch=self.epoch, at=now, **vars(tally)
            )
            for one, tally in tallies.items()
        ]
        ProbeTally.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["rollout", "guard"],
            update_fields=["epoch", "at", *vars(Tally())],
        )
        Mismatch.objects.bulk_create(Mismatch(**vars(example)) for example in examples)
        with self._lock:
            del self._examples[: len(examples)]

    def _is_due(self, rollout: int, tally: Tally, now: datetime) -> bool:
        written = self._written.get(rollout)
        if rollout not in self._stable or written is None:
            return True
        return written[0] != tally or (now - written[1]).total_seconds() >= WRITE_STABLE_S
