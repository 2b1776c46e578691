"""What a row of the table is: what is done to the hosts, what was found, and the bound that was stated before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.losses.net import Net
from benchmarks.losses.story import Story
from benchmarks.losses.users import Users
from benchmarks.losses.world import GATEWAYS, PLANES, XDS_PORT, Machines


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


def plane_of(scene: Scene, gateway: str) -> str:
    """The host of the control plane that the gateway's relay has its stream from."""
    here = scene.net.hosts[gateway]
    return next(one for one in PLANES if here.is_connected_to(scene.net.hosts[one].address, XDS_PORT))
