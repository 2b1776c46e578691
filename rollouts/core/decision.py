"""What can be decided of a rollout, the stable codes of the reasons, and how lists are said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rollouts.core.commands import Command
from rollouts.core.judged import Judged
from rollouts.core.snapshot import Snapshot


class Action(StrEnum):
    HOLD = "hold"  # keep the weight, look again
    SHADOW = "shadow"  # copy requests to the candidate, serve nobody from it
    START = "start"  # the first step
    ADVANCE = "advance"
    REPLACE = "replace"  # all traffic to the candidate, because stable has no server
    BAKE = "bake"
    PROMOTE = "promote"
    PAUSE = "pause"  # a person must look
    WITHDRAW = "withdraw"  # all traffic back to stable; the candidate gets another look
    ROLL_BACK = "roll_back"
    CANCEL = "cancel"  # before any traffic


#: What sends all traffic back to stable, for good or for another look.
TAKES_BACK = frozenset({Action.ROLL_BACK, Action.WITHDRAW})
#: What opens the gate further: never in a freeze window, never without the approvals that the policy asks for.
OPENING = frozenset({Action.SHADOW, Action.START, Action.ADVANCE, Action.REPLACE, Action.BAKE, Action.PROMOTE})


class Code(StrEnum):
    """Stable reason codes, each explained in docs/rollouts.md. Two codes differ in their effect, or in a person's next step.

    `because` holds the cause if one code has several. Codes that an older version stored are read by `code_now`.
    """

    PREPARING = "preparing"
    STABLE_GONE = "stable_gone"
    REPORT_NOT_VALID = "report_not_valid"
    # broken
    WORSE_THAN_STABLE = "worse_than_stable"
    OBJECTIVE_BREACHED = "objective_breached"
    ALL_FAILING = "all_failing"
    MOSTLY_FAILING = "mostly_failing"
    SERVERS_GONE = "servers_gone"
    DIGEST_MISMATCH = "digest_mismatch"
    BUDGET_SPENT = "budget_spent"
    NO_ROLLBACK_TARGET = "no_rollback_target"
    SECOND_LOOK = "second_look"
    # cannot tell
    BOTH_ARMS_BAD = "both_arms_bad"
    CONFOUNDED = "confounded"
    PROVIDER_DOWN = "provider_down"
    NO_DATA = "no_data"
    BLIND = "blind"
    NOT_ACKNOWLEDGED = "not_acknowledged"
    REPLICA_DIFFERS = "replica_differs"
    # waiting
    PAUSED = "paused"
    FROZEN = "frozen"
    NEEDS_REPLICAS = "needs_replicas"
    AWAITING_APPROVAL = "awaiting_approval"
    NEED_MORE = "need_more"
    OVERDUE = "overdue"
    # going on
    PROVEN = "proven"
    BY_HAND = "by_hand"
    PROMOTING = "promoting"
    ROLLING_BACK = "rolling_back"
    ENDED = "ended"


#: Codes that older versions stored, and the code of today: the effect and the next step were the same.
EARLIER = {
    "ready": Code.PROVEN,
    "stable_not_ready": Code.STABLE_GONE,
    "never_ready": Code.SERVERS_GONE,
    "mix_shift": Code.CONFOUNDED,
    "hardware_differs": Code.CONFOUNDED,
    "cold_start": Code.CONFOUNDED,
    "stale": Code.PROVIDER_DOWN,
    "telemetry_gap": Code.NO_DATA,
    "split_off": Code.NOT_ACKNOWLEDGED,
    "shedding": Code.NEEDS_REPLICAS,
    "no_room": Code.NEEDS_REPLICAS,
    "needs_files": Code.PREPARING,
    "stable_replica_differs": Code.REPLICA_DIFFERS,
    "undecided": Code.OVERDUE,
    "promoted_by_hand": Code.BY_HAND,
    "instant": Code.BY_HAND,
    "stuck": Code.ROLLING_BACK,
    "stays_loaded": Code.ENDED,
}


#: Reasons for which proven evidence does not convict the release.
EXCUSES = frozenset({
    Code.BOTH_ARMS_BAD, Code.CONFOUNDED, Code.REPLICA_DIFFERS,
})  # fmt: skip


def code_now(stored: str) -> str:
    """Returns today's name of a stored code; any other text as it is."""
    return EARLIER.get(stored, stored)


@dataclass(frozen=True)
class Decision:
    """`facts` are for people and their programs, and contain all typed fields too. Nothing is decided by a key in them."""

    action: Action
    code: Code
    reason: str
    facts: dict[str, Any] = field(default_factory=dict)
    guard: str = ""  # the guard that it rests on
    because: str = ""  # the cause, if the code has several
    breach: Code | None = None  # the proof against the candidate
    stage: str = ""  # the stage that waits for approvals
    is_late: bool = False  # a deadline has passed
    commands: tuple[Command, ...] = ()

    def __post_init__(self) -> None:
        told: dict[str, Any] = {name: getattr(self, name) for name in _TOLD if getattr(self, name)}
        for command in self.commands:
            told |= command.facts
        object.__setattr__(self, "facts", {**self.facts, **told})


_TOLD = ("guard", "because", "breach", "stage", "is_late")


def hold(s: Snapshot, code: Code, said: str, judged: Judged | None = None, *, because: str = "") -> Decision:
    """The weight stays, for this reason. `because`: the cause, if the code has several."""
    return Decision(Action.HOLD, code, sentence(said), facts_of(s), guard=name_of(judged), because=because)


# --- words ------------------------------------------------------------------------------------------------------------


def capital(text: str) -> str:
    """The text with its first letter large."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """The text with a full stop."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def listed(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    parts = list(words)
    return " and ".join([one for one in (", ".join(parts[:-1]), *parts[-1:]) if one])


# --- facts ------------------------------------------------------------------------------------------------------------


def name_of(judged: Judged | None) -> str:
    return judged.guard.name if judged is not None else ""


def facts_of(s: Snapshot) -> dict[str, Any]:
    """Numbers behind the sentence, for machines; evidence as log E with the bar that it is compared with."""
    facts: dict[str, Any] = {
        "weight_bp": s.desired.weight_bp,
        "step_index": s.desired.step_index,
        "elapsed_s": round(s.elapsed_s, 3),
        "step_attempts": s.evidence.step_attempts,
        "shed_candidate": s.evidence.shed_candidate,
        "bar_worse": round(s.policy.bar_worse, 4),
        "bar_fine": round(s.policy.bar_fine, 4),
        "guards": {one.guard.name: evidence_of(one) for one in s.evidence.judged},
    }
    for state in s.rules.values():
        facts |= state.facts
    dry = [one.guard.name for one in s.evidence.judged if one.guard.is_dry_run and is_breached(s, one)]
    if dry:
        facts["dry_run_breaches"] = dry
    return facts


def is_breached(s: Snapshot, judged: Judged) -> bool:
    """Whether one of the guard's two tests has reached its bar."""
    bar = s.policy.bar_worse_of(judged.guard)
    return (s.identity.has_stable and judged.log_e_worse >= bar) or judged.log_e_over >= bar


def evidence_of(judged: Judged) -> dict[str, Any]:
    """One guard's numbers as JSON."""
    point, counts = judged.convinced or (judged.guard.name, judged.window)
    return {
        "convinced": {"counter": point, "counts": [round(one, 3) for one in counts]},
        "is_stable_over": judged.is_stable_over,
        "bad_candidate": judged.bad_candidate,
        "candidate": judged.candidate,
        "bad_stable": judged.bad_stable,
        "stable": judged.stable,
        "phi": round(judged.phi, 4),
        "log_e_worse": round(judged.log_e_worse, 4),
        "log_e_fine": round(judged.log_e_fine, 4),
        "log_e_better": round(judged.log_e_better, 4),
        "log_e_over": round(judged.log_e_over, 4),
        "log_e_stable_over": round(judged.log_e_stable_over, 4),
    }
