"""The candidate is proven over the objective, and stable is not at the same time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from accounts.core.quantities import share_text
from rollouts.core.decision import Code, Decision, capital
from rollouts.core.judged import Judged
from rollouts.core.rules import confounders
from rollouts.core.rules.verdicts import burns, is_fix, rollback_decision, shared_incident
from rollouts.core.snapshot import Snapshot

#: Fewer attempts of stable than this say nothing about whether stable burns too.
LEAST_STABLE_ATTEMPTS = 20
#: For an objective the candidate is blamed only where it also looks worse than stable at the same time, ten to one: in an
#: incident of both arms the one with more traffic is proven over it first. Source: docs/calibration.md, shared incidents.
BLAME_LOG_E = math.log(10)


def over_objective(s: Snapshot) -> Iterator[Decision]:
    """Yields the conviction, or its excuse, of each guard."""
    for judged in s.acting:
        if judged.log_e_over >= s.policy.bar_worse_of(judged.guard) and (found := _over(s, judged)):
            yield found


def _over(s: Snapshot, judged: Judged) -> Decision | None:
    """The candidate is over the objective. It is blamed only where stable, at the same time, is not over it too."""
    if s.identity.has_stable and judged.stable < LEAST_STABLE_ATTEMPTS:
        return None
    if is_fix(s, judged):
        return None
    over = f"at {share_text(judged.rate_candidate)} on {s.identity.candidate_name}, over {share_text(judged.limit)}"
    if judged.is_stable_over:
        return shared_incident(s, f"{judged.guard.words} are {over}, and {burns(s, judged)}", judged)
    if s.identity.has_stable and not s.desired.is_promoting and judged.log_e_worse < BLAME_LOG_E:
        said = f"{judged.guard.words} are {over}, and {s.identity.stable_name} does not clearly fare better at the same time"
        return shared_incident(s, said, judged)
    bad = judged.bad_candidate if judged.own_candidate is None else round(judged.own_candidate)
    said = (
        f"{capital(judged.guard.words)} of {s.identity.candidate_name} are at {share_text(judged.rate_candidate)} "
        f"({bad} of {judged.candidate} attempts), proven over the objective's {share_text(judged.limit)}."
    )
    return confounders.excuse(s, judged) or rollback_decision(s, Code.OBJECTIVE_BREACHED, said, judged)
