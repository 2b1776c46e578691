"""What is done to the hosts, row by row, and the bound that was stated for each before it was measured."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.hosts.net import Net
from benchmarks.hosts.story import Story
from benchmarks.hosts.users import Users
from benchmarks.hosts.world import DATABASE, GATEWAYS, NODES, PLANES, Machines, until


@dataclass
class Scene:
    net: Net
    machines: Machines
    story: Story
    users: Users


@dataclass
class Found:
    """`seconds`: until all was well again, from the fault or from its healing, as the row says; `counted_at`: the gateways whose
    lost requests count."""

    seconds: float = 0.0
    told: dict[str, float | str] = field(default_factory=dict)
    counted_at: list[str] = field(default_factory=lambda: list(GATEWAYS))
    asked: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    lost_elsewhere: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    name: str
    play: Callable[[Scene], Found]
    most_lost: int
    most_s: float
    bound: str  # where it comes from


def is_answering(scene: Scene, name: str) -> bool:
    """Whether the last 20 of those who ask there were all answered."""
    last = scene.users.since(time.monotonic() - 2.0, name)
    return len(last) >= 20 and not any(one.error for one in last)


def node_killed(scene: Scene) -> Found:
    """Both of a node's servers die, with what is in flight; 5 s later they are back."""
    began = time.monotonic()
    scene.machines.host(NODES[0]).kill()
    time.sleep(5)
    failed = [one.ended for one in scene.users.since(began - 1) if one.error]
    back = time.monotonic()
    scene.machines.start(NODES[0])
    seen = lambda: any(one.by.startswith(NODES[0]) for one in scene.users.since(back))  # noqa: E731
    again = until(seen, "the node is asked again", 60)
    return Found(max(failed, default=began) - began, {"asked again s": again})


def gateway_killed(scene: Scene) -> Found:
    """Envoy and relay of one gateway die and are started again 3 s later."""
    scene.machines.host(GATEWAYS[0]).kill()
    time.sleep(3)
    back = time.monotonic()
    scene.machines.start(GATEWAYS[0])
    until(lambda: is_answering(scene, GATEWAYS[0]), "the gateway answers", 60)
    serves = time.monotonic() - back
    follows = scene.story.arrives(scene.story.decide(), 60)
    return Found(serves, {"new weight s": follows}, counted_at=GATEWAYS[1:])


def plane_killed(scene: Scene) -> Found:
    """The control plane that the gateways are with dies; a weight is decided at once."""
    scene.machines.host(PLANES[0]).kill()
    seconds = scene.story.arrives(scene.story.decide(), 60)
    scene.machines.start(PLANES[0])
    return Found(seconds)


#: The order they run in.
ROWS = [
    Row(
        "node killed",
        node_killed,
        16,
        2.0,
        "what is in flight there: 8 users; the replica refuses and is tried elsewhere",
    ),
    Row("gateway killed", gateway_killed, 0, 10.0, "its own users wait; of the other's none is lost"),
    Row(
        "control plane killed", plane_killed, 0, 5.0, "its streams end: Envoy calls again within 1 s, a trial takes 1 s"
    ),
]
_ = DATABASE
