"""A server that is new may be slow because it warms up: that excuses evidence of slowness for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from registry.core.schema import Integer, Number
from rollouts.core.commands import Command, ForgetEvidence, ForgetFirst
from rollouts.core.decision import Code, Decision, hold
from rollouts.core.guard_tracker import CounterNews
from rollouts.core.judged import Judged
from rollouts.core.rules.setting import Setting
from rollouts.core.rules.state import NewStage, RuleState, TickView
from rollouts.core.snapshot import Observed, Snapshot

#: The cause of a hold for a server that warms up.
COLD_START = "cold_start"
#: A server that is younger than this may still have been warming up when it was slow; `recent` must rest on so many attempts.
YOUNG_S, LEAST_RECENT = 300.0, 20
#: Evidence of a warm-up is dropped so often in one stage: a server that keeps coming back is no excuse for ever.
MOST_FORGOTTEN = 2
COLD_ATTEMPTS = Setting("cold_attempts", Integer(0, 100_000, unit="attempts"))
COLD_S = Setting("cold_s", Number(0, 30 * 86_400, unit="seconds"))


class ForgetWarmUp(ForgetEvidence):
    """The guard's evidence was of a server that warmed up."""

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"forget": self.guards[0]}


@dataclass(frozen=True)
class WarmUp(RuleState):
    """`server_since`: when the candidate's newest server came; `server_base`: attempts of the candidate until then; `served_since`: when
    that server was first seen to have answered. `forgotten`: how often evidence of a warm-up was dropped in this stage."""

    name = "warm_up"
    earlier = {one: one for one in ("server_since", "server_base", "served_since", "forgotten")}
    server_since: float | None = None
    server_base: int = 0
    served_since: float | None = None
    forgotten: int = 0

    def counted(self, news: CounterNews, *, has_lost: bool) -> Self:
        has_begun = self.served_since is None and news.arms.candidate.attempts
        return replace(self, served_since=news.read_at) if has_begun else self

    def observed(self, seen: TickView) -> tuple[Self, tuple[Command, ...]]:
        since = seen.observed.server_since
        if since is None or since == self.server_since:
            return self, ()
        return replace(self, server_since=since, server_base=seen.attempts, served_since=None), (ForgetFirst(),)

    def entered(self, stage: NewStage) -> Self:
        return replace(self, forgotten=0)

    def obeyed(self, command: Command, seen: Observed) -> Self:
        return replace(self, forgotten=self.forgotten + 1) if isinstance(command, ForgetWarmUp) else self


def warm_up(s: Snapshot, judged: Judged, looks: str) -> Decision | None:
    """Warm-up is proven by evidence: by attempts since the server came, and by whether slowness goes on after its first while.

    A server that was slow from the first may be so for `cold_s`, however slow. Then the evidence of that time is dropped, and slowness
    that goes on is proven anew: what a warm-up explains falls with the server's age, and a fault does not.
    """
    state = s.of(WarmUp)
    answered = s.evidence.attempts - state.server_base
    least, cold_s = COLD_ATTEMPTS.of(s.policy), COLD_S.of(s.policy)
    if state.server_since is not None and answered < least:
        said = f"{looks}, but its server has answered only {answered} of {least:.0f} attempts"
        return hold(s, Code.CONFOUNDED, f"{said} that it may take to warm up", judged, because=COLD_START)
    was_cold, served_s = False, s.since(state.served_since) if state.server_since is not None else None
    # A server that was well at first, and is slow now, is not warming up.
    if served_s is not None and _was_slow_at_first(s, judged):
        if served_s < cold_s:
            said = f"{looks}, but its server has served for only {served_s:.0f} of {cold_s:.0f} s"
            return hold(s, Code.CONFOUNDED, f"{said} that it may take to warm up", judged, because=COLD_START)
        is_of_this_step = served_s < s.elapsed_s + cold_s
        was_cold = cold_s > 0 and not state.forgotten and is_of_this_step
    if state.forgotten >= MOST_FORGOTTEN or not (was_cold or _is_well_by_now(s, judged)):
        return None
    attempts = s.evidence.tracker(judged.guard.name).recent.attempts
    why = "what its server did while it warmed up is left out from here on"
    said = (
        why
        if was_cold
        else f"the last {attempts} attempts are within the tolerance, so the attempts before are taken for warm-up"
    )
    found = hold(s, Code.CONFOUNDED, f"{looks}, but {said}", judged, because=COLD_START)
    return replace(found, commands=(ForgetWarmUp((judged.guard.name,)),))


def _was_slow_at_first(s: Snapshot, judged: Judged) -> bool:
    """Whether more of the newest server's first attempts were slow than is tolerated: some always are, warm or not."""
    slow, attempts = s.evidence.tracker(judged.guard.name).first
    tolerated = judged.guard.roll_back_over.of(judged.rate_stable) if s.identity.has_stable else judged.limit
    return attempts > 0 and slow / attempts > tolerated


def _is_well_by_now(s: Snapshot, judged: Judged) -> bool:
    recent, age_s = s.evidence.tracker(judged.guard.name).recent, s.since(s.of(WarmUp).server_since)
    bad, attempts = recent.bad, recent.attempts
    is_young = age_s is not None and age_s < YOUNG_S
    tolerated = judged.guard.roll_back_over.of(judged.rate_stable)
    return is_young and attempts >= LEAST_RECENT and bad / attempts <= tolerated
