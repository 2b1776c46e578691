"""What must hold of replicas on nodes at every moment, and of what is told of them in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ledger.models import Event
from ledger.queries.chain_verification import verify_chain
from serving.environments.queries.inventory import live_replicas
from serving.models import Node, Replica, Server
from serving.targets.core.placement import claim_of
from serving.targets.queries.replicas import observed
from tests.kills.machine import Machine

#: What is done once for each replica, or each time that people ask; how often servers are begun and adopted rests on who dies.
ONCE = (
    "deployment.requested",
    "deployment.scaled",
    "deployment.failed",
    "deployment.drained",
    "deployment.gone",
    "node.registered",
)


@dataclass(frozen=True)
class Seen:
    """A live replica as it stood when somebody looked."""

    pk: int
    node: str
    ordinal: int
    state: str
    answers: bool
    is_wanted: bool
    is_leaving: bool
    memory_mib: int

    @property
    def stays(self) -> bool:
        return self.is_wanted and not self.is_leaving


def look() -> list[Seen]:
    """Every live replica, in one query."""
    return [
        Seen(
            one.pk,
            one.node_id,
            one.ordinal,
            one.state,
            one.answers,
            one.is_wanted,
            one.drain_asked_at is not None,
            claim_of(one.claim).memory_mib,
        )
        for one in observed(live_replicas()).order_by("pk")
    ]


def wrong_now(seen: Sequence[Seen], machines: Iterable[Machine], least: int) -> list[str]:
    """Two replicas in one ordinal, more memory given away than there is, or fewer that answer than users need."""
    twice = [ordinal for ordinal, count in Counter(one.ordinal for one in seen if one.stays).items() if count > 1]
    out = [f"ordinal {ordinal} has several replicas that are to stay" for ordinal in twice]
    for machine in machines:
        held = sum(one.memory_mib for one in seen if one.node == machine.name)
        if held > machine.memory_mib:
            out.append(f"{held} MiB of {machine.memory_mib} are given away on {machine.name}")
    answering = sum(one.answers for one in seen)
    return out if answering >= least else [*out, f"{answering} replicas answer, and {least} must"]


def unsettled(seen: Sequence[Seen], machines: Iterable[Machine], wanted: int, away: frozenset[str]) -> str:
    """Why it is not yet as wanted, or an empty string: so many answer, nothing else is there, and what runs is what is known.

    Of nodes that are `away` nothing counts that is not wanted there any more.
    """
    about = [one for one in seen if one.node not in away or one.is_wanted]
    if any(one.node in away for one in about):
        return f"still wanted on nodes that are away: {about}"
    if sum(one.stays and one.answers for one in about) != wanted or len(about) != wanted:
        return f"{wanted} are to answer, and there are {about}"
    known = Counter(
        Server.objects.filter(ended_at=None).exclude(replica__node__in=away).values_list("folder", flat=True)
    )
    runs = Counter(folder for machine in machines if machine.name not in away for folder in machine.running())
    return "" if known == runs else f"known and not running: {known - runs}; running and not known: {runs - known}"


def placed(seen: Sequence[Seen]) -> list[list[Any]]:
    """Which ordinal is where."""
    return sorted([one.ordinal, one.node] for one in seen)


def told_of() -> list[list[Any]]:
    """How often each thing was done that is done once."""
    return [[verb, Event.objects.filter(verb=verb).count()] for verb in ONCE]


def broken_lives(stood: Mapping[int, int]) -> list[str]:
    """Rules for the log: whole, one event for each version of a replica, in an unbroken line; each server began and ended once.

    `stood`: the replicas that were there before anybody could tell of them, with their versions.
    """
    out = [f"the log of events is broken: {one.message}" for one in verify_chain().breaks]
    for replica in Replica.objects.all():
        out += _broken_life(replica, stood.get(replica.pk))
    for server in Server.objects.exclude(replica__in=stood):
        verbs = Counter(
            Event.objects.filter(subject_type="server", subject_id=str(server.pk)).values_list("verb", flat=True)
        )
        if verbs["server.started"] != 1 or verbs["server.stopped"] != (server.ended_at is not None):
            out.append(f"server {server.pk} is told of as {dict(verbs)}")
    registered = Counter(Event.objects.filter(verb="node.registered").values_list("subject_id", flat=True))
    wrong = {node.name: registered[node.name] for node in Node.objects.all() if registered[node.name] != 1}
    return [*out, f"nodes were registered otherwise than once: {wrong}"] if wrong else out


def _broken_life(replica: Replica, stood_at: int | None) -> list[str]:
    told = Event.objects.filter(subject_type="deployment", subject_id=str(replica.pk)).order_by("seq")
    events = list(told)
    asked = sum(event.verb == "deployment.requested" for event in events)
    out = []
    if asked != (stood_at is None):
        out.append(f"replica {replica.pk} was requested {asked} times")
    changes = len(events) - asked
    if replica.version != (stood_at or 1) + changes:
        out.append(f"replica {replica.pk} is at version {replica.version} after {changes} changes")
    moves = [(one.from_state, one.to_state) for one in events]
    for (_, was), (now, _) in pairwise(moves):
        if was != now:
            out.append(f"replica {replica.pk} went on from {now}, but had arrived in {was}")
    if moves and moves[-1][1] != replica.state:
        out.append(f"replica {replica.pk} is {replica.state}, but its last event says {moves[-1][1]}")
    return out
