"""Hosts that are killed, every process at once, and come back; connections to them are refused."""

from __future__ import annotations

import time

from benchmarks.losses.scene import Found, Scene, is_answering, plane_of
from benchmarks.losses.world import DATABASE, GATEWAYS, NODES, until


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
    plane = plane_of(scene, GATEWAYS[0])
    scene.machines.host(plane).kill()
    seconds = scene.story.arrives(scene.story.decide(), 60)
    scene.machines.start(plane)
    return Found(seconds)


def database_killed(scene: Scene) -> Found:
    """PostgreSQL dies and is started again 5 s later."""
    scene.machines.host(DATABASE).kill()
    time.sleep(5)
    scene.machines.start(DATABASE)
    back = time.monotonic()
    scene.story.forget_connections()
    arrives = scene.story.arrives(scene.story.decide(), 60)
    leads = until(lambda: scene.story.is_led(), "an engine leads", 60)
    return Found(time.monotonic() - back, {"new weight s": arrives, "led after s": leads})
