"""Before any traffic: the candidate is loaded and warm, or it is cancelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from accounts.core.quantities import weight_text
from rollouts.core.decision import Action, Code, Decision, sentence
from rollouts.core.lifecycle import RolloutState
from rollouts.core.rules.servers_gone import CandidateServers
from rollouts.core.rules.stable_gone import replacement, waiting
from rollouts.core.rules.state import RuleState, TickView
from rollouts.core.snapshot import Snapshot


@dataclass(frozen=True)
class Loading(RuleState):
    """`failure`: why the candidate's last try to load failed, as a sentence; empty once it has a server."""

    name = "loading"
    earlier = {"failure": "load_failure"}
    failure: str = ""

    def observed(self, seen: TickView) -> tuple[Self, tuple[()]]:
        if seen.desired.state is not RolloutState.PREPARING:
            return self, ()
        return type(self)("" if seen.observed.candidate_servers else seen.observed.failed_to_load or self.failure), ()


def preparing(s: Snapshot) -> Decision:
    """Returns the first step, the wait for it, or the cancellation."""
    if s.observed.digest_mismatch:
        return Decision(Action.CANCEL, Code.DIGEST_MISMATCH, f"{s.observed.digest_mismatch} No traffic was sent to it.")
    if s.people.report_problem:
        return Decision(
            Action.CANCEL,
            Code.REPORT_NOT_VALID,
            f"{s.people.report_problem} No traffic was sent to {s.identity.candidate_name}.",
        )
    if not s.observed.candidate_servers:
        known = dict.fromkeys([s.of(Loading).failure, s.observed.replica_problem])
        why = "".join(f" {problem}" for problem in known if problem)
        without_s = _without_s(s, s.since(s.of(CandidateServers).gone_since))
        if without_s >= s.policy.prepare_deadline_s:
            said = f"{s.identity.candidate_name} has not been ready for {without_s:.0f} s.{why}"
            return Decision(Action.CANCEL, Code.SERVERS_GONE, said)
        return Decision(
            Action.HOLD, Code.PREPARING, f"Waiting for {s.identity.candidate_name} to be loaded and warm.{why}"
        )
    if s.is_stable_gone:
        return replacement(s) or waiting(s)
    if s.observed.problem:
        return Decision(
            Action.HOLD,
            Code.PROVIDER_DOWN,
            sentence(
                f"{s.identity.candidate_name} is ready, but nothing is opened blindly: {s.observed.problem_sentence}"
            ),
        )
    return _ready(s)


def _without_s(s: Snapshot, gone_s: float | None) -> float:
    """For how long an arm that has no server has had none, the time before the rollout began aside."""
    return s.observed.waited_s if gone_s is None else min(s.observed.waited_s, gone_s)


def _ready(s: Snapshot) -> Decision:
    if s.policy.shadow is not None:
        said = f"{s.identity.candidate_name} is warm: comparing it on copies of {weight_text(s.policy.shadow.sample_bp)} of the requests."
        return Decision(Action.SHADOW, Code.PROVEN, said)
    weight, begin = weight_text(s.policy.steps[0].weight_bp), {"to_index": 0}
    if s.identity.has_stable:
        said = f"{s.identity.candidate_name} is warm: sending it {weight} of the traffic."
        return Decision(Action.START, Code.PROVEN, said, begin)
    said = (
        f"{s.identity.candidate_name} is the first release here, so it takes {weight} at once "
        "and is held to the absolute objectives only."
    )
    return Decision(Action.START, Code.PROVEN, said, begin)
