"""What waits for what, where a gateway is slow or silent and much changes at once."""

from __future__ import annotations

import dataclasses

from envoy.service.discovery.v3 import discovery_pb2

from serving.traffic.control_plane.flights import MOST_FLYING
from serving.traffic.control_plane.protos import ENDPOINTS, SCOPE
from serving.traffic.control_plane.snapshot import Snapshot
from serving.traffic.control_plane.stream import ACK_TIMEOUT_S, RETRY_S
from serving.traffic.core.routes import ServerAddress
from tests.support.servers.gateway_peer import A, Peer, route, snapshot


def test_a_rollback_waits_for_few_of_a_thousand_other_routes() -> None:
    peer = Peer()
    names = [f"m-{i:03d}" for i in range(100)]
    first = snapshot(*(route(candidate=None, bp=0, model=name) for name in names))
    peer.settle(first)
    renamed = dataclasses.replace(A, name="r9")
    others = [dataclasses.replace(one, stable=renamed, generation=2) for one in first.table.models]
    second = snapshot(*others, last=first)
    for response in peer.stream.due(second, 0.0):
        peer._take(response)  # the clusters: then every virtual host is to be sent
    on_their_way = [one for one in peer.stream.due(second, 0.0) if one.type_url == SCOPE]
    assert len(on_their_way) == MOST_FLYING[SCOPE]
    urgent = dataclasses.replace(others[0], candidate_bp=0, generation=3, slot=1)
    third = snapshot(urgent, *others[1:], last=second)
    assert [one for one in peer.stream.due(third, 0.0) if one.type_url == SCOPE] == []
    for response in on_their_way[: MOST_FLYING[SCOPE] // 2]:
        peer._take(response)
    following = [one for one in peer.stream.due(third, 0.0) if one.type_url == SCOPE]
    assert following[0].resources[0].name == "gateway/m-000"
    for response in (*on_their_way[MOST_FLYING[SCOPE] // 2 :], *following):
        peer._take(response)
    peer.settle(third)
    assert {(one.route_id, one.generation) for one in peer.stream.acks(third)} >= {(5, 3)}
    assert peer.settle(third) == []


def test_a_gateway_that_is_slower_than_its_replicas_come_and_go_gets_the_newest_state() -> None:
    peer = Peer()
    names = [f"m-{i}" for i in range(20)]
    now = snapshot(*(route(candidate=None, bp=0, model=name) for name in names), route())
    peer.settle(now)
    on_their_way = []
    for port in range(9101, 9121):  # of each model one after another, and nothing is answered
        moved = dataclasses.replace(A, endpoints=(ServerAddress("127.0.0.1", port, port + 500),))
        routes = list(now.table.models)
        routes[port - 9101] = dataclasses.replace(routes[port - 9101], stable=moved)
        now = snapshot(*routes, last=now)
        on_their_way += peer.stream.due(now, 0.0)
    assert [one.type_url for one in on_their_way] == [ENDPOINTS] * MOST_FLYING[ENDPOINTS]
    back = dataclasses.replace(now.table.models[-1], candidate_bp=0, generation=2)
    now = snapshot(*now.table.models[:-1], back, last=now)
    assert [one.type_url for one in peer.stream.due(now, 0.0)] == [SCOPE], "a rollback waits for none of them"
    peer._take(on_their_way[0])
    (newest,) = peer.stream.due(now, 0.0)
    assert newest.type_url == ENDPOINTS
    assert len(newest.resources) == (len(names) - MOST_FLYING[ENDPOINTS]) * len(on_their_way[0].resources)
    for response in (*on_their_way[1:], newest):
        peer._take(response)
    peer.settle(now)
    held = {name: version for model in now.models.values() for name, version in model.endpoints.items()}
    assert peer.stream._kinds[ENDPOINTS].accepted == {name: one.version for name, one in held.items()}


def with_a_replica_less(current: Snapshot) -> Snapshot:
    """None of them asks a late request a second time any more: their virtual hosts change, their weights do not."""
    alone = [dataclasses.replace(one, stable=A) for one in current.table.models]
    return snapshot(*alone, last=current)


def of_two_replicas(count: int) -> Snapshot:
    two = dataclasses.replace(A, endpoints=(*A.endpoints, ServerAddress("127.0.0.1", 9031, 9032)))
    names = [f"m-{i:02d}" for i in range(count)]
    routes = [
        dataclasses.replace(route(candidate=None, bp=0, model=name), stable=two, route_id=i)
        for i, name in enumerate(names)
    ]
    return snapshot(*routes)


def hosts_in(response: discovery_pb2.DeltaDiscoveryResponse) -> list[str]:
    return [one.name for one in response.resources]


def test_virtual_hosts_that_keep_their_weights_go_together_after_a_rollback() -> None:
    count = 2 * MOST_FLYING[SCOPE] + 5
    peer, first = Peer(), of_two_replicas(count)
    peer.settle(first)
    assert len(peer.stream.acks(first)) == count
    fewer = with_a_replica_less(first)
    back = dataclasses.replace(fewer.table.models[7], generation=2)
    second = snapshot(*fewer.table.models[:7], back, *fewer.table.models[8:], last=fewer)
    groups = []
    while responses := peer.stream.due(second, 0.0):
        groups += [hosts_in(one) for one in responses if one.type_url == SCOPE]
        for response in responses:
            peer._take(response)
    assert groups[0] == ["gateway/m-07"]
    assert [len(one) for one in groups] == [1, MOST_FLYING[SCOPE] - 1, MOST_FLYING[SCOPE], 5]
    assert {name for group in groups for name in group} == set(second.models)


def test_a_gateway_that_says_nothing_has_few_virtual_hosts_on_their_way_and_a_rollback_all_the_same() -> None:
    both = of_two_replicas(MOST_FLYING[SCOPE] + 5)
    peer = Peer()
    peer.settle(both)
    peer.stream.acks(both)
    peer.is_silent_on = {SCOPE}
    sent, now = [], both
    for look in range(40):  # all change, again and again
        stable = A if look % 2 == 0 else both.table.models[0].stable
        now = snapshot(*(dataclasses.replace(one, stable=stable) for one in now.table.models), last=now)
        while responses := peer.stream.due(now, look * 0.05):
            sent += [name for one in responses if one.type_url == SCOPE for name in hosts_in(one)]
            for response in responses:
                peer._take(response)
    assert len(sent) == MOST_FLYING[SCOPE]


def test_a_rollback_does_not_wait_for_as_many_others_as_may_be_on_their_way() -> None:
    peer, both = Peer(), of_two_replicas(MOST_FLYING[SCOPE] + 1)
    peer.settle(both)
    peer.stream.acks(both)
    peer.is_silent_on = {SCOPE}
    *others, last = both.table.models
    second = snapshot(*(dataclasses.replace(one, stable=A) for one in others), last, last=both)
    peer.settle(second)
    third = snapshot(*second.table.models[:-1], dataclasses.replace(last, generation=2), last=second)
    assert [hosts_in(one) for one in peer.stream.due(third, 0.0)] == [["gateway/m-20"]]


def test_one_bad_virtual_host_among_many_is_found() -> None:
    count = 12
    peer, first = Peer(), of_two_replicas(count)
    peer.settle(first)
    peer.stream.acks(first)
    peer.refuses["gateway/m-03"] = "cannot parse"
    second = with_a_replica_less(first)
    peer.settle(second)
    errors = {one.route_id: one.error for one in peer.stream.acks(second)}
    assert errors == {3: "cannot parse"}  # the others were acknowledged before, and still are
    taken = peer.stream._kinds[SCOPE].accepted
    assert [name for name, one in second.models.items() if taken[name] != one.scope.version] == ["gateway/m-03"]
    peer.refuses.clear()
    peer.settle(of_two_replicas(count), now=1.0)
    assert not peer.stream._alone


def test_a_gateway_that_is_slow_and_goes_on_answering_is_not_blamed() -> None:
    peer, now = Peer(), snapshot(*(route(candidate=None, bp=0, model=f"m-{i}") for i in range(9)))
    peer.settle(now)
    peer.stream.acks(now)
    on_their_way = []
    for i in range(4):
        moved = dataclasses.replace(A, endpoints=(ServerAddress("127.0.0.1", 9100 + i, 9200 + i),))
        routes = list(now.table.models)
        routes[i] = dataclasses.replace(routes[i], stable=moved)
        now = snapshot(*routes, last=now)
        on_their_way += peer.stream.due(now, 0.0)
    *answered, never = on_their_way
    for i, response in enumerate(answered):  # each after nearly as long as one may take
        peer._take(response)
        assert peer.stream.due(now, (i + 0.9) * ACK_TIMEOUT_S) == []
    assert len(answered) == 3 and not peer.stream._kinds[ENDPOINTS].refused
    last = (2 + 0.9) * ACK_TIMEOUT_S
    assert peer.settle(now, last + 1.1 * ACK_TIMEOUT_S) == []
    assert set(peer.stream._kinds[ENDPOINTS].refused) == set(hosts_in(never))
    assert peer.settle(now, last + 0.9 * RETRY_S) == []  # nor offered anew before its time
    assert peer.settle(now, last + 1.1 * RETRY_S) == ["EDS"]


def test_a_replica_that_goes_makes_only_what_it_changes_anew() -> None:
    first = of_two_replicas(2)
    second = with_a_replica_less(first)
    was, now = (one.models["gateway/m-00"] for one in (first, second))
    assert was.scope.version != now.scope.version and was.endpoints != now.endpoints
    third = snapshot(*(dataclasses.replace(one, generation=5) for one in second.table.models), last=second)
    changed = third.models["gateway/m-00"]
    assert changed.scope is not now.scope
    assert all(changed.clusters[name] is one for name, one in now.clusters.items())
    assert all(changed.endpoints[name] is one for name, one in now.endpoints.items())
