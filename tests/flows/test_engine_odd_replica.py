"""One replica that fails is told from a release that fails: the rollout holds while it is replaced; and a rollback waits for no name."""

from __future__ import annotations

import pytest

from accounts.core.access import Actor
from ledger.models import Event
from rollouts.core import engine_state
from rollouts.core.replay import replay
from rollouts.core.tick_history import rows_in
from rollouts.engine import odd_replicas
from rollouts.models import DecisionRecord
from rollouts.queries import room
from rollouts.queries.replay import history_of
from serving.actions.placement import continue_placing
from serving.models import Deployment, Scale, Server
from serving.ports import GatewayError, HostCounts
from tests.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.factories import make_deployment, make_node, make_server
from tests.rollout_story import Story

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns follow at once, as if a second had passed."""
    monkeypatch.setattr(engine_state, "SETTLES_S", 0.0)


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
    Scale.objects.create(release=story.candidate, environment=story.environment, replicas=2)
    second = make_deployment(story.candidate, story.environment, state="ready", slot=1)
    make_server(second, http_port=9900, grpc_port=9901)
    first = Deployment.objects.get(release=story.candidate, slot=0)
    return [Server.objects.get(deployment=first), Server.objects.get(deployment=second)]


def told(first: Server, second: Server) -> Hosts:
    """The second fails most of what it is asked, and the first nothing."""
    return Hosts(
        {
            (first.host, first.http_port): HostCounts(1000, 0),
            (second.host, second.http_port): HostCounts(500, 300),
            (second.host, second.grpc_port): HostCounts(500, 310),
            ("10.9.9.9", 1): HostCounts(100, 100),  # a server that is gone
        }
    )


def held_for_one(story: Story) -> tuple[Hosts, Server]:
    """The rollout, held for the second of the candidate's two replicas, which gets no more traffic."""
    first, second = in_two(story)
    hosts = story.engine.hosts = told(first, second)
    story.until("shifting")
    story.gateway.set_arm(str(story.candidate.digest), error_frac=0.3)
    for _ in range(40):
        story.turn()
        if "replica_differs" in story.codes():
            return hosts, second
    raise AssertionError(story.codes())


def test_the_rollout_holds_and_the_replica_gets_no_more_traffic() -> None:
    story = Story()
    hosts, second = held_for_one(story)
    name = f"{second.deployment.node_id}:{second.http_port}"
    decided = DecisionRecord.objects.get(rollout=story.rollout, code="replica_differs")
    assert f"of one replica of 2: {name}, 610 of 1000 attempts; the others failed 0 of 1000" in decided.reason
    assert decided.facts["odd_replica"] == {"replica": name, "own": [610, 1000], "others": [0, 1000], "replicas": 2}
    assert decided.action == "hold" and hosts.asked == 1 and story.rollout.weight_bp > 0
    aside = Deployment.objects.get(pk=second.deployment_id)
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
    placed = Deployment.objects.get(node="b")
    assert placed.slot == second.deployment.slot
    weight_bp = story.rollout.weight_bp
    for _ in range(10):
        story.turn()
    assert story.rollout.weight_bp == weight_bp and "waiting for a replica in the place of" in story.rollout.reason
    Deployment.objects.filter(pk=placed.pk).update(state="ready")
    make_server(placed, http_port=9910, grpc_port=9911)
    assert story.until("promoted").weight_bp == 10_000


def taken_back_by_another_engine(story: Story) -> DecisionRecord:
    """How the rollout is taken back, not held first, where nothing of it is in memory when the second of two replicas fails."""
    story.engine.hosts = told(*in_two(story))
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
    monkeypatch.setattr(room, "proven_per_s", lambda _: 0.001)  # no two servers are proven for what users ask
    decided = taken_back_by_another_engine(Story())
    assert decided.code == "worse_than_stable" and decided.facts["odd_replica"]["others"] == [0, 1000]
    assert not Deployment.objects.filter(is_set_aside=True).exists()


def test_where_what_they_are_proven_for_cannot_be_read_it_is_taken_back_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreadable(_: object) -> None:
        raise RuntimeError("the report cannot be read")

    monkeypatch.setattr(odd_replicas, "proven_rates", unreadable)
    decided = taken_back_by_another_engine(Story())
    assert decided.code == "worse_than_stable" and "odd_replica" not in decided.facts


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
    first, second = in_two(story)
    servers = {(one.host, one.http_port): one for one in (first, second)}
    counts = [HostCounts(100_000, 1500), HostCounts(100_000, 14_000)]
    decided = rolled_back(Hosts(dict(zip(servers, counts, strict=True))), story)
    assert decided.code == "worse_than_stable" and decided.facts["odd_replica"]["own"] == [14_000, 100_000]
    assert not Deployment.objects.filter(is_set_aside=True).exists()


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
