"""One bad replica of stable is told before a rollout opens beside it; another takes its place, and the candidate is judged afresh."""

from __future__ import annotations

from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest
from django.utils import timezone

from ledger.models import Event
from ledger.queries.clock import DatabaseClock
from rollouts.core.replay import replay
from rollouts.core.rules import replica_differs, stable_replica
from rollouts.core.tick_history import rows_in
from rollouts.engine import loop, stable_replicas
from rollouts.models import DecisionRecord, Rollout
from rollouts.queries import headroom
from rollouts.queries.replay import history_of
from serving.models import Gateway, Node, Replica, ReplicaTarget, Server
from serving.ports import GatewayError, HostCounts
from serving.traffic.control_plane import store
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.worlds.factories import make_node, make_replica, make_server
from tests.support.worlds.rollout_story import Story

pytestmark = pytest.mark.django_db(transaction=True)
CODE = "replica_differs"
#: Long ago another replica failed a lot; and one that is unknown still does.
BEFORE = HostCounts(1_000_000, 50_000)


@pytest.fixture(autouse=True)
def _settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns follow at once, as if a second had passed; and a busy machine is given time for its looks."""
    for rule in (replica_differs, stable_replica):
        monkeypatch.setattr(rule, "SETTLES_S", 0.0)
    monkeypatch.setattr(stable_replicas, "WAIT_S", 60.0)


class Hosts:
    """HostCounters: either release has three servers, and all that it failed in the story so far failed on the last of them."""

    def __init__(self, story: Story) -> None:
        ReplicaTarget.objects.create(release=story.stable, environment=story.environment, replicas=3)
        for ordinal in (1, 2):
            for release, port in ((story.stable, 9900), (story.candidate, 9920)):
                made = make_replica(release, story.environment, state="ready", ordinal=ordinal)
                make_server(made, http_port=port + ordinal, grpc_port=port + 10 + ordinal)
        servers = Server.objects.filter(replica__release=story.stable).order_by("replica__ordinal")
        self.story, self.servers, self.asked, self.fails = story, list(servers), 0, None

    @property
    def name(self) -> str:
        return f"{self.servers[2].replica.node_id}:{self.servers[2].http_port}"

    def read_hosts(self, *, digest: str, **asked: object) -> dict[tuple[str, int], HostCounts]:
        assert self.story.stable is not None
        if digest != str(self.story.stable.digest):
            return {}
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        counted = self.story.gateway.read(gateway="gateway-1", admin_url="", timeout_s=1.0)[self.story.model.slug]
        arm = counted.by_release[digest]
        each = arm.decided // 3
        first, second, third = ((one.host, one.http_port) for one in self.servers)
        return {
            first: BEFORE + HostCounts(each),
            second: HostCounts(each),
            third: HostCounts(each + arm.failed, arm.failed),
            ("10.9.9.9", 1): HostCounts(each, each),
        }


class Seconds(DatabaseClock):
    """A clock by which at least a second passes between two turns, however fast they are made: failures of one second are one clump."""

    turns = 0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.turns)


class Paced(Story):
    """A story whose turns are seconds. The objective is so wide that nothing is over it, unless `max_frac` is said."""

    def __init__(self, *, max_frac: float = 0.5) -> None:
        stage = {"min_s": 0, "min_samples": 300, "deadline_s": 600}
        steps = [{"weight_pct": weight, **stage} for weight in (25, 50)]
        super().__init__(
            preset="fast", steps=steps, bake=stage, guards=[{"indicator": "errors", "max_frac": max_frac}], stale_s=600
        )
        self.clock = self.engine.clock = Seconds()
        self.gateway._now = self.clock.now

    def turn(self, requests: int = 200) -> Rollout:
        self.clock.turns += 1
        store.write_seen([Gateway.objects.get().pk], self.clock.now())
        return super().turn(requests)


def beside_a_bad_one(**said: float) -> tuple[Story, Hosts]:
    """The candidate fails as much as stable does, of which one replica does all of it."""
    story = Paced(**said)
    hosts = story.engine.hosts = Hosts(story)
    story.until("shifting")
    for arm in (story.stable, story.candidate):
        story.gateway.set_arm(str(arm.digest), error_frac=0.04)
    return story, hosts


def until_told(story: Story) -> DecisionRecord:
    for _ in range(60):
        story.turn()
        if CODE in story.codes():
            return DecisionRecord.objects.get(rollout=story.rollout, code=CODE)
    raise AssertionError((story.codes(), story.rollout.reason))


def test_where_nobody_tells_it_goes_on_as_ever() -> None:
    story, hosts = beside_a_bad_one()
    hosts.fails = GatewayError("timeout", "gateway-1 did not answer in time")
    story.until("promoted")  # nobody knows better: it is as good as what stable showed
    assert hosts.asked and CODE not in story.codes()


def test_the_rollout_holds_says_so_and_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "proven_per_s", lambda _: 1e9)
    story, hosts = beside_a_bad_one()
    make_node("b")
    weight_bp, decided = story.rollout.weight_bp, until_told(story)
    odd = hosts.servers[2].replica
    assert decided.action == "hold" and decided.facts["stable_replica"]["replica"] == hosts.name
    assert decided.facts["stable_replica"]["others"][0] == 0  # what the first failed long ago is not of this stage
    assert f"errors of r1 are of one replica of 3: {hosts.name}, " in decided.reason
    odd.refresh_from_db()
    assert odd.is_set_aside and Replica.objects.get(node="b").ordinal == odd.ordinal
    held = Event.objects.get(verb="rollout.held", subject_id=str(story.rollout.pk), facts__code=CODE)
    assert hosts.name in held.reason and Event.objects.filter(verb="deployment.set_aside", subject_id=odd.pk).exists()
    again = replay(list(rows_in(history_of(story.rollout))), story.rollout.effective_policy)
    assert [walk.decision.code.value for walk in again if walk.tick == decided.tick] == [CODE]

    asked = hosts.asked
    for _ in range(5):
        story.turn()
    assert story.rollout.weight_bp == weight_bp and story.rollout.state == "shifting"
    assert f"waiting for a replica of r1 in the place of {hosts.name}" in story.rollout.reason
    assert hosts.asked == asked and Replica.objects.filter(release=story.stable, ordinal=odd.ordinal).count() == 2


def replaced(story: Story, hosts: Hosts) -> None:
    """Another answers in the place of the odd one, which ends; from then on stable fails nothing."""
    placed = Replica.objects.get(node="b")
    Replica.objects.filter(pk=placed.pk).update(state="ready")
    make_server(placed, http_port=9910, grpc_port=9911)
    Server.objects.filter(pk=hosts.servers[2].pk).update(ended_at=timezone.now(), is_serving=False)
    Replica.objects.filter(pk=hosts.servers[2].replica_id).update(state="gone")
    story.gateway.set_arm(str(story.stable.digest), error_frac=0.0)


@pytest.mark.parametrize(
    "max_frac", [0.5, 0.01]
)  # it would advance; it would be excused, as stable is over the objective too
def test_a_candidate_that_is_as_bad_as_stable_looks_is_taken_back_once_the_replica_is_replaced(max_frac: float) -> None:
    story, hosts = beside_a_bad_one(max_frac=max_frac)
    make_node("b")
    until_told(story)
    odd = Replica.objects.get(pk=hosts.servers[2].replica_id)
    assert not odd.is_set_aside and odd.drain_asked_at is not None  # nothing is proven: it answers until another does
    replaced(story, hosts)
    story.until("rolled_back")
    decided = DecisionRecord.objects.get(rollout=story.rollout, action="roll_back")
    assert decided.code in {"worse_than_stable", "objective_breached"} and story.codes().count(CODE) == 1


def test_one_that_is_well_goes_on_once_it_is_replaced() -> None:
    story, hosts = beside_a_bad_one()
    make_node("b")
    until_told(story)
    story.gateway.set_arm(str(story.candidate.digest), error_frac=0.0)
    replaced(story, hosts)
    assert story.until("promoted").weight_bp == 10_000


def test_where_no_node_has_room_it_is_said_and_the_weight_stays() -> None:
    story, hosts = beside_a_bad_one()
    Node.objects.update(removed_at=timezone.now())
    until_told(story)
    weight_bp = story.rollout.weight_bp
    for _ in range(10):
        story.turn()
    assert story.rollout.weight_bp == weight_bp and "in the place of" in story.rollout.reason
    assert not Replica.objects.get(pk=hosts.servers[2].replica_id).is_set_aside


def test_a_rollback_does_not_wait_for_stable() -> None:
    story, _ = beside_a_bad_one()
    until_told(story)
    story.gateway.set_arm(str(story.candidate.digest), error_frac=0.9)
    story.until("rolled_back")
    assert {"all_failing", "mostly_failing", "worse_than_stable", "objective_breached"} & {*story.codes()}


def test_the_one_in_its_place_at_the_same_port_is_not_taken_for_it() -> None:
    story, hosts = beside_a_bad_one()
    make_node("b")
    until_told(story)
    odd = hosts.servers[2]
    Server.objects.filter(pk=odd.pk).update(ended_at=timezone.now(), is_serving=False)
    Replica.objects.filter(pk=odd.replica_id).update(state="gone")
    placed = Replica.objects.get(node="b")
    Replica.objects.filter(pk=placed.pk).update(state="ready", node=odd.replica.node)
    make_server(placed, http_port=odd.http_port, grpc_port=odd.grpc_port)
    for arm in (story.stable, story.candidate):
        story.gateway.set_arm(str(arm.digest), error_frac=0.0)
    story.until("promoted")
    assert Replica.objects.filter(release=story.stable).count() == 4  # no other was placed


def test_one_that_starts_anew_on_another_port_is_waited_for_still() -> None:
    story, hosts = beside_a_bad_one()
    make_node("b")
    until_told(story)
    Server.objects.filter(pk=hosts.servers[2].pk).update(http_port=9999)
    for _ in range(5):
        story.turn()
    assert f"waiting for a replica of r1 in the place of {hosts.name}" in story.rollout.reason


def test_gateways_that_may_hang_are_asked_after_all_rollouts_asked_for_their_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story, _ = beside_a_bad_one()
    engine, asked = story.engine, list[str]()
    for name in ("ensure_replicas", "ensure_replaced"):
        monkeypatch.setattr(loop, name, lambda entry, world, name=name: asked.append(name))
    monkeypatch.setattr(engine._stables, "untold", lambda entries, world: entries)
    monkeypatch.setattr(engine._stables, "follow", lambda entry, world, hosts: asked.append("follow"))
    (entry,) = engine.cache.read()
    engine._ask_ahead([entry, entry], Mock())
    assert asked == ["ensure_replicas"] * 2 + ["ensure_replaced"] * 2 + ["follow"] * 2
