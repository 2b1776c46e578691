"""What the prober has counted in its present term as leader, and the examples that wait to be written."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.utils import timezone

from rollouts.core.shadow import ComparisonOutcome, Tally
from rollouts.models import Mismatch, ProbeTally
from rollouts.queries.prober_tallies import WRONG
from validators.core.evidence import plain

#: Examples of one rollout.
MOST_EXAMPLES = 50


@dataclass(frozen=True)
class Example:
    """A wrong answer of the candidate, for people."""

    rollout_id: int
    source: str  # golden or shadow
    summary: str
    facts: dict[str, Any]
    at: datetime = field(default_factory=timezone.now)


class Tallies:
    """Counts by rollout, from any thread. What was begun in another term, or for a rollout that is not watched, is ignored."""

    def __init__(self) -> None:
        self.epoch = ""
        #: Counts of requests by what was done with them, and of dropped ones by reason, over the life of the process.
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._tallies: dict[int, Tally] = {}
        self._room: dict[int, int] = {}
        self._examples: list[Example] = []

    def begin(self, epoch: str) -> None:
        """A new term: everything counts from nothing."""
        with self._lock:
            self.epoch = epoch
            self._tallies, self._room, self._examples = {}, {}, []

    def watch(self, examples: dict[int, int]) -> None:
        """These rollouts and no others, each with the number of examples that it has already."""
        with self._lock:
            self._tallies = {one: self._tallies.get(one, Tally()) for one in examples}
            self._room = {one: self._room.get(one, MOST_EXAMPLES - there) for one, there in examples.items()}

    def note(self, what: str) -> None:
        with self._lock:
            self.seen[what] += 1

    def record(self, epoch: str, example: Example, outcome: ComparisonOutcome) -> None:
        """Counts an outcome; `example` is kept where the candidate was wrong and there is room."""
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

        A tally is written even when nothing changed: its age says whether the prober lives.
        """
        with self._lock:
            tallies = {one: replace(tally) for one, tally in self._tallies.items()}
            examples = list(self._examples)
        now = timezone.now()
        rows = [
            ProbeTally(rollout_id=one, guard=WRONG, epoch=self.epoch, at=now, **vars(t)) for one, t in tallies.items()
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
