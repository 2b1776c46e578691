"""A guard's evidence and the instants at which traffic was taken away, as JSON. Instants in UTC, e-values as log E."""

from __future__ import annotations

from datetime import datetime

from accounts.api.shapes import Shape, described


class EvidenceOut(Shape):
    """One guard's numbers in the present step: attempts, how many were bad, and what they prove."""

    bad_candidate: int
    candidate: int
    bad_stable: int
    stable: int
    phi: float = described("dispersion: 1 where failures come one by one")
    log_e_worse: float
    log_e_fine: float
    log_e_better: float
    log_e_over: float = described("the candidate is over the objective")
    log_e_stable_over: float


class RollbackTimesOut(Shape):
    """When traffic was taken away, all measured. Durations are null until both ends are known."""

    first_bad_at: datetime | None
    decided_at: datetime | None
    zero_at: datetime | None = described("when every gateway had acknowledged weight 0")
    confirmed_at: datetime | None = described("when counters showed no more traffic on it")
    fault_to_zero_s: float | None
    decision_to_zero_s: float | None


class BadCountsOut(Shape):
    """Attempts of both arms, and how many were bad."""

    bad_candidate: int
    candidate: int
    bad_stable: int
    stable: int


class CrossingOut(RollbackTimesOut):
    """A first crossing: traffic was taken away, and the candidate got another look."""

    code: str = described("reason code of the decision")
    reason: str
    said: str = described("a short sentence with the counts")
    words: str = described("the guard in words")
    counts: BadCountsOut | None = described("that convinced")
    state: str = described("the state that it was in")
    step_index: int
    weight_bp: int = described("the weight that was taken away")
    begun_by: str = described("the person who ended the wait after it; empty if the engine did")


class SecondLookOut(Shape):
    """How often evidence must speak against the candidate; see docs/rollouts.md, "A second look"."""

    look: int = described("the look of now, counted from 1")
    looks: int
    after_s: float = described("between two looks")
    is_waiting: bool = described("traffic is away, and the next look has not begun")
    begins_at: datetime | None = described("at the earliest; null where it does not wait for a time")
    crossings: list[CrossingOut]
    conviction: RollbackTimesOut | None = described(
        "the clock of the rollback after a crossing; null if there was none"
    )


class ClockOut(RollbackTimesOut):
    """The clock of the first time that traffic was taken away, all measured."""

    bad_candidate_attempts: int
    bad_candidate_attempts_by_guard: dict[str, int]
