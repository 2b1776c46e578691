"""The candidate is proven worse than stable at the same time, on one guard or more."""

from __future__ import annotations

from collections.abc import Iterator

from accounts.core.quantities import share_text
from rollouts.core.decision import Code, Decision, capital
from rollouts.core.judged import Judged
from rollouts.core.rules import confounders
from rollouts.core.rules.verdicts import rollback_decision
from rollouts.core.snapshot import Snapshot


def worse_than_stable(s: Snapshot) -> Iterator[Decision]:
    """Yields the conviction, or its excuse, of each guard."""
    for judged in s.acting if s.identity.has_stable else ():
        if judged.log_e_worse >= s.policy.bar_worse_of(judged.guard):
            said = _worse(s, judged)
            yield confounders.excuse(s, judged) or rollback_decision(s, Code.WORSE_THAN_STABLE, said, judged)


def _worse(s: Snapshot, judged: Judged) -> str:
    """The counter and the counts that convinced: since the candidate last looked no worse than tolerated."""
    point, counts = judged.convinced or (judged.guard.name, judged.window)
    bad, attempts, bad_stable, stable = map(round, counts)
    return (
        f"{capital(judged.guard.words_at(point))} of {s.identity.candidate_name} are at {share_text(bad / max(1, attempts))} "
        f"({bad} of {attempts} attempts) against {share_text(bad_stable / max(1, stable))} ({bad_stable} of {stable}) on "
        f"{s.identity.stable_name} at the same time: worse beyond doubt."
    )
