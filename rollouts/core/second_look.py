"""A first crossing takes the traffic away, a later crossing convicts: ordinary incidents look like a bad release once, not twice.

Premises and measurements: docs/decisions/0045-a-second-look.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from accounts.core.quantities import weight_text
from rollouts.core.decision import Action, Code, Decision, facts_of, hold, sentence
from rollouts.core.inconclusive import overdue, telemetry_unavailable
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.mostly_failing import MostlyFailing
from rollouts.core.policy import Source
from rollouts.core.rollback_rules import breach
from rollouts.core.snapshot import Snapshot
from rollouts.core.stable_gone import no_target, replacement

#: Seconds for which the candidate must have had a server before it begins again: its probes of this time were answered.
PROBED_S = 10.0
#: Counters that cannot show that the candidate gets nothing hold up its next look no longer than this, in seconds.
CONFIRMED_WITHIN_S = 30.0


def after_crossing(s: Snapshot) -> Decision:
    """The decision while the traffic is away: convict on hard facts, wait, or begin again."""
    found = breach(_probed_only(s))
    if found is not None:
        return found
    if s.is_stable_gone:
        return replacement(s) or no_target(s)
    blind = telemetry_unavailable(s)
    if blind is not None and blind.action is Action.ROLL_BACK:
        return blind
    if s.desired.state is RolloutState.PAUSED:
        said = f"Paused, with the traffic of {s.identity.candidate_name} taken away. It begins again once someone resumes it."
        return Decision(Action.HOLD, Code.PAUSED, said, facts_of(s))
    if not s.desired.is_begun_by_hand and (ended := overdue(s)) is not None:
        return ended
    return _waiting(s) or _blocked(s) or _begun(s)


def _waiting(s: Snapshot) -> Decision | None:
    """What the next look waits for; None when it may begin, as far as gateways, servers and the clock go."""
    name = s.identity.candidate_name
    if s.observed.step_started_at is None:
        why = f": {s.observed.ack_error}" if s.observed.ack_error else ""
        return _wait(s, f"Waiting for the gateways to send everything to {s.identity.stable_name}{why}")
    if not s.observed.is_confirmed and s.elapsed_s < CONFIRMED_WITHIN_S:
        return _wait(s, f"Waiting for counters that show no request for {name}")
    if (lacking := _unready(s)) is not None:
        return lacking
    left_s = 0.0 if s.desired.is_begun_by_hand else s.stage.min_s - s.elapsed_s
    return _wait(s, f"Begins again in {left_s:.0f} s") if left_s > 0 else None


def _blocked(s: Snapshot) -> Decision | None:
    """What keeps a look from its beginning that is due: a person's pause, the gate report, or gateways that cannot be read."""
    name = s.identity.candidate_name
    if s.desired.paused_in is RolloutState.PAUSED:
        return Decision(
            Action.PAUSE,
            Code.PAUSED,
            f"It was paused when its traffic was taken away, so it stays paused: `sluicegate rollout resume {s.identity.rollout_id}` "
            f"gives {name} its look {s.desired.look}.",
            facts_of(s),
        )
    if s.people.report_problem:
        return hold(s, Code.REPORT_NOT_VALID, f"{name} may not begin again: {s.people.report_problem}")
    if s.observed.problem:
        said = f"{name} may begin again, but nothing is opened blindly: {s.observed.problem_sentence}"
        return hold(s, Code.PROVIDER_DOWN, said, because=s.observed.problem)
    return None


def _probed_only(s: Snapshot) -> Snapshot:
    """Without evidence of users' traffic: late answers of the look before are no evidence of the next one. The prober finds wrong
    answers without users, also during the wait."""
    judged = tuple(one for one in s.evidence.judged if one.guard.source is Source.PROBER)
    evidence = replace(s.evidence, judged=judged, all_failing=0, mostly=MostlyFailing(), shed_candidate=0)
    return replace(s, evidence=evidence)


def is_steady(servers: int, age_s: float | None) -> bool:
    """Whether the candidate has a server, and none is newer than PROBED_S. `age_s`: of the newest; None if it is not known."""
    return servers > 0 and (age_s is None or age_s >= PROBED_S)


def _unready(s: Snapshot) -> Decision | None:
    """A hold until the candidate has a steady server; the conviction after the policy's time to prepare."""
    if is_steady(s.observed.candidate_servers or 0, s.evidence.server_age_s):
        return None
    name = s.identity.candidate_name
    if s.evidence.unsteady_s >= s.policy.prepare_deadline_s:
        said = f"{name} has had no steady server for {s.evidence.unsteady_s:.0f} s since its traffic was taken away."
        return Decision(
            Action.ROLL_BACK, Code.SERVERS_GONE, f"{said} Rolling back to {s.identity.stable_name}.", facts_of(s)
        )
    return _wait(s, f"Begins again once a server of {name} has answered probes for {PROBED_S:.0f} s")


def _wait(s: Snapshot, said: str) -> Decision:
    look = look_words(s.desired.look - 1, s.policy.second_look.looks)
    return hold(s, Code.SECOND_LOOK, f"{s.desired.crossed_because} {sentence(said)} {look}".lstrip())


def _begun(s: Snapshot) -> Decision:
    name, look = s.identity.candidate_name, look_words(s.desired.look, s.policy.second_look.looks)
    shadow = s.policy.shadow
    if s.desired.crossed_in is RolloutState.SHADOWING and shadow is not None:
        said = f"{name} begins again on copies of {weight_text(shadow.sample_bp)} of the requests. {look}"
        return Decision(Action.SHADOW, Code.SECOND_LOOK, said)
    said = f"{name} begins again at {weight_text(s.policy.steps[0].weight_bp)}. {look}"
    return Decision(Action.START, Code.SECOND_LOOK, said, {"to_index": 0})


def look_words(look: int, looks: int) -> str:
    """`Look 2 of 2.`"""
    return f"Look {look} of {looks}."


def counts_behind(code: Code, judged: Judged) -> tuple[str, dict[str, int]]:
    """The counter that convinced, in words, and its counts: those of the decision's own sentence."""
    names = ("bad_candidate", "candidate", "bad_stable", "stable")
    if code is Code.WORSE_THAN_STABLE:
        point, counts = judged.convinced or (judged.guard.name, judged.window)
        return judged.guard.words_at(point), dict(zip(names, map(round, counts), strict=True))
    return judged.guard.words, {name: getattr(judged, name) for name in names}


def crossing_words(crossing: Mapping[str, Any]) -> str:
    """One crossing in a sentence, from its record: `Traffic taken away at 25 %: errors 12 of 74 against 0 of 220.`"""
    counts = crossing.get("counts")
    why = str(crossing["code"]).replace("_", " ")
    if counts:
        beside = f" against {counts['bad_stable']} of {counts['stable']}" if counts["stable"] else ""
        why = f"{crossing['words']} {counts['bad_candidate']} of {counts['candidate']}{beside}"
    return f"Traffic taken away at {weight_text(crossing['weight_bp'])}: {why}."
