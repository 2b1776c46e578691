"""The stories of replicas on nodes that agents are killed in: what stands at the beginning, and what happens to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from django.utils import timezone

from accounts.core.access import Actor
from registry.models import Release
from serving.models import Environment, Node
from serving.targets.actions.replicas import scale_release
from serving.traffic.actions.routes import set_route
from tests.support.worlds.factories import make_environment, make_model, make_release, resealed

PEOPLE = Actor.system("test")
#: Of each replica. The first node has the most room to spare, so that what goes where is the same each time.
MIB = 600
SPARE_MIB = {"a": 90, "b": 60, "c": 30}
LOST_S = 61


class Fleet(Protocol):
    """What a story does to nodes, beside what people say of them."""

    def cut_off(self, node: str) -> None:
        """Nothing is heard of the node any more; its servers run on."""

    def back(self, node: str) -> None:
        """Its agent is started."""


@dataclass(frozen=True)
class Chapter:
    """`act`, and then `wanted` replicas answer and nothing else is there. `least`: so many answer at every moment meanwhile."""

    act: Callable[[Fleet], object]
    wanted: int
    least: int


@dataclass(frozen=True)
class FleetStory:
    """`stand`: the nodes on which a replica answers at the beginning. `victim`: the node whose agent is killed.
    `late`: nodes whose agents are started again by the story. `fits`: so many replicas have room on each node.
    `joins`: nodes whose agents the story starts for the first time."""

    name: str
    stand: str
    chapters: tuple[Chapter, ...]
    victim: str = "a"
    late: str = ""
    fits: int = 3
    can_freeze: bool = True
    nodes: str = "abc"
    joins: str = ""

    def seed(self) -> None:
        """One model with a release that is stable in production, before any agent was heard of."""
        environment = make_environment("production")
        release = resealed(make_release(make_model("double")), envelope={"host": {"memory_mib_min": MIB}})
        set_route(actor=PEOPLE, environment=environment, model=release.model, stable=release, reason="It serves.")


def scaled(replicas: int) -> Callable[[Fleet], object]:
    """Somebody says how many there are to be."""

    def act(_: Fleet) -> None:
        where = Environment.objects.get(slug="production")
        scale_release(
            actor=PEOPLE, release=Release.objects.get(), environment=where, replicas=replicas, reason="Users."
        )

    return act


def silent(node: str) -> None:
    """Nothing has been heard of it for too long. One that was never heard of stays so."""
    Node.objects.filter(name=node, seen_at__isnull=False).update(seen_at=timezone.now() - timedelta(seconds=LOST_S))


def lost(node: str) -> Callable[[Fleet], object]:
    def act(fleet: Fleet) -> None:
        fleet.cut_off(node)
        silent(node)

    return act


def silent_for_long(node: str) -> Callable[[Fleet], object]:
    """Its servers keep their traffic meanwhile."""

    def act(fleet: Fleet) -> None:
        lost(node)(fleet)
        fleet.back(node)

    return act


def back(node: str) -> Callable[[Fleet], object]:
    return lambda fleet: fleet.back(node)


def comes(node: str, *, wanted: int) -> Callable[[Fleet], object]:
    """More replicas are wanted than have room, until the node comes."""

    def act(fleet: Fleet) -> None:
        scaled(wanted)(fleet)
        fleet.back(node)

    return act


_JOINS = Chapter(comes("c", wanted=3), 3, 2)
_SILENT = Chapter(silent_for_long("c"), 3, 2)
STORIES = [
    FleetStory("scaled up", "a", (Chapter(scaled(3), 3, 1),)),
    FleetStory("comes up", "a", (Chapter(scaled(2), 2, 1),), victim="b"),
    FleetStory("scaled down", "abc", (Chapter(scaled(1), 1, 1),)),
    FleetStory("lets go", "abc", (Chapter(scaled(1), 1, 1),), victim="c"),
    FleetStory("joins", "ab", (_JOINS,), victim="c", fits=1, joins="c"),
    FleetStory("node joins", "ab", (_JOINS,), fits=1, joins="c"),
    FleetStory("node silent and none has room", "abc", (_SILENT,), fits=1),
    FleetStory("comes back and none had room", "abc", (_SILENT,), victim="c", late="c", fits=1),
]
