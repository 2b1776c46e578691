"""Links that are cut: packets vanish, connections hang, nobody is told; then they are healed."""

from __future__ import annotations

import time

from benchmarks.losses.scene import Found, Scene, is_answering, plane_of
from benchmarks.losses.world import DATABASE, GATEWAYS, NODES, PLANES, until

#: A cut lasts so long, where nothing else ends it.
CUT_S = 12.0
#: An attempt may take 2 s, and is made once more elsewhere.
SLOWEST_S = 2.5


def node_cut(scene: Scene) -> Found:
    """A node from both gateways."""
    return _node_away(scene, GATEWAYS)


def node_cut_from_one(scene: Scene) -> Found:
    """A node from one gateway; the other goes on asking it."""
    return _node_away(scene, GATEWAYS[:1])


def _node_away(scene: Scene, gateways: list[str]) -> Found:
    began = time.monotonic()
    scene.net.cut(NODES[:1], gateways)
    time.sleep(CUT_S)
    slow = [one.ended for one in scene.users.since(began - 1) if one.ended - one.began > 0.5]
    scene.net.heal(NODES[:1], gateways)
    healed = time.monotonic()

    def is_asked() -> bool:
        here = scene.users.since(healed, gateways[0])
        return any(one.by.startswith(NODES[0]) for one in here)

    again = until(is_asked, "the node is asked again", 90)
    waited = max((one.ended - one.began for one in scene.users.since(began)), default=0.0)
    found = Found(again, {"answers slower than 0.5 s": str(len(slow)), "the last s": max(slow, default=began) - began})
    if waited > SLOWEST_S:
        found.wrong.append(f"an answer took {waited:.1f} s")
    return found


def plane_cut(scene: Scene) -> Found:
    """The control plane that the gateways are with, from them; a weight is decided at once."""
    plane = plane_of(scene, GATEWAYS[0])
    scene.net.cut([plane], GATEWAYS)
    seconds = scene.story.arrives(scene.story.decide(), 90)
    scene.net.heal([plane], GATEWAYS)
    return Found(seconds, {"healed, new weight s": scene.story.arrives(scene.story.decide(), 60)})


def planes_cut_and_gateway_restarts(scene: Scene) -> Found:
    """Both control planes from both gateways; one gateway dies and starts from its snapshot; then all is healed."""
    scene.net.cut(PLANES, GATEWAYS)
    scene.machines.host(GATEWAYS[0]).kill()
    scene.machines.start(GATEWAYS[0])
    seconds = until(lambda: is_answering(scene, GATEWAYS[0]), "the gateway answers from its snapshot", 60)
    time.sleep(CUT_S)
    route = scene.story.decide()
    scene.net.heal(PLANES, GATEWAYS)
    return Found(seconds, {"healed, new weight s": scene.story.arrives(route, 90)}, counted_at=GATEWAYS[1:])


def gateway_cut_while_taken_back(scene: Scene) -> Found:
    """A gateway from both control planes and engines; a rollback is decided; 12 s later the link is healed."""
    rollout = scene.story.start_rollout()
    candidate = f"r{rollout.candidate.number}"
    scene.net.cut(GATEWAYS[:1], PLANES)
    scene.story.abort(rollout)
    began = time.monotonic()
    time.sleep(CUT_S)
    meanwhile = scene.story.state(rollout)
    ended = {
        name: [one.began for one in scene.users.since(began, name) if one.release == candidate] for name in GATEWAYS
    }
    scene.net.heal(GATEWAYS[:1], PLANES)
    healed = time.monotonic()
    until(lambda: scene.story.has_ended(rollout), "the rollout is rolled back", 90)
    confirmed = time.monotonic() - healed
    time.sleep(2)
    last = max(
        (one.began for one in scene.users.since(healed, GATEWAYS[0]) if one.release == candidate), default=healed
    )
    found = Found(last - healed, {
        "the other's last candidate s": max(ended[GATEWAYS[1]], default=began) - began,
        "candidate's answers at the one cut off": float(len(ended[GATEWAYS[0]])),
        "state meanwhile": meanwhile,
        "rolled back, after healing, s": confirmed,
    })  # fmt: skip
    if not ended[GATEWAYS[0]]:
        found.wrong.append("the gateway that was cut off did not keep its routes")
    return found


def database_cut(scene: Scene) -> Found:
    """The database from both control planes and engines, in the middle of a rollout; a person's rollback is decided meanwhile."""
    rollout = scene.story.start_rollout()
    scene.net.cut([DATABASE], PLANES)
    time.sleep(CUT_S)
    scene.story.abort(rollout)
    scene.net.heal([DATABASE], PLANES)
    seconds = until(lambda: scene.story.has_ended(rollout), "the rollout is rolled back", 120)
    return Found(seconds)
