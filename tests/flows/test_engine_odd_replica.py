"""One replica that fails is told from a release that fails: the rollout holds while it is replaced; and a rollback waits for no name."""

from __future__ import annotations

import threading

import pytest

from accounts.core.access import Actor
from ledger.models import Event
from rollouts.core.replay import replay
from rollouts.core.rules import replica_differs, stable_replica
from rollouts.core.tick_history import rows_in
from rollouts.engine import loop, odd_replicas
from rollouts.models import DecisionRecord
from rollouts.queries import headroom
from rollouts.queries.replay import history_of
from serving.models import Replica, ReplicaTarget, Server
from serving.ports import GatewayError, HostCounts
from serving.targets.actions.replicas import continue_placing
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.worlds.factories import make_node, make_replica, make_server
from tests.support.worlds.rollout_story import Story

pytestmark = pytest.mark.django_db(transaction=True)


LONG_WELL = HostCounts(100_000, 0)


@pytest.fixture(autouse=True)
def _settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns follow at once, as if a second had passed; and a busy machine is given time for its looks."""
    for rule in (replica_differs, stable_replica):
        monkeypatch.setattr(rule, "SETTLES_S", 0.0)
    monkeypatch.setattr(loop, "WAIT_S", 60.0)


class Hosts:
    """HostCounters: what a gateway counted of servers, or why it tells nothing. `asked` counts the questions."""

    def __init__(self, counts: dict[tuple[str, int], HostCounts] | GatewayError) -> None:
        self.counts, self.asked = counts, 0

    def read_hosts(self, **asked: object) -> dict[tuple[str, int], HostCounts]:
        self.asked += 1
        if isinstance(self.counts, GatewayError):
            raise self.counts
        return self.counts


def rolled_back(hosts: Hosts | None, story: Story) -> DecisionRecord:
    story.engine.hosts = hosts
    story.until("shifting")
    story.gateway.set_arm(str(story.candidate.digest), error_frac=0.3)
    story.until("rolled_back")
    return DecisionRecord.objects.get(rollout=story.rollout, action="roll_back")


def in_two(story: Story) -> list[Server]:
    ReplicaTarget.objects.create(release=story.candidate, environment=story.environment, replicas=2)
    second = make_replica(story.candidate, story.environment, state="ready", ordinal=1)
    make_server(second, http_port=9900, grpc_port=9901)
    first = Replica.objects.get(release=story.candidate, ordinal=0)
    return [Server.objects.get(replica=first), Server.objects.get(replica=second)]


class OneFails(Hosts):
    """All that failed in the story so far failed on the second of two, which got half of what was asked; the first was well for long."""

    def __init__(self, story: Story, first: Server, second: Server, *, of_first: HostCounts) -> None:
        super().__init__(
            {(first.host, first.http_port): of_first, ("10.9.9.9", 1): HostCounts(100, 100)}
        )  # one is gone
        self.story, self.second, self.own = story, second, [0, 0]

    def read_hosts(self, **asked: object) -> dict[tuple[str, int], HostCounts]:
        counted = self.story.gateway.read(gateway="gateway-1", admin_url="", timeout_s=1.0)[self.story.model.slug]
        arm, host = counted.by_release[str(self.story.candidate.digest)], self.second.host
        self.own = [arm.failed, arm.failed + arm.decided // 2]
        mine = {(host, self.second.grpc_port): HostCounts(self.own[1] - 2, self.own[0] - 1)}
        return super().read_hosts(**asked) | mine | {(host, self.second.http_port): HostCounts(2, 1, 0, 1)}


def told(story: Story, *, of_first: HostCounts = LONG_WELL) -> OneFails:
    return OneFails(story, *in_two(story), of_first=of_first)


def held_for_one(story: Story) -> tuple[OneFails, Server]:
    """The rollout, held for the second of the candidate's two replicas, which gets no more traffic."""
    hosts = story.engine.hosts = told(story)
    story.until("shifting")
    story.gateway.set_arm(str(story.candidate.digest), error_frac=0.3)
    for _ in range(40):
        story.turn()
        if "replica_differs" in story.codes():
            return hosts, hosts.second
    raise AssertionError(story.codes())


def test_the_rollout_holds_and_the_replica_gets_no_more_traffic() -> None:
    story = Story()
    hosts, second = held_for_one(story)
    name = f"{second.replica.node_id}:{second.http_port}"
    decided = DecisionRecord.objects.get(rollout=story.rollout, code="replica_differs")
    bad, attempts = hosts.own
    assert (
        f"of one replica of 2: {name}, {bad} of {attempts} attempts, 1 of which found nobody there; the others"
        in decided.reason
    )
    told_of = {"replica": name, "own": [bad, attempts], "others": [0, 100_000], "replicas": 2, "unreached": 1}
    assert decided.facts["odd_replica"] == told_of
    assert decided.action == "hold" and hosts.asked == 1 and story.rollout.weight_bp > 0
    aside = Replica.objects.get(pk=second.replica_id)
    assert aside.is_set_aside and not Server.objects.get(pk=second.pk).is_serving
    assert Event.objects.filter(verb="rollout.held", subject_id=str(story.rollout.pk)).count() == 1
    again = replay(list(rows_in(history_of(story.rollout))), story.rollout.effective_policy)
    assert [walk.decision.code.value for walk in again if walk.tick == decided.tick] == ["replica_differs"]


def test_it_goes_on_with_another_in_its_place() -> None:
    story = Story()
    _, second = held_for_one(story)
    story.gateway.set_arm(str(story.candidate.digest), error_frac=0.0)
    make_node("b")
    continue_placing(actor=Actor.system("agent:local"))
    placed = Replica.objects.get(node="b")
    assert placed.ordinal == second.replica.ordinal
    weight_bp = story.rollout.weight_bp
    for _ in range(10):
        story.turn()
    assert story.rollout.weight_bp == weight_bp and "waiting for a replica in the place of" in story.rollout.reason
    Replica.objects.filter(pk=placed.pk).update(state="ready")
    make_server(placed, http_port=9910, grpc_port=9911)
    assert story.until("promoted").weight_bp == 10_000


def taken_back_by_another_engine(story: Story) -> DecisionRecord:
    """How the rollout is taken back, not held first, where nothing of it is in memory when the second of two replicas fails."""
    story.engine.hosts = told(story)
    story.until("shifting")
    story.gateway.set_arm(str(story.candidate.digest), error_frac=0.3)
    for _ in range(40):
        story.engine.cache.forget()
        if story.turn().state == "rolled_back":
            assert "replica_differs" not in story.codes()
            return DecisionRecord.objects.get(rollout=story.rollout, action="roll_back")
    raise AssertionError(story.codes())


def test_what_the_replicas_left_are_proven_for_is_known_to_an_engine_that_took_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(headroom, "proven_per_s", lambda _: 0.001)  # no two servers are proven for what users ask
    decided = taken_back_by_another_engine(Story())
    assert decided.code == "worse_than_stable" and decided.facts["odd_replica"]["others"] == [0, 100_000]
    assert not Replica.objects.filter(is_set_aside=True).exists()


def test_where_what_they_are_proven_for_cannot_be_read_it_is_taken_back_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreadable(_: object) -> None:
        raise RuntimeError("the report cannot be read")

    monkeypatch.setattr(odd_replicas, "proven_rates", unreadable)
    decided = taken_back_by_another_engine(Story())
    assert decided.code == "worse_than_stable" and "odd_replica" not in decided.facts


def test_a_rollback_does_not_wait_for_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = threading.Event(), threading.Event()

    def slow(_: object) -> tuple[None, None]:
        asked.set()
        answered.wait(120)
        return None, None

    monkeypatch.setattr(odd_replicas, "proven_rates", slow)
    monkeypatch.setattr(loop, "WAIT_S", 1.0)
    decided = taken_back_by_another_engine(Story())
    assert decided.code == "worse_than_stable" and "odd_replica" not in decided.facts
    assert asked.is_set() and not answered.is_set()
    answered.set()


def test_where_the_others_fail_too_it_is_taken_back_as_ever() -> None:
    story = Story()
    hosts, _ = held_for_one(story)  # and the failures go on
    story.until("rolled_back")
    assert {"worse_than_stable", "objective_breached"} & {
        *story.codes()
    } and hosts.asked == 1  # one server is left, and nobody to compare it with


def test_one_whose_place_nobody_takes_in_time_is_taken_back() -> None:
    story = Story(prepare_deadline_s=1)
    held_for_one(story)
    story.gateway.set_arm(str(story.candidate.digest), error_frac=0.0)
    story.until("rolled_back", turns=4000, requests=20)
    last = DecisionRecord.objects.get(rollout=story.rollout, action="roll_back")
    assert last.code == "replica_differs" and "and none answers. Rolling back to r1." in last.reason


def test_where_the_others_are_not_wholly_well_it_is_taken_back_with_the_name() -> None:
    story = Story()
    hosts = told(story, of_first=HostCounts(100_000, 1500))
    decided = rolled_back(hosts, story)
    assert decided.code == "worse_than_stable" and decided.facts["odd_replica"]["own"] == hosts.own
    assert not Replica.objects.filter(is_set_aside=True).exists()


@pytest.mark.parametrize(
    "counts",
    [{("127.0.0.1", 9900): HostCounts(100, 30)}, GatewayError("timeout", "gateway-1 did not answer in time"), {}],
)
def test_without_a_name_it_is_rolled_back_all_the_same(
    counts: dict[tuple[str, int], HostCounts] | GatewayError,
) -> None:
    story = Story()
    in_two(story)
    hosts = Hosts(counts)
    decided = rolled_back(hosts, story)
    assert "replica" not in decided.reason and "odd_replica" not in decided.facts and hosts.asked == 1


def test_one_replica_is_not_asked_about() -> None:
    hosts = Hosts({})
    rolled_back(hosts, Story())
    assert hosts.asked == 0
