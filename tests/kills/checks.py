"""What must be true of a run, whoever was killed in it."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any

from django.db.models import Q

from ledger.models import Event
from ledger.queries.chain_verification import verify_chain
from rollouts.core.lifecycle import ACTIVE
from rollouts.models import DecisionRecord, Rollout
from rollouts.queries import view_of
from serving.models import Replica, Route
from validators.models import GateResult, GateRun, Report

History = dict[str, Any]
#: Events of a rollout that change nothing of it. When the first three are told rests on the moment: they may be missed, or told again.
TOLD_ONLY = frozenset({"rollout.held", "rollout.blind", "rollout.overdue"})
_ASKED = Q(verb="rollout.approval_requested", to_state="")


def history(*, without: Collection[str] = ()) -> History:
    """Everything that happened and how things stand, without what no two runs share (times, counts, holds and the word
    that a breach is excused for now, fences, and which of several proofs of a breach came first).

    `without`: verbs of events that a second try may add.
    """
    numbers = {pk: number for number, pk in enumerate(Rollout.objects.order_by("pk").values_list("pk", flat=True), 1)}
    return {
        "events": [event for event in _events() if event[0] not in TOLD_ONLY.union(without)],
        "decisions": [
            [numbers[one.rollout_id], one.action, one.code if one.action != "roll_back" else "", one.actor]
            for one in DecisionRecord.objects.exclude(action="hold").order_by("pk")
        ],
        "rollouts": [
            [numbers[one.pk], one.state, one.version, one.step_index, one.weight_bp, one.resume_state]
            for one in Rollout.objects.order_by("pk")
        ],
        "routes": [
            [one.stable.name, one.candidate and one.candidate.name, one.candidate_bp, one.generation]
            for one in Route.objects.select_related("stable", "candidate").order_by("pk")
        ],
        "deployments": [
            [one.release.name, one.environment.slug, one.is_wanted]
            for one in Replica.objects.select_related("release", "environment").order_by("pk")
        ],
        "gate_runs": [[one.pk, one.state, one.verdict, one.version] for one in GateRun.objects.order_by("pk")],
        "gates": [[one.gate, one.verdict] for one in GateResult.objects.order_by("pk")],
        "reports": [[one.gate_run_id, one.verdict] for one in Report.objects.order_by("pk")],
    }


def _events() -> list[list[Any]]:
    """Subjects are numbered as they appear: a write that came to nothing uses up a number of the database's."""
    subjects: dict[tuple[str, str], int] = {}
    out = []
    for event in Event.objects.order_by("seq"):
        number = subjects.setdefault((event.subject_type, event.subject_id), len(subjects) + 1)
        out.append(_event(event, number))
    return out


def _event(event: Event, number: int) -> list[Any]:
    facts = {name: event.facts.get(name) for name in ("weight_bp", "generation", "before", "after", "gate")}
    return [
        event.verb, event.subject_type, number, event.actor, event.from_state, event.to_state,
        {name: value for name, value in facts.items() if value is not None},
    ]  # fmt: skip


def differences(undisturbed: History, found: History) -> list[str]:
    """What the run did more, less or otherwise than the undisturbed one; empty when it is the same history."""
    out = []
    for name, wanted in undisturbed.items():
        if found[name] != wanted:
            extra = [one for one in found[name] if found[name].count(one) > wanted.count(one)]
            lost = [one for one in wanted if wanted.count(one) > found[name].count(one)]
            out.append(
                f"{name}: more {extra}, fewer {lost}" if extra or lost else f"{name}: another order {found[name]}"
            )
    return out


def broken_rules(*, may_reopen: bool = False) -> list[str]:
    """Rules that hold for every log and every table, without knowing what should have happened."""
    out = [f"the log of events is broken: {one.message}" for one in verify_chain().breaks]
    for rollout in Rollout.objects.all():
        out += _broken_life(rollout)
    for environment, model in Rollout.objects.values_list("environment", "model").distinct():
        states = Rollout.objects.filter(environment=environment, model=model).values_list("state", flat=True)
        if sum(state in ACTIVE for state in states) > 1:
            out.append(f"several rollouts are active: {list(states)}")
    return out + _broken_route(may_reopen=may_reopen)


def _broken_life(rollout: Rollout) -> list[str]:
    """The events of a rollout are one unbroken line from its first state to the one in its row, one for each version."""
    told = Event.objects.filter(subject_type="rollout", subject_id=str(rollout.pk))
    events = list(told.exclude(_ASKED | Q(verb__in=TOLD_ONLY)).order_by("seq"))
    moves = [(event.from_state, event.to_state) for event in events if event.to_state]
    out = []
    for (_, was), (now, _) in pairwise(moves):
        if was != now:
            out.append(f"rollout {rollout.pk} went on from {now}, but had arrived in {was}")
    if moves and moves[-1][1] != rollout.state:
        out.append(f"rollout {rollout.pk} is {rollout.state}, but its last event says {moves[-1][1]}")
    if len(events) != rollout.version:
        out.append(f"rollout {rollout.pk} is at version {rollout.version} after {len(events)} events")
    return out


def _broken_route(*, may_reopen: bool) -> list[str]:
    """Generations only grow, and once the weight went from the candidate to 0 it never comes back."""
    out: list[str] = []
    facts = [event.facts for event in Event.objects.filter(verb="route.set").order_by("seq")]
    generations = [one["generation"] for one in facts]
    if generations != sorted(set(generations)):
        out.append(f"generations of the route do not grow: {generations}")
    return (
        out if may_reopen else out + reopened([(one["stable"], one["candidate"], one["candidate_bp"]) for one in facts])
    )


def reopened(splits: list[tuple[str, str | None, int]]) -> list[str]:
    """A candidate that had traffic, was shut to 0, and got traffic again."""
    shut: set[str] = set()
    opened: set[str] = set()
    for stable, candidate, weight_bp in splits:
        out = [
            f"{digest[:15]}… had been shut and has traffic again"
            for digest in shut & {candidate if weight_bp else None, stable}
        ]
        if out:
            return out
        shut |= {
            digest for digest in opened if digest not in (stable, candidate) or (digest == candidate and not weight_bp)
        }
        opened |= {stable} | ({candidate} if candidate and weight_bp else set())
    return []


def users_harmed(truth: dict[str, Any]) -> list[str]:
    """What the gateway saw that users must not see."""
    out = [f"{truth['user_errors']} users got an error"] if truth["user_errors"] else []
    return out + [f"gateway: {one}" for one in reopened([tuple(split) for split in truth["splits"]])]


#: Readings that an engine may have begun after its rollout's last tick, or whose tick gave way to somebody's change: nobody's.
MOST_AFTER_THE_END = 6


def miscounted(truth: dict[str, Any], rollout: Rollout, *, most_before: int, by_reading: int) -> list[str]:
    """Whether the engine counted a user twice, or forgot some, between its first reading and its last.

    Before the first there were `most_before` users at most; each reading of the gateway brings `by_reading`.
    """
    seen, real = view_of(rollout)["users"]["requests"], truth["user_requests"]
    last = sum(one["user"][0] for one in rollout.engine_state["readings"].values())
    if seen > last or last > real:
        return [f"the engine counted {seen} users up to a reading of {last}, but there were {real}"]
    if last - seen > most_before or real - last > MOST_AFTER_THE_END * by_reading:
        return [f"the engine counted {seen} of {last} users up to its last reading; there were {real}"]
    return []
