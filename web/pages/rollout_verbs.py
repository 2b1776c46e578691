"""Buttons of a rollout's page: the verb, its condition, and its question.

A button that removes traffic acts at once, at any version of the rollout. A button that opens something, or ends it for good,
is a sheet that asks, and means the version that it was opened for. Every button keeps its place for the rollout's whole life, so
that none comes to lie under a pointer that was on its way to another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accounts.core.access import Actor, Verb, may
from rollouts import actions
from rollouts.core.lifecycle import LIVE, WITHOUT_TRAFFIC, RolloutState
from rollouts.core.rules.stable_gone import takes_over
from rollouts.models import Rollout
from rollouts.queries.approvals import excluded_from

S = RolloutState
_FORWARD = frozenset({S.SHADOWING, S.SHIFTING, S.BAKING})

#: What was pressed → what is done. Neither a version nor a reason stands between a person and these.
SHUTTING: Mapping[str, Callable[..., Rollout]] = {
    "pause": lambda **named: actions.pause(expected_version=None, **named),
    "cancel": lambda **named: actions.abort(expected_version=None, **named),
    "abort": actions.shut_rollout,
}
OPENING: Mapping[str, Callable[..., Rollout]] = {
    name: getattr(actions, name)
    for name in ("approve", "resume", "advance", "promote_now", "reject", "close_undo_window")
}


@dataclass(frozen=True)
class Button:
    """`why_not`: why it is disabled, or empty. `says`: its effect, on a sheet."""

    name: str
    label: str
    why_not: str = ""
    says: str = ""
    is_danger: bool = False


def shutting_buttons(actor: Actor, rollout: Rollout, live: dict[str, Any]) -> list[Button]:
    """The way out first, then the pause; none for a person who may not, nor once the rollout has ended."""
    team, state = rollout.model.team.slug, S(rollout.state)
    found = []
    if may(actor, Verb.ROLL_BACK, team):
        found.append(_way_out(rollout, state, live))
    if may(actor, Verb.PAUSE_ROLLOUT, team):
        found.append(Button("pause", "Pause", "" if state in _FORWARD | {S.SECOND_LOOK} else _state_words(state)))
    return found


def _way_out(rollout: Rollout, state: RolloutState, live: dict[str, Any]) -> Button:
    if state in WITHOUT_TRAFFIC:
        return Button("cancel", "Cancel the rollout", is_danger=True)
    before = (live.get("target") or {}).get("release")
    before = before or (rollout.stable.name if rollout.stable else None)
    label = f"Roll back to {before}" if before else "End the rollout"
    return Button("abort", label, "" if state in LIVE | {S.STUCK} else _state_words(state), is_danger=True)


def opening_buttons(actor: Actor, rollout: Rollout, live: dict[str, Any]) -> list[Button]:
    """Those that the person may ever press here, in an order that stays."""
    team, state = rollout.model.team.slug, S(rollout.state)
    found = []
    if live["approval_stages"] and may(actor, Verb.APPROVE_ROLLOUT, team):
        if actor.user_id not in excluded_from(rollout):
            found.append(_approve(actor, rollout, live))
        found.append(_reject(rollout, state, live))
    if may(actor, Verb.RESUME_ROLLOUT, team):
        found.append(_resume(rollout, state))
    if may(actor, Verb.ADVANCE_ROLLOUT, team):
        why_not = "" if state in _FORWARD - {S.BAKING} else _state_words(state)
        says = (
            f"{rollout.candidate.name} gets the next stage's traffic without its evidence; a breach still rolls back."
        )
        found.append(Button("advance", "Skip the wait", why_not, says))
    if may(actor, Verb.PROMOTE_NOW, team):
        found.append(_promote(rollout, state, live))
    return found


def _resume(rollout: Rollout, state: RolloutState) -> Button:
    if rollout.is_withdrawn:
        why_not = "" if rollout.step_started_at else "The gateways still take its traffic away."
        says = f"{rollout.candidate.name} begins its next look without the rest of the wait. The crossing counts."
        return Button("resume", "Begin now", why_not, says)
    why_not = "" if state is S.PAUSED else f"It is {_word(state)}, not paused."
    return Button("resume", "Resume", why_not, "The stage's clock starts again; its evidence is kept.")


def _promote(rollout: Rollout, state: RolloutState, live: dict[str, Any]) -> Button:
    is_gone = rollout.stable is not None and (live.get("target") or {}).get("is_missing", False)
    states = _FORWARD | {S.PREPARING, S.PAUSED, S.SECOND_LOOK} if is_gone else _FORWARD
    why_not = "" if state in states else _state_words(state)
    why_not = "It is being promoted already." if rollout.promote_now else why_not
    obstacle = live["blocked"] or live["will_stop"]  # every stage on the way needs its approvals
    why_not = obstacle["message"] if obstacle else why_not
    candidate = rollout.candidate.name
    if is_gone and rollout.stable is not None:
        stable = rollout.stable.name
        return Button(
            "promote_now", "Give it all traffic", why_not, f"{stable} has no server. {takes_over(candidate, stable)}"
        )
    says = (
        f"All traffic goes to {candidate}. No evidence is waited for, not even a first request, and the log and the outcome state "
        "that. Only what speaks against it holds it."
    )
    return Button("promote_now", "Promote now", why_not, says)


def _approve(actor: Actor, rollout: Rollout, live: dict[str, Any]) -> Button:
    stage = next((one for one in live["approval_stages"] if one["stage"] == live["next_approval"]), None)
    says = f"Yes to {rollout.candidate.name} with exactly these digests, for this stage alone."
    if rollout.state not in WITHOUT_TRAFFIC | LIVE or stage is None:
        return Button("approve", "Approve", "No stage waits for an approval.", says)
    label = f"Approve {stage['stage']}"
    obstacle = live["blocked"] or live["will_stop"]
    if obstacle is not None and obstacle["code"] == "report_superseded":
        return Button("approve", label, obstacle["message"], says)
    return Button("approve", label, "You have approved it." if actor.name in stage["by"] else "", says)


def _reject(rollout: Rollout, state: RolloutState, live: dict[str, Any]) -> Button:
    gated = any(one["is_ahead"] for one in live["approval_stages"])
    is_possible = state is S.AWAITING_APPROVAL or (state in LIVE and gated)
    says = "A final no: the rollout ends, and traffic that it has is taken back."
    return Button("reject", "Reject", "" if is_possible else "Nothing waits for a yes or no.", says, is_danger=True)


def _word(state: RolloutState) -> str:
    return state.value.replace("_", " ")


def _state_words(state: RolloutState) -> str:
    """`It is baking.`: why a button cannot be pressed."""
    if state is S.SECOND_LOOK:
        return "Its traffic was taken away for another look."
    return f"It is {_word(state)}."
