"""A replica of a stable release that fails where the others do not is told by an event, rollout or not, once a day."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.core.access import Actor
from ledger.models import Event
from rollouts.engine import replica_watch
from rollouts.engine.replica_watch import EVERY_S, STRETCH_S, VERB, ReplicaWatch
from serving.actions.routes import set_route
from serving.models import Deployment, Gateway, Server
from serving.ports import GatewayError, HostCounts
from tests.factories import make_deployment, make_environment, make_model, make_release, make_server

pytestmark = pytest.mark.django_db
Address = tuple[str, int]


class Hosts:
    """HostCounters of one gateway, by the ports of three servers."""

    def __init__(self) -> None:
        self.counts = {port: HostCounts() for port in (9000, 9001, 9002)}
        self.fails: GatewayError | None = None
        self.asked = 0

    def read_hosts(self, **asked: Any) -> dict[Address, HostCounts]:
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        return {("127.0.0.1", port): counts for port, counts in self.counts.items() if counts.attempts}

    def count(self, attempts: int, **failed: int) -> None:
        """So many more on each, of which those on the named port (`p9002=30`) failed."""
        for port in self.counts:
            self.counts[port] += HostCounts(attempts, failed.get(f"p{port}", 0))


@pytest.fixture
def hosts() -> Hosts:
    environment, model = make_environment("production"), make_model()
    Gateway.objects.create(
        environment=environment, name="gateway-1", admin_url="http://127.0.0.1:1", http_url="http://127.0.0.1:2",
        grpc_address="127.0.0.1:3",
    )  # fmt: skip
    stable = make_release(model)
    for slot in range(3):
        deployment = make_deployment(stable, environment, state="ready", slot=slot)
        make_server(deployment, http_port=9000 + slot, grpc_port=9100 + slot)
    set_route(actor=Actor.system("test"), environment=environment, model=model, stable=stable, reason="It serves.")
    return Hosts()


def watched(hosts: Hosts, *stretches: dict[str, int], leads: bool = True) -> list[Event]:
    """What is told when each of these was counted in a stretch of its own, after a long past in which another failed."""
    watch, now = ReplicaWatch(hosts, lambda _: leads), 1000.0
    hosts.count(100_000, p9000=9000)
    watch.turn(now)
    for failed in stretches:
        hosts.count(4000, **failed)
        watch.turn(now + STRETCH_S / 2)  # not yet
        now += STRETCH_S
        watch.turn(now)
    return list(Event.objects.filter(verb=VERB))


def test_the_replica_is_told_with_what_to_do(hosts: Hosts) -> None:
    (event,) = watched(hosts, {"p9002": 200, "p9001": 4, "p9000": 3})
    odd = Deployment.objects.get(slot=2)
    assert (event.subject_type, event.subject_id) == ("deployment", str(odd.pk))
    assert (
        f"of one replica of 3, within ten minutes: {odd.node_id}:9002, 200 of 4000 attempts; the others failed 7 of 8000"
        in event.reason
    )
    assert f"{odd.pk} --set-aside" in event.reason
    assert event.facts["replica"] == f"{odd.node_id}:9002" and event.facts["own"] == [200, 4000]
    assert not Deployment.objects.filter(is_set_aside=True).exists()  # it moves nothing


def test_it_is_told_once_a_day_also_by_another_engine(hosts: Hosts) -> None:
    bad = {"p9002": 200}
    assert len(watched(hosts, bad, bad)) == 1
    assert len(watched(hosts, bad)) == 1
    assert len(watched(hosts, {"p9001": 200})) == 2


@pytest.mark.parametrize(
    "failed",
    [
        {"p9000": 70, "p9001": 80, "p9002": 90},  # alike
        {"p9002": 40},  # five clumps of eight, for all that is known
        {},  # and the one that failed long ago is well
    ],
)
def test_what_may_be_chance_or_is_of_long_ago_is_not_told(hosts: Hosts, failed: dict[str, int]) -> None:
    assert watched(hosts, failed, failed) == []


def test_nothing_is_told_by_who_may_lead_no_more_nor_where_no_gateway_tells(hosts: Hosts) -> None:
    assert watched(hosts, {"p9002": 200}, leads=False) == []
    hosts.fails = GatewayError("timeout", "gateway-1 did not answer in time")
    assert watched(hosts, {"p9002": 200}) == []


def test_one_server_is_not_asked_about(hosts: Hosts) -> None:
    Server.objects.exclude(http_port=9000).delete()
    assert watched(hosts, {"p9000": 200}) == [] and hosts.asked == 0


def test_many_models_take_turns_long_enough_for_a_look(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, other = Gateway.objects.get().environment, make_model("second")
    set_route(
        actor=Actor.system("test"), environment=environment, model=other, stable=make_release(other), reason="It serves."
    )  # fmt: skip
    monkeypatch.setattr(replica_watch, "AT_ONCE", 1)
    watch = ReplicaWatch(hosts, lambda _: True)
    for at in range(0, 4 * int(STRETCH_S), int(EVERY_S)):
        hosts.count(400, p9002=40)
        watch.turn(1000.0 + at)
    assert Event.objects.filter(verb=VERB).count() == 1


def in_replicas(hosts: Hosts, name: str) -> None:
    """Another model whose stable has three servers."""
    environment, model = Gateway.objects.get().environment, make_model(name)
    stable, first = make_release(model), max(hosts.counts) + 1
    for slot in range(3):
        make_server(
            make_deployment(stable, environment, state="ready", slot=slot), http_port=first + slot, grpc_port=first + 500 + slot
        )  # fmt: skip
        hosts.counts[first + slot] = HostCounts()
    set_route(actor=Actor.system("test"), environment=environment, model=model, stable=stable, reason="It serves.")


def test_models_of_one_server_take_no_turn(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Gateway.objects.get().environment
    for name in ("second", "third", "fourth"):
        model = make_model(name)
        set_route(
            actor=Actor.system("test"), environment=environment, model=model, stable=make_release(model), reason="It serves."
        )  # fmt: skip
    monkeypatch.setattr(replica_watch, "AT_ONCE", 1)
    assert len(watched(hosts, {"p9002": 200})) == 1


def test_each_of_many_has_its_turn(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    in_replicas(hosts, "second")
    in_replicas(hosts, "third")
    monkeypatch.setattr(replica_watch, "AT_ONCE", 1)
    watch = ReplicaWatch(hosts, lambda _: True)
    for at in range(0, int(3 * replica_watch.IN_TURN_S), int(EVERY_S)):
        hosts.count(400, p9002=40, p9005=40, p9008=40)
        watch.turn(1000.0 + at)
    told = Event.objects.filter(verb=VERB).values_list("facts__model", flat=True)
    assert len({*told}) == len(told) == 3
