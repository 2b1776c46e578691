"""What else could make the candidate look worse than stable, looked for before it is blamed.

All have one code; `because` names each. They excuse evidence, not hard facts: a candidate that only fails is taken back
whatever the mix of its requests. A split that is not as commanded excuses nothing, because the evidence rests on the
realised counts; it keeps the rollout from advancing.
"""

from __future__ import annotations

import math

from accounts.core.quantities import share_text, weight_text
from rollouts.core.decision import Code, Decision, hold
from rollouts.core.judged import Judged
from rollouts.core.policy import FULL_BP
from rollouts.core.rules.warm_up import warm_up
from rollouts.core.snapshot import Snapshot

#: The split is off when it lies further from what was commanded than this many standard deviations and this share.
SPLIT_SIGMAS, SPLIT_SLACK, LEAST_ROUTED = 5.0, 0.02, 200


def excuse(s: Snapshot, judged: Judged) -> Decision | None:
    """Why this guard's evidence does not convict the release; None if nothing speaks for it."""
    at = f"Holding at {weight_text(s.desired.weight_bp)}"
    looks = f"{judged.guard.words} are at {share_text(judged.rate_candidate)} on {s.identity.candidate_name}"
    may_be_mix = judged.rate_candidate - judged.rate_stable <= judged.guard.kind.beyond_mix
    differs = _mix_differs(s) if may_be_mix else ""
    if differs:
        said = f"{at}: {looks}, but it gets other requests than {s.identity.stable_name} ({differs})"
        return hold(s, Code.CONFOUNDED, said, judged, because="mix_shift")
    if not judged.guard.kind.has_thresholds:
        return None
    if s.identity.has_stable and s.observed.hardware:
        said = f"{at}: {looks}, but {s.observed.hardware}"
        return hold(s, Code.CONFOUNDED, said, judged, because="hardware_differs")
    return warm_up(s, judged, f"{at}: {looks}")


def _mix_differs(s: Snapshot) -> str:
    """How the requests of both arms differ, in words; empty if they do not, or without another arm."""
    if s.identity.has_stable and s.evidence.mix.differs:
        return f"their sizes differ, index {s.evidence.mix.psi:.2f}"
    if s.identity.has_stable and s.evidence.classes.differs and _stable_sheds_more(s):
        return f"stable refuses more of one class, index {s.evidence.classes.psi:.2f}"
    return ""


def _stable_sheds_more(s: Snapshot) -> bool:
    """The candidate's own lack of room is no excuse: else shedding would hold a candidate that is slow as well."""
    return s.evidence.shed_stable * s.evidence.routed_candidate > s.evidence.shed_candidate * s.evidence.routed_stable


def is_split_off(s: Snapshot) -> bool:
    """Whether the measured split cannot be the commanded one by chance.

    A request is counted when it ends, so longer answers of one arm come later. Counts are compared once these come as steadily
    as requests.
    """
    routed = s.evidence.settled_candidate + s.evidence.settled_stable
    if not s.identity.has_stable or routed < LEAST_ROUTED:
        return False
    wanted = s.desired.weight_bp / FULL_BP
    slack = SPLIT_SLACK + SPLIT_SIGMAS * math.sqrt(wanted * (1 - wanted) / routed)
    return abs(s.evidence.settled_candidate / routed - wanted) > slack
