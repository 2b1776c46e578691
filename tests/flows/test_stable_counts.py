"""What stable's servers had counted when a stage began is asked of each gateway until it tells, and of none that hangs again and again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rollouts.engine.stable_replicas import RETRY_S, StableReplicas
from serving.ports import GatewayError, HostCounts

FIRST = ("127.0.0.1", 9000)


class Hosts:
    """HostCounters of some gateways, of which those in `hang` do not tell."""

    def __init__(self, *hang: str) -> None:
        self.hang, self.asked, self.attempts = set(hang), list[tuple[str, str]](), 100

    def read_hosts(self, *, gateway: str, model: str, **asked: Any) -> dict[tuple[str, int], HostCounts]:
        self.asked.append((model, gateway))
        if gateway in self.hang:
            raise GatewayError("timeout", f"{gateway} did not answer in time")
        return {FIRST: HostCounts(self.attempts)}


def entry(pk: int, stage: str = "step 0") -> Any:
    rollout = SimpleNamespace(
        pk=pk, state="shifting", step_started_at=1.0, environment_id=1, model=SimpleNamespace(slug=f"m{pk}"),
        stable=SimpleNamespace(digest="d"),
    )  # fmt: skip
    return SimpleNamespace(
        rollout=rollout, places=(None, None), engine_state=SimpleNamespace(stage=stage, of=lambda kind: kind())
    )


def world(at: float, *gateways: str) -> Any:
    here = [SimpleNamespace(name=name, admin_url="") for name in gateways]
    return SimpleNamespace(at=at, gateways={1: here}, serving_at=lambda place: SimpleNamespace(count=3))


def asked_in_a_turn(stables: StableReplicas, entries: list[Any], now: Any, hosts: Hosts) -> list[tuple[str, str]]:
    hosts.asked = []
    for one in stables.untold(entries, now):
        stables.follow(one, now, hosts)
    return sorted(hosts.asked)


def test_a_gateway_that_tells_late_counts_from_then_on() -> None:
    stables, hosts, one = StableReplicas(), Hosts("b"), entry(1)
    assert asked_in_a_turn(stables, [one], world(100.0, "a", "b"), hosts) == [("m1", "a"), ("m1", "b")]
    hosts.hang, hosts.attempts = set(), 700
    assert asked_in_a_turn(stables, [one], world(100.0 + RETRY_S, "a", "b"), hosts) == [("m1", "b")]
    assert stables._begun_of(one).counts == {"a": {FIRST: HostCounts(100)}, "b": {FIRST: HostCounts(700)}}
    assert asked_in_a_turn(stables, [one], world(999.0, "a", "b"), hosts) == []
    assert asked_in_a_turn(stables, [entry(1, "step 1")], world(999.0, "a", "b"), hosts) == [("m1", "a"), ("m1", "b")]


def test_one_that_hangs_is_waited_for_once_in_a_while_by_one_rollout_and_then_by_another() -> None:
    stables, hosts, entries = StableReplicas(), Hosts("a"), [entry(1), entry(2), entry(3)]
    waits = [asked_in_a_turn(stables, entries, world(100.0 + RETRY_S / 2 * turn, "a"), hosts) for turn in range(6)]
    assert waits == [[("m1", "a")], [], [("m2", "a")], [], [("m3", "a")], []]


def test_rollouts_that_ended_are_forgotten() -> None:
    stables, hosts = StableReplicas(), Hosts()
    asked_in_a_turn(stables, [entry(1), entry(2)], world(100.0, "a"), hosts)
    stables.keep({2})
    assert list(stables._begun) == [2]
