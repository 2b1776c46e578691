"""The host of the engine that leads is lost in the middle of a rollout: the other engine takes it back, once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from benchmarks.losses.scene import Found, Scene
from benchmarks.losses.world import DATABASE, GATEWAYS, PLANES, until

#: Longer than a database's patience with a session that is silent.
AWAY_S = 20.0


def _lost(scene: Scene, lose: Callable[[str], None], find: Callable[[str], None]) -> Found:
    rollout = scene.story.start_rollout()
    until(lambda: scene.story.leader() != "", "an engine leads", 30)
    leader, token = scene.story.leader(), scene.story.token()
    began = time.monotonic()
    lose(leader)
    scene.story.abort(rollout)
    until(lambda: scene.story.token() > token, "the other engine leads", 90)
    leads = time.monotonic() - began
    until(lambda: scene.story.has_ended(rollout), "the rollout is rolled back", 120)
    seconds = time.monotonic() - began
    time.sleep(max(0.0, AWAY_S - seconds))
    find(leader)
    return Found(seconds, {"the other leads s": leads, **_leads_again(scene, leader)})


def _leads_again(scene: Scene, former: str) -> dict[str, float | str]:
    """How soon the one that was lost leads, once the other dies a second after it came back: a standby that hangs is none."""
    time.sleep(1)
    other = next(one for one in PLANES if one != former)
    scene.machines.host(other).kill()
    seconds = until(lambda: scene.story.leader() == former, "the one that was lost leads again", 120)
    scene.machines.start(other)
    arrives = scene.story.arrives(scene.story.decide(), 60)
    return {"standby leads s": seconds, "new weight s": arrives}


def engine_killed(scene: Scene) -> Found:
    """With its control plane."""

    def find(host: str) -> None:
        scene.machines.start(host)
        time.sleep(8)  # a start takes that long

    return _lost(scene, lambda host: scene.machines.host(host).kill(), find)


def engine_frozen(scene: Scene) -> Found:
    """With its control plane: its kernel still takes connections."""
    return _lost(
        scene,
        lambda host: scene.machines.host(host).signal(signal.SIGSTOP),
        lambda host: scene.machines.host(host).signal(signal.SIGCONT),
    )


def engine_cut_from_database(scene: Scene) -> Found:
    """With its control plane, from the database alone; the gateways still reach both."""
    return _lost(scene, lambda host: scene.net.cut([host], [DATABASE]), lambda host: scene.net.heal([host], [DATABASE]))


def engine_cut_off(scene: Scene) -> Found:
    """With its control plane, from the database and the gateways."""
    far = [DATABASE, *GATEWAYS]
    return _lost(scene, lambda host: scene.net.cut([host], far), lambda host: scene.net.heal([host], far))
