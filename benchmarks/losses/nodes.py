"""Nodes with agents that are lost, cut off, joined and drained, and what becomes of the replicas that they ran."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

from benchmarks.losses.fleet import LOADS_S, MODEL, REPLICAS, Fleet, FleetScene, policy
from benchmarks.losses.scene import Found, Row, is_answering
from benchmarks.losses.users import Question, doubling
from benchmarks.losses.world import DATABASE, GATEWAYS, JOINS, PLANES, Machines, until
from rollouts.models import DecisionRecord, Rollout
from serving.actions.draining import drain_node
from serving.actions.nodes import uncordon_node
from serving.actions.removing import remove_node
from serving.models import Node
from serving.queries.deployments import live_deployments

__all__ = ["ROWS", "Found", "Scene", "cast", "is_answering"]

#: Silence after which a node is taken for lost, and the heartbeat at which another agent looks.
_LOST_S, _BEAT_S = 60.0, 5.0
_ELSEWHERE_S = _LOST_S + _BEAT_S + LOADS_S
#: An agent's start: Python, the trial of what shuts servers in, and its first heartbeat; then draining and ending what is to go.
_BACK_S = 30.0
_SHORT_S = 40.0
#: By then a candidate that lost a server is held or taken back, if it is to be.
_DECIDED_S = 25.0
_EVERYONE = 8
Scene = FleetScene


def _bounded(found: Found, name: str, seconds: float, most_s: float) -> None:
    """Tells it, and whether it broke this bound of its own."""
    found.told[f"{name} s"] = seconds
    if seconds > most_s:
        found.wrong.append(f"{name}: {seconds:.1f} s, at most {most_s:g} s")


def _comes_back(scene: FleetScene, node: str, found: Found) -> None:
    """What it ran is dropped: nothing runs there that is not wanted."""
    scene.machines.start(node)
    heard = scene.story.heard_at(node)
    back = until(lambda: scene.story.heard_at(node) != heard, f"{node} is heard of again", 120)
    found.told["heard of again s"] = back
    _bounded(found, "settled", back + scene.story.settles(180), _BACK_S)


def agent_killed(scene: FleetScene) -> Found:
    """The agent of a node of stable's alone; it is started anew 5 s later."""
    fleet = scene.story
    node, before = fleet.nodes_of(fleet.stable)[0], (fleet.running(), fleet.alive())
    pids = {one.pid for one in fleet.answering(fleet.stable)}
    adopted, begun = fleet.said("server.adopted"), fleet.said("server.started")
    scene.machines.kill_agent(node)
    time.sleep(5)
    scene.machines.start(node)
    seconds = until(lambda: fleet.said("server.adopted") > adopted, "its server is adopted", 120)
    found = Found(seconds)
    time.sleep(2 * _BEAT_S)
    if {one.pid for one in fleet.answering(fleet.stable)} != pids or fleet.said("server.started") != begun:
        found.wrong.append("a server was started anew")
    if (fleet.running(), fleet.alive()) != before:
        found.wrong.append("something else runs")
    fleet.settles(60)
    return found


def cut_for_a_while(scene: FleetScene) -> Found:
    """A node of stable's from the database alone, for less than it takes to be lost."""
    fleet = scene.story
    node, before = fleet.nodes_of(fleet.stable)[0], fleet.alive()
    scene.net.cut([node], [DATABASE])
    time.sleep(_SHORT_S)
    silent, heard = fleet.alive(), fleet.heard_at(node)
    scene.net.heal([node], [DATABASE])
    found = Found(until(lambda: fleet.heard_at(node) != heard, "its agent is heard of again", 120))
    time.sleep(2 * _BEAT_S)
    if not before == silent == fleet.alive():
        found.wrong.append("replicas were moved")
    fleet.settles(60)
    return found


def node_joins(scene: FleetScene) -> Found:
    """Each of three nodes has a replica; a fourth joins, and a fourth is wanted. Then two are, and the fourth node is removed."""
    fleet = scene.story
    fleet.scale(3)
    until(lambda: len(set(fleet.nodes_of(fleet.stable))) == 3, "three answer", 3 * LOADS_S)
    began = time.monotonic()
    scene.machines.start(JOINS)
    until(lambda: Node.objects.filter(name=JOINS).exists(), "it is heard of", 120)
    found = Found(0.0)
    _bounded(found, "heard of", time.monotonic() - began, _BACK_S)
    fleet.scale(4)
    until(lambda: JOINS in fleet.nodes_of(fleet.stable), "the fourth answers there", 3 * LOADS_S)
    found.seconds = time.monotonic() - began
    is_asked = lambda: all(JOINS in fleet.hosts_asked(fleet.stable, name) for name in GATEWAYS)  # noqa: E731
    _bounded(found, "then asked", until(is_asked, "every gateway asks it", 60), 5.0)
    fleet.scale(REPLICAS)
    _bounded(found, "two again", fleet.settles(120), _BACK_S)
    scene.machines.host(JOINS).kill()
    remove_node(actor=fleet.person, node=Node.objects.get(name=JOINS), reason="It was for the row.")
    return found


def node_drained_in_a_rollout(scene: FleetScene) -> Found:
    """A node of stable's, while a candidate has a quarter of the traffic and two servers; the rollout is taken back 15 s later."""
    fleet = scene.story
    rollout = fleet.start_rollout()
    until(lambda: len(fleet.answering(rollout.candidate)) == 2, "two of the candidate answer", 2 * LOADS_S)
    node, before = fleet.nodes_of(fleet.stable)[0], fleet.alive()
    drain_node(actor=fleet.person, node=Node.objects.get(name=node), reason="For the row.", is_confirmed=True)
    time.sleep(15)
    found = Found(told={"state meanwhile": str(fleet.now(rollout).state)})
    if fleet.alive() != before or fleet.now(rollout).state != "shifting":
        found.wrong.append(f"it did not wait: {before}, {fleet.alive()}, {fleet.now(rollout).state}")
    fleet.abort(rollout)
    found.seconds = until(lambda: not live_deployments().filter(node=node).exists(), f"{node} is empty", 180)
    if fleet.running()[node]:
        found.wrong.append("a server runs there yet")
    now = Node.objects.get(name=node)
    uncordon_node(actor=fleet.person, node=now, expected_version=now.version)
    fleet.settles(60)
    return found


def judged_killed(scene: FleetScene) -> Found:
    """A node of a candidate with a quarter of the traffic and two replicas. Its errors are judged as the preset `demo` does."""
    rollout = _of_two(scene)
    _takes_traffic(scene, rollout)
    began, node, found = _its_node_dies(scene, rollout)
    _what_becomes_of_it(scene, rollout, node, began, found)
    _lost_at_once(scene, began, found)
    _comes_back(scene, node, found)
    return found


def judged_cut_off(scene: FleetScene) -> Found:
    """The same, but that packets to and from the node vanish, whoever they are from."""
    return _cut_off(scene)


def judged_by_latency(scene: FleetScene) -> Found:
    """The same, and slow answers are judged, too: what is given up unanswered is slow as well."""
    slow = {"indicator": "slow", "threshold_ms": 500, "max_frac": 0.05}
    return _cut_off(scene, guards=[{"indicator": "errors", "max_frac": 0.05}, slow])


def _cut_off(scene: FleetScene, **policy: Any) -> Found:
    rollout = _of_two(scene, **policy)
    _takes_traffic(scene, rollout)
    node, found = _of_the_candidate_alone(scene, rollout)
    rest = [DATABASE, *PLANES, *GATEWAYS]
    began = time.monotonic()
    scene.net.cut([node], rest)
    _what_becomes_of_it(scene, rollout, node, began, found)
    if (silent_s := _LOST_S + _BEAT_S - (time.monotonic() - began)) > 0:
        time.sleep(silent_s)  # so that it comes back to a fleet that took it for lost
    scene.net.heal([node], rest)
    _bounded(found, "healed, settled", scene.story.settles(180), _BACK_S)
    return found


def judged_crashed(scene: FleetScene) -> Found:
    """The same, but that the candidate's server alone dies there, as if the release had ended it; the agent lives and starts another."""
    fleet, rollout = scene.story, _of_two(scene)
    _takes_traffic(scene, rollout)
    node, found = _of_the_candidate_alone(scene, rollout)
    begun, began = fleet.said("server.started"), time.monotonic()
    for one in fleet.answering(rollout.candidate):
        if one.deployment.node_id == node:
            os.kill(one.pid, signal.SIGKILL)
    found.seconds = until(lambda: fleet.said("server.started") > begun, "its agent starts another", LOADS_S)
    until(lambda: len(fleet.answering(rollout.candidate)) == REPLICAS, "two answer", LOADS_S)
    found.told["two answer s"] = time.monotonic() - began
    if node not in fleet.nodes_of(rollout.candidate) or "replica_differs" in _codes_of(rollout):
        found.wrong.append(f"it was taken for the node's: {_codes_of(rollout)}")
    _lost_at_once(scene, began, found)
    if fleet.now(rollout).state == "shifting":
        fleet.abort(rollout)
    found.told["codes"] = " ".join(_codes_of(rollout))
    fleet.settles(60)
    return found


def _what_becomes_of_it(scene: FleetScene, rollout: Rollout, node: str, began: float, found: Found) -> None:
    """It is held until another replica answers, and goes on; or it is taken back, within the bound for that."""
    fleet = scene.story
    is_held = lambda: "replica_differs" in _codes_of(rollout)  # noqa: E731
    has_ended = lambda: fleet.now(rollout).state in {"rolled_back", "stuck"}  # noqa: E731
    is_back = lambda: len(fleet.answering(rollout.candidate, but=node)) == REPLICAS  # noqa: E731
    with contextlib.suppress(TimeoutError):
        until(lambda: is_held() or has_ended(), "it is decided", _DECIDED_S)
    found.told["held s"] = time.monotonic() - began if is_held() else "never"
    named = DecisionRecord.objects.filter(rollout=rollout, facts__has_key="odd_replica").values_list("facts", flat=True)
    found.told["named"] = str([(facts["odd_replica"], facts["guards"]["errors"]) for facts in named])
    until(lambda: is_back() or has_ended(), "another answers", _ELSEWHERE_S, look_s=0.2)
    if not has_ended():
        found.told["replaced s"] = time.monotonic() - began
        until(lambda: fleet.now(rollout).weight_bp == 7500 or has_ended(), "it goes on", _ELSEWHERE_S)
    found.seconds = time.monotonic() - began
    if has_ended():
        found.told["taken back"] = fleet.now(rollout).reason
        found.wrong.append(f"it was taken back after {found.seconds:.1f} s")
    else:
        fleet.abort(rollout)
    found.told["codes"] = " ".join(_codes_of(rollout))


def _takes_traffic(scene: FleetScene, rollout: Rollout) -> None:
    """Waits until each gateway has asked each of the candidate's servers."""
    asked = lambda name: scene.story.hosts_asked(rollout.candidate, name)  # noqa: E731
    each = lambda: all(len(asked(name)) == REPLICAS and min(asked(name).values()) >= 20 for name in GATEWAYS)  # noqa: E731
    until(each, "both of the candidate are asked", LOADS_S, look_s=0.5)


def _of_two(scene: FleetScene, **more: Any) -> Rollout:
    """A rollout at a quarter whose candidate has two replicas, the second for the next weight."""
    stage = {"min_samples": 50, "deadline_s": 7200}
    steps = {"weight_pct": 25, "min_s": 60, **stage}, {"weight_pct": 75, "min_s": 3600, **stage}
    rollout = scene.story.start_rollout({**policy(*steps), **more})
    two = lambda: len(scene.story.answering(rollout.candidate)) == 2  # noqa: E731
    until(two, "two of the candidate answer", 2 * LOADS_S)
    return rollout


def _its_node_dies(scene: FleetScene, rollout: Rollout) -> tuple[float, str, Found]:
    """When, which, and what is told of it."""
    node, found = _of_the_candidate_alone(scene, rollout)
    began = time.monotonic()
    scene.machines.host(node).kill()
    return began, node, found


def _of_the_candidate_alone(scene: FleetScene, rollout: Rollout) -> tuple[str, Found]:
    """A node of its without a replica of stable's, if there is one."""
    stable, there = (scene.story.nodes_of(one) for one in (scene.story.stable, rollout.candidate))
    node = next((one for one in there if one not in stable), there[0])
    return node, Found(told={"stable's too": "yes" if node in stable else "no"})


def _lost_at_once(scene: FleetScene, began: float, found: Found) -> None:
    failed = [one.ended for one in scene.users.since(began - 1) if one.error]
    _bounded(found, "last lost", max(failed, default=began) - began, 2.0)


def _codes_of(rollout: Rollout) -> list[str]:
    """Of its decisions, each once, in their order."""
    return list(
        dict.fromkeys(DecisionRecord.objects.filter(rollout=rollout).order_by("pk").values_list("code", flat=True))
    )


_IN_FLIGHT = "what is in flight there, of 8 users, in 2 s; the rest is tried elsewhere"
_PLACED = f"a heartbeat of 5 s, {LOADS_S:g} s for a start; {_BACK_S:g} s after its return nothing of it is left"
_GOES_ON_S = 2 * _ELSEWHERE_S
_JUDGED = f"taken back within {_DECIDED_S:g} s, or held, replaced within {_ELSEWHERE_S:g} s ({_PLACED}), and it goes on as soon again"
ROWS = [
    Row("agent killed", agent_killed, 0, _BACK_S, "its start"),
    Row("node cut from the database for 40 s", cut_for_a_while, 0, 20.0, "a connection is given up after 10 s; a beat of 5 s"),
    Row("node joins", node_joins, 0, _BACK_S + _BEAT_S + LOADS_S, "an agent's start, a beat, a server's start"),
    Row(
        "node drained in a rollout", node_drained_in_a_rollout, 0, 2 * _BEAT_S + LOADS_S + 15.0,
        "from the rollout's end: two beats, a server's start, its draining",
    ),
    Row(
        "candidate's node killed, judged by its errors", judged_killed, _EVERYONE, _GOES_ON_S, f"{_IN_FLIGHT}; {_JUDGED}",
    ),
    Row(
        "candidate's server killed, judged by its errors", judged_crashed, _EVERYONE, LOADS_S,
        f"{_IN_FLIGHT}; its agent starts another there, and no replica is told apart",
    ),
    Row("candidate's node cut off, judged by its errors", judged_cut_off, 0, _GOES_ON_S, _JUDGED),
    Row("candidate's node cut off, judged by its latency", judged_by_latency, 0, _GOES_ON_S, _JUDGED),
]  # fmt: skip


def cast(machines: Machines) -> tuple[Fleet, Question]:
    """Who tells the story, and what its users ask."""
    return Fleet(machines), doubling(MODEL)
