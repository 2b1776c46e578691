"""How rules convict the candidate, or excuse it because stable suffers too: the same sentences for all rules."""

from __future__ import annotations

from dataclasses import replace

from accounts.core.quantities import share_text, weight_text
from rollouts.core.decision import Action, Code, Decision, facts_of, hold, name_of
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Source
from rollouts.core.rules.stable_gone import way_on
from rollouts.core.snapshot import Snapshot

#: Failures that end at one instant (one poisoned batch, one cut connection) are one event, however many they are: the
#: readings that show failures and nothing else must lie further apart than this, in seconds.
FAILING_OVER_S = 0.4
#: Evidence of users' traffic that an ordinary incident can show too, so that it convicts at the last look only.
_CROSSINGS = frozenset({Code.WORSE_THAN_STABLE, Code.OBJECTIVE_BREACHED, Code.ALL_FAILING, Code.MOSTLY_FAILING})


def rollback_decision(s: Snapshot, code: Code, why: str, judged: Judged | None = None) -> Decision:
    """All traffic back to stable; a pause if the guard is not critical, or without a stable release to go back to."""

    def found(action: Action, said: str, told: Code = code) -> Decision:
        return Decision(action, told, said, facts_of(s), guard=name_of(judged), breach=code)

    stop = Action.HOLD if s.desired.state is RolloutState.PAUSED else Action.PAUSE
    if not s.identity.has_stable and not s.observed.displaced_servers:
        said = f"{why} {_why_no_target(s)}: it keeps its traffic, and a person must act."
        return found(stop, said, Code.NO_ROLLBACK_TARGET)
    if s.is_stable_gone and code is not Code.DIGEST_MISMATCH:  # unsealed contents serve no user
        said = f"{why} {s.identity.stable_name}, the rollback target, has no serving server: nothing is taken back. {way_on(s)}"
        decision = found(Action.HOLD, said, Code.NO_ROLLBACK_TARGET)
        return replace(decision, facts={**decision.facts, "stable_gone": True})
    if judged is not None and not judged.guard.is_critical:
        said = f"{why} The guard is not critical: staying at {weight_text(s.desired.weight_bp)} until a person decides."
        return found(stop, said)
    if not s.identity.has_stable:
        return found(Action.ROLL_BACK, f"{why} Rolling back to {s.identity.displaced_name}, which answers again.")
    if _is_looked_at_again(s, code, judged):
        second = s.policy.second_look
        said = (
            f"{why} Traffic taken away at {weight_text(s.desired.weight_bp)}; {s.identity.candidate_name} begins again after "
            f"{second.after_s:g} s. Look {s.desired.look} of {second.looks}."
        )
        return found(Action.WITHDRAW, said)
    return found(Action.ROLL_BACK, f"{why} Rolling back to {s.identity.stable_name}.")


def _is_looked_at_again(s: Snapshot, code: Code, judged: Judged | None) -> bool:
    """Whether the policy gives the candidate another look in place of the conviction. Wrong answers are no incident."""
    is_users = judged is None or judged.guard.source is not Source.PROBER
    return code in _CROSSINGS and is_users and s.desired.look < s.policy.second_look.looks


def _why_no_target(s: Snapshot) -> str:
    if s.identity.displaced_name:
        return f"{s.identity.displaced_name}, the release before, has no serving server"
    return "There is no earlier release to go back to"


def shared_incident(s: Snapshot, what: str, judged: Judged | None = None) -> Decision:
    """A hold: stable suffers too, so the release is not blamed."""
    said = f"Holding at {weight_text(s.desired.weight_bp)}: {what}, so it is not the release that is to blame."
    return hold(s, Code.BOTH_ARMS_BAD, said, judged)


def burns(s: Snapshot, judged: Judged) -> str:
    """That stable is over its objective, in words."""
    return (
        f"{judged.guard.words} of {s.identity.stable_name} were over {share_text(judged.limit)} in the last minute too"
    )


def is_fix(s: Snapshot, judged: Judged) -> bool:
    """Whether the candidate is proven better than a stable release that is over the objective: what helps is not held up."""
    return s.identity.has_stable and judged.rate_stable > judged.limit and judged.log_e_better >= s.policy.bar_fine
