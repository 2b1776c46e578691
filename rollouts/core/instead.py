"""The verb that fits, if a person's verb does not fit the rollout's state: one table of states and verbs."""

from __future__ import annotations

from collections.abc import Mapping

from rollouts.core.lifecycle import RolloutState

S = RolloutState
#: The verbs of people on a rollout, as commands name them.
SHUTTING = ("pause", "reject", "cancel", "abort", "roll back")
OPENING = ("approve", "resume", "advance", "promote")
WORDS = (*OPENING, *SHUTTING, "supersede")

_WATCH = "`sluicegate rollout watch {rollout}` follows it."
_CANCEL = "It has no traffic: `sluicegate rollout cancel {rollout}` drops it."
_ABORT = "`sluicegate rollout abort {rollout}` takes its traffic back."
_GOES_ON = f"It goes on by itself: {_WATCH}"
_AGAIN = "Start it again: `sluicegate rollout start {model}/{candidate}{where}`."
_ANOTHER = "`sluicegate rollout start {model}/RELEASE{where}` replaces it by another release."
_BACK = "`sluicegate rollback {model}{where}` goes back to {stable} while that is warm."
#: By state: the sentence for a verb, `open` for any other that opens, and `shut` for any other.
_INSTEAD: Mapping[RolloutState, Mapping[str, str]] = {
    S.AWAITING_APPROVAL: {
        "open": "It waits for an approval: `sluicegate rollout approve {rollout}`.",
        "shut": _CANCEL,
    },
    S.PREPARING: {
        "open": f"{{candidate}} takes traffic by itself once it is ready: {_WATCH}",
        "shut": _CANCEL,
    },
    S.SHADOWING: {"open": _GOES_ON, "shut": _ABORT},
    S.SHIFTING: {"open": _GOES_ON, "shut": _ABORT},
    S.BAKING: {"open": _GOES_ON, "shut": _ABORT},
    S.PAUSED: {
        "open": "`sluicegate rollout resume {rollout}` lets it go on; then repeat.",
        "pause": f"The weight stays as it is. {_ABORT}",
        "shut": _ABORT,
    },
    S.SECOND_LOOK: {
        "open": "Its traffic was taken away for another look. {reason} `sluicegate rollout resume {rollout}` begins at once.",
        "shut": _ABORT,
    },
    S.ROLLING_BACK: {"open": f"Its traffic is being taken back: {_WATCH}", "shut": f"That is under way: {_WATCH}"},
    S.STUCK: {
        "open": "A gateway has not acknowledged weight 0: `sluicegate diagnose {rollout}` names it.",
        "shut": "`sluicegate rollout abort {rollout}` tries again; `sluicegate diagnose {rollout}` names the gateway.",
    },
    S.PROMOTED: {
        "open": "{candidate} has all traffic already.",
        "supersede": "`sluicegate rollout start {model}/RELEASE{where}` moves the traffic to another release.",
        "shut": _BACK,
    },
    S.REVERTED: {"open": f"{{candidate}} was taken back. {_AGAIN}", "shut": "{candidate} was taken back already."},
    S.ROLLED_BACK: {"open": f"{{candidate}} was taken back. {_AGAIN}", "shut": "{candidate} was taken back already."},
    S.REJECTED: {"open": f"It was rejected before any traffic. {_AGAIN}", "shut": "It ended before any traffic."},
    S.CANCELLED: {"open": f"It ended before any traffic. {_AGAIN}", "shut": "It ended before any traffic."},
    S.SUPERSEDED: {
        "open": "Another rollout took its place: `sluicegate rollout list --model {model}`.",
        "shut": "Another rollout took its place: `sluicegate rollout list --model {model}`.",
    },
}


def instead_of(
    word: str,
    state: RolloutState,
    *,
    rollout: int,
    model: str,
    environment: str,
    candidate: str,
    stable: str,
    reason: str = "",
) -> str:
    """Returns one or two sentences with the command that fits, if the state does not allow the verb `word`.

    `stable`: the release before, empty if there is none; `reason`: the rollout's, as a sentence.
    """
    told = _INSTEAD[state]
    said = told.get(word) or told["open" if word in (*OPENING, "supersede") else "shut"]
    if not stable and state is S.PROMOTED and word in SHUTTING:
        said = f"There is no earlier release to go back to. {_ANOTHER}"
    if not stable and state is S.ROLLED_BACK:
        said = f"{{candidate}} keeps its traffic. {_ANOTHER}"
    where = "" if environment == "production" else f" --environment {environment}"
    return said.format(
        rollout=rollout, model=model, candidate=candidate, stable=stable, where=where, reason=reason
    ).replace("  ", " ")
