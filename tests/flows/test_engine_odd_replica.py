"""A rollback for errors names the one replica that fails, and never waits for that name."""

from __future__ import annotations

import pytest

from rollouts.models import DecisionRecord
from serving.models import Deployment, Server
from serving.ports import GatewayError, HostCounts
from tests.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.factories import make_deployment, make_server
from tests.rollout_story import Story

pytestmark = pytest.mark.django_db(transaction=True)


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
    second = make_deployment(story.candidate, story.environment, state="ready", slot=1)
    make_server(second, http_port=9900, grpc_port=9901)
    first = Deployment.objects.get(release=story.candidate, slot=0)
    return [Server.objects.get(deployment=first), Server.objects.get(deployment=second)]


def test_the_replica_that_fails_is_named_with_its_counts() -> None:
    story = Story()
    first, second = in_two(story)
    hosts = Hosts(
        {
            (first.host, first.http_port): HostCounts(1000, 0),
            (second.host, second.http_port): HostCounts(500, 300),
            (second.host, second.grpc_port): HostCounts(500, 310),
            ("10.9.9.9", 1): HostCounts(100, 100),  # a server that is gone
        }
    )
    decided = rolled_back(hosts, story)
    name = f"{second.deployment.node_id}:{second.http_port}"

    assert f"of one replica of 2: {name}, 610 of 1000 attempts; the others failed 0 of 1000" in decided.reason
    assert decided.facts["odd_replica"] == {"replica": name, "own": [610, 1000], "others": [0, 1000], "replicas": 2}
    assert hosts.asked == 1


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
