"""What else could make the candidate look worse than stable, looked for before it is blamed.

All have one code; `because` names each. They excuse evidence, not hard facts: a candidate whose every attempt fails is taken back
whatever the mix of its requests. A split that is not as commanded excuses nothing, because the evidence rests on the
realised counts; it keeps the rollout from advancing.
"""

from __future__ import annotations

import math

from accounts.core.quantities import share_text, weight_text
from rollouts.core.decision import Code, Decision, hold
from rollouts.core.judged import Judged
from rollouts.core.policy import FULL_BP
from rollouts.core.snapshot import Snapshot

#: The cause of a hold for a server that warms up.
COLD_START = "cold_start"
#: The split is off when it lies further from what was commanded than this many standard deviations and this share.
SPLIT_SIGMAS, SPLIT_SLACK, LEAST_ROUTED = 5.0, 0.02, 200
#: A server that is younger than this may still have been warming up when it was slow; `recent` must rest on so many attempts.
YOUNG_S, LEAST_RECENT = 300.0, 20
#: Evidence of a warm-up is dropped so often in one stage: a server that keeps coming back is no excuse for ever.
MOST_FORGOTTEN = 2


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
    return _cold(s, judged, f"{at}: {looks}")


def _mix_differs(s: Snapshot) -> str:
    """How the requests of both arms differ, in words; empty where they do not, or where there is no other arm."""
    if s.identity.has_stable and s.evidence.mix.differs:
        return f"their sizes differ, index {s.evidence.mix.psi:.2f}"
    if s.identity.has_stable and s.evidence.classes.differs and _stable_sheds_more(s):
        return f"stable refuses more of one class, index {s.evidence.classes.psi:.2f}"
    return ""


def _stable_sheds_more(s: Snapshot) -> bool:
    """What the candidate itself has no room for is no excuse for it: else it would be held for shedding where it is slow, too."""
    return s.evidence.shed_stable * s.evidence.routed_candidate > s.evidence.shed_candidate * s.evidence.routed_stable


def _cold(s: Snapshot, judged: Judged, looks: str) -> Decision | None:
    """Warm-up is proven by evidence: by attempts since the server came, and by whether slowness goes on after its first while.

    A server that was slow from the first may be so for `cold_s`, however slow. Then the evidence of that time is dropped, and slowness
    that goes on is proven anew: what a warm-up explains falls with the server's age, and a fault does not.
    """
    if s.evidence.attempts_since_server is not None and s.evidence.attempts_since_server < s.policy.cold_attempts:
        said = f"{looks}, but its server has answered only {s.evidence.attempts_since_server} of {s.policy.cold_attempts} attempts"
        return hold(s, Code.CONFOUNDED, f"{said} that it may take to warm up", judged, because=COLD_START)
    may_forget = s.evidence.forgotten < MOST_FORGOTTEN
    was_cold = False
    # What was well at first, and is slow now, did not come from warming up.
    if s.evidence.served_s is not None and _was_slow_at_first(s, judged):
        if s.evidence.served_s < s.policy.cold_s:
            said = f"{looks}, but its server has served for only {s.evidence.served_s:.0f} of {s.policy.cold_s:.0f} s"
            return hold(s, Code.CONFOUNDED, f"{said} that it may take to warm up", judged, because=COLD_START)
        is_of_this_step = s.evidence.served_s < s.elapsed_s + s.policy.cold_s
        was_cold = s.policy.cold_s > 0 and not s.evidence.forgotten and is_of_this_step
    if not may_forget or not (was_cold or _is_well_by_now(s, judged)):
        return None
    attempts = s.evidence.recent.get(judged.guard.name, (0, 0))[1]
    why = "what its server did while it warmed up is left out from here on"
    said = (
        why
        if was_cold
        else f"the last {attempts} attempts are within the tolerance, so the attempts before are taken for warm-up"
    )
    found = hold(s, Code.CONFOUNDED, f"{looks}, but {said}", judged, because=COLD_START)
    found.facts["forget"] = judged.guard.name  # the evidence of the warm-up; the engine drops it
    return found


def _was_slow_at_first(s: Snapshot, judged: Judged) -> bool:
    """Whether more of the newest server's first attempts were slow than is tolerated: some always are, warm or not."""
    slow, attempts = s.evidence.first.get(judged.guard.name, (0, 0))
    tolerated = judged.guard.roll_back_over.of(judged.rate_stable) if s.identity.has_stable else judged.limit
    return attempts > 0 and slow / attempts > tolerated


def _is_well_by_now(s: Snapshot, judged: Judged) -> bool:
    bad, attempts = s.evidence.recent.get(judged.guard.name, (0, 0))
    is_young = s.evidence.server_age_s is not None and s.evidence.server_age_s < YOUNG_S
    tolerated = judged.guard.roll_back_over.of(judged.rate_stable)
    return is_young and attempts >= LEAST_RECENT and bad / attempts <= tolerated


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
