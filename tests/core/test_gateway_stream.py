"""The order in which one gateway is told things, and what it means when it refuses or says nothing."""

from __future__ import annotations

import dataclasses

from envoy.service.discovery.v3 import discovery_pb2

from serving.control_plane.flights import MOST_FLYING
from serving.control_plane.protos import CLUSTER, ENDPOINTS, LISTENER, OLDER_ROUTES, SCOPE
from serving.control_plane.snapshot import Snapshot, compile_listeners, compile_table
from serving.control_plane.stream import (
    ACK_TIMEOUT_S,
    GRACE_S,
    OLDER_CONNECTIONS,
    RETRY_S,
    STUCK_S,
    GatewayStream,
    StreamAck,
)  # fmt: skip
from serving.core.routes import Arm, Endpoint, ModelRoute, RoutingTable

A = Arm("r1", "sha256:" + "a" * 64, (Endpoint("127.0.0.1", 9001, 9002),))
B = Arm("r2", "sha256:" + "b" * 64, (Endpoint("127.0.0.1", 9011, 9012),))
C = Arm("r3", "sha256:" + "c" * 64, (Endpoint("127.0.0.1", 9021, 9022),))
SHORT = {CLUSTER: "CDS", ENDPOINTS: "EDS", LISTENER: "LDS", SCOPE: "SRDS"}


def route(candidate: Arm | None = B, bp: int = 500, generation: int = 1, model: str = "sentiment") -> ModelRoute:
    return ModelRoute(len(model), model, generation, A, candidate, bp)


def snapshot(*routes: ModelRoute, last: Snapshot | None = None) -> Snapshot:
    return compile_table(
        RoutingTable("production", max((r.generation for r in routes), default=0), False, routes), last
    )


class Peer:
    """An Envoy's side of the stream: subscribes as Envoy does, and acknowledges unless told otherwise."""

    def __init__(self, held: dict[str, dict[str, str]] | None = None) -> None:
        self.stream = GatewayStream(compile_listeners((("127.0.0.1", 8000),)), now=0.0)
        self.log: list[str] = []
        self.removed: list[str] = []
        self.refuses: dict[str, str] = {}
        self.is_silent_on: set[str] = set()
        self.held = held or {}
        self._asked: set[str] = set()
        self.ask(CLUSTER)

    def ask(self, type_url: str, names: tuple[str, ...] = ()) -> None:
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=names)
        if type_url not in self._asked:
            request.initial_resource_versions.update(self.held.get(type_url, {}))
        self._asked.add(type_url)
        self.stream.receive(request)

    def settle(self, current: Snapshot, now: float = 0.0) -> list[str]:
        """Answers until nothing is due; returns what was sent, in order."""
        start = len(self.log)
        for _ in range(30):
            responses = self.stream.due(current, now)
            if not responses:
                return self.log[start:]
            for response in responses:
                self._take(response)
        raise AssertionError(f"never settles: {self.log[-6:]}")

    def _take(self, response: discovery_pb2.DeltaDiscoveryResponse) -> None:
        names = [one.name for one in response.resources]
        self.log.append(SHORT[response.type_url] + ("-" if response.removed_resources else ""))
        self.removed += response.removed_resources
        if response.type_url in self.is_silent_on:
            return
        words = next((text for name, text in self.refuses.items() if name in names), "")
        answer = discovery_pb2.DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
        if words:
            answer.error_detail.message = words
        self.stream.receive(answer)
        if response.type_url == CLUSTER:
            new = tuple(name for name in names if "_or_" not in name and name not in words)
            if new:
                self.ask(ENDPOINTS, new)
            if LISTENER not in self._asked:
                self.ask(LISTENER)
        if response.type_url == LISTENER:
            self.ask(SCOPE)


def test_clusters_come_before_the_listener_and_the_routes_come_last() -> None:
    peer, current = Peer(), snapshot(route())
    assert peer.settle(current) == ["CDS", "EDS", "LDS", "SRDS"]
    assert peer.stream.acks(current) == [StreamAck(9, 1)]
    assert peer.stream.acks(current) == []


def test_a_weight_change_sends_one_virtual_host_only() -> None:
    peer, first = Peer(), snapshot(route())
    peer.settle(first)
    second = snapshot(route(bp=0, generation=2), route(model="other", generation=1), last=first)
    peer.settle(second)
    third = snapshot(route(bp=700, generation=3), route(model="other", generation=1), last=second)
    assert peer.settle(third) == ["SRDS"]
    assert StreamAck(9, 3) in peer.stream.acks(third)


def test_routes_wait_for_the_new_clusters_endpoints() -> None:
    peer, first = Peer(), snapshot(route(candidate=None, bp=0))
    peer.settle(first)
    peer.stream.acks(first)
    peer.is_silent_on = {ENDPOINTS}
    second = snapshot(route(generation=2), last=first)
    assert peer.settle(second) == ["CDS", "EDS"]
    assert peer.stream.acks(second) == []


def test_a_changed_cluster_gets_its_endpoints_again() -> None:
    peer, first = Peer(), snapshot(route())
    peer.settle(first)
    renamed = route(candidate=dataclasses.replace(B, name="r22"), generation=2)  # its metadata change
    sent = peer.settle(snapshot(renamed, last=first))
    assert sent[:2] == ["CDS", "EDS"]
    assert sent[-1] == "SRDS"


def test_old_clusters_go_only_after_the_grace_period_and_aggregates_first() -> None:
    peer, first = Peer(), snapshot(route())
    peer.settle(first)
    second = snapshot(route(candidate=None, bp=0, generation=2), last=first)
    assert peer.settle(second, now=1.0) == ["SRDS"]
    assert peer.settle(second, now=1.0 + GRACE_S - 0.1) == []
    assert peer.settle(second, now=1.0 + GRACE_S) == ["CDS-"]
    own = [name for name in peer.removed if "_or_" not in name]
    assert len(own) == 4  # for each protocol one for requests, one for streams
    assert peer.removed[-4:] == own
    assert len(peer.removed) == 4 + 6


def test_clusters_that_are_gone_are_forgotten() -> None:
    peer, last, now = Peer(), snapshot(route()), 0.0
    peer.settle(last)
    for number in range(2, 6):
        candidate = dataclasses.replace(B, digest="sha256:" + f"{number}" * 64)
        last = snapshot(route(candidate=candidate, generation=number), last=last)
        unsent = dataclasses.replace(B, digest="sha256:" + f"{number}0" * 32)
        last = snapshot(route(candidate=unsent, generation=number), last=last)
        last = snapshot(route(candidate=candidate, generation=number), last=last)  # it never heard of the one between
        peer.settle(last, now=now)
        now += GRACE_S
        peer.settle(last, now=now)
    assert len(peer.removed) == 4 * (4 + 6)
    assert peer.stream._unused == set() and peer.stream._unused_since == {}


def test_an_empty_snapshot_takes_nothing_away() -> None:
    peer, first = Peer(), snapshot(route())
    peer.settle(first)
    peer.settle(snapshot(), now=100.0)
    peer.settle(snapshot(), now=200.0)
    assert peer.removed == []


def test_a_gateway_that_comes_back_is_sent_its_routes_again_and_no_cluster_that_it_has() -> None:
    current = snapshot(route())
    held = {
        CLUSTER: {name: one.version for name, one in current.clusters.items()},
        SCOPE: {name: model.scope.version for name, model in current.models.items()},
    }
    peer = Peer(held)
    peer.ask(ENDPOINTS, tuple(current.endpoints))
    peer.ask(SCOPE)
    assert peer.stream.acks(current) == []
    sent = peer.settle(current)
    assert "CDS-" not in sent and "SRDS" in sent
    assert peer.removed == []
    assert StreamAck(9, 1) in peer.stream.acks(current)


def test_what_a_stream_was_not_sent_it_cannot_acknowledge() -> None:
    current = snapshot(route(bp=0))
    knows = {
        CLUSTER: {name: one.version for name, one in current.clusters.items()},
        LISTENER: {name: one.version for name, one in compile_listeners((("127.0.0.1", 8000),)).items()},
        SCOPE: {name: model.scope.version for name, model in current.models.items()},
    }
    peer = Peer(knows)
    for type_url in knows:
        peer.ask(type_url)
    peer.ask(ENDPOINTS, tuple(current.endpoints))
    for error in ("", "no"):
        for nonce in range(50):
            guess = discovery_pb2.DeltaDiscoveryRequest(type_url=SCOPE, response_nonce=str(nonce))
            if error:
                guess.error_detail.message = error
            peer.stream.receive(guess)
        assert peer.stream.acks(current) == []
    assert "SRDS" in peer.settle(current)
    assert StreamAck(9, 1) in peer.stream.acks(current)


def test_a_gateway_keeps_what_an_empty_control_plane_does_not_know() -> None:
    current = snapshot(route())
    peer = Peer({SCOPE: {name: model.scope.version for name, model in current.models.items()}})
    peer.ask(SCOPE)
    peer.settle(snapshot(), now=100.0)
    assert peer.removed == []


def test_a_gateway_keeps_what_it_has_of_a_model_of_which_no_route_can_be_made() -> None:
    both = (route(model="sentiment"), route(model="other"))
    whole, now = snapshot(*both), 0.0
    held = {
        CLUSTER: {name: one.version for name, one in whole.clusters.items()},
        SCOPE: {name: model.scope.version for name, model in whole.models.items()},
    }
    unmade = compile_table(RoutingTable("production", 2, False, both[:1], frozenset({"other"})))
    peer = Peer(held)  # the control plane was started anew
    peer.ask(ENDPOINTS, tuple(whole.endpoints))
    for _ in range(3):
        peer.settle(unmade, now)
        now += GRACE_S
    assert peer.removed == []
    removed = compile_table(RoutingTable("production", 3, False, both[:1]), unmade)
    peer.settle(removed, now)
    peer.settle(removed, now + GRACE_S)
    assert peer.removed[0] == "gateway/other" and sum(one.startswith("other_") for one in peer.removed) > 4
    assert not any("sentiment" in one for one in peer.removed)


def test_a_refused_route_is_reported_and_not_offered_again() -> None:
    peer, first = Peer(), snapshot(route())
    peer.settle(first)
    peer.stream.acks(first)
    peer.refuses["gateway/sentiment"] = "weights are odd"
    second = snapshot(route(bp=0, generation=2), last=first)
    assert peer.settle(second) == ["SRDS"]
    assert peer.stream.acks(second) == [StreamAck(9, 2, "weights are odd")]
    assert peer.settle(second, now=50.0) == []
    peer.refuses.clear()
    third = snapshot(route(bp=1, generation=3), last=second)
    peer.settle(third, now=51.0)
    assert peer.stream.acks(third) == [StreamAck(9, 3)]


def test_a_refused_port_is_tried_again_and_the_try_is_no_word_on_any_route() -> None:
    two = compile_listeners((("127.0.0.1", 8000), ("127.0.0.1", 8001)))
    peer, current = Peer(), snapshot(route())
    peer.stream.listeners = two
    taken = "Error adding/updating listener(s) gateway_8001: cannot bind '127.0.0.1:8001': Address already in use"
    peer.refuses["gateway_8001"] = taken
    peer.settle(current)
    assert peer.stream.acks(current) == [StreamAck(9, 1, taken, follows=True)]  # by the port that is open
    assert peer.settle(current, now=1.0) == []
    peer.is_silent_on = {LISTENER}
    assert peer.settle(current, now=1.0 + RETRY_S) == ["LDS"]
    assert peer.stream.acks(current) == []
    peer.is_silent_on = set()
    peer.refuses.clear()
    assert peer.settle(current, now=2.0 + RETRY_S + ACK_TIMEOUT_S) == []
    assert "LDS" in peer.settle(current, now=1.0 + 2 * RETRY_S + ACK_TIMEOUT_S)
    assert peer.stream.acks(current)[-1] == StreamAck(9, 1)


def test_one_bad_route_does_not_refuse_the_others() -> None:
    peer = Peer()
    peer.refuses["gateway/bad"] = "cannot parse"
    current = snapshot(route(), route(model="bad"))
    peer.settle(current)
    assert set(peer.stream.acks(current)) == {StreamAck(9, 1), StreamAck(3, 1, "cannot parse")}


def test_a_refused_cluster_holds_back_its_own_model_only() -> None:
    peer, first = Peer(), snapshot(route(candidate=None, bp=0), route(model="other", candidate=None, bp=0))
    peer.settle(first)
    peer.stream.acks(first)
    bad = f"other_{C.digest12}_http"
    peer.refuses[bad] = f"Error adding cluster {bad}: no"
    second = snapshot(route(generation=2), route(model="other", candidate=C, generation=2), last=first)
    peer.settle(second)
    assert set(peer.stream.acks(second)) == {StreamAck(9, 2), StreamAck(5, 2, f"Error adding cluster {bad}: no")}


def test_a_cluster_that_is_refused_later_takes_no_route_back() -> None:
    peer, first = Peer(), snapshot(route())
    peer.settle(first)
    assert peer.stream.acks(first) == [StreamAck(9, 1)]
    bad = f"sentiment_{B.digest12}_http"
    peer.refuses[bad] = f"Error adding cluster {bad}: no"
    roomier = dataclasses.replace(route(), candidate=dataclasses.replace(B, max_in_flight=99))
    second = snapshot(roomier, last=first)
    peer.settle(second)
    assert peer.stream.acks(second) == [StreamAck(9, 1, f"Error adding cluster {bad}: no", follows=True)]
    third = snapshot(dataclasses.replace(roomier, generation=2), last=second)
    peer.settle(third)
    assert not any(one.follows for one in peer.stream.acks(third))  # held back behind its cluster


def test_silence_is_reported_and_a_late_answer_still_counts() -> None:
    peer, first = Peer(), snapshot(route())
    peer.settle(first)
    peer.stream.acks(first)
    peer.is_silent_on = {SCOPE}
    second = snapshot(route(bp=0, generation=2), last=first)
    peer.settle(second, now=1.0)
    nonce = [nonce for nonce, _ in peer.stream._flights][-1]
    peer.settle(second, now=1.1 + ACK_TIMEOUT_S)
    (ack,) = peer.stream.acks(second)
    assert "no answer" in ack.error
    peer.stream.receive(discovery_pb2.DeltaDiscoveryRequest(type_url=SCOPE, response_nonce=nonce))
    assert peer.stream.acks(second) == [StreamAck(9, 2)]


def test_a_stuck_cluster_never_holds_up_another_models_rollback() -> None:
    peer, first = Peer(), snapshot(route(), route(model="other", candidate=None, bp=0))
    peer.settle(first)
    peer.stream.acks(first)
    peer.is_silent_on = {CLUSTER}
    second = snapshot(route(bp=0, generation=3), route(model="other", candidate=C, generation=2), last=first)
    assert peer.settle(second, now=1.0) == ["CDS", "SRDS"]
    assert peer.stream.acks(second) == [StreamAck(9, 3)]


def test_a_cluster_that_is_stuck_while_new_is_taken_away_and_tried_again() -> None:
    peer, first = Peer(), snapshot(route(candidate=None, bp=0))
    peer.settle(first)
    peer.is_silent_on = {CLUSTER}
    second = snapshot(route(generation=2), last=first)
    peer.settle(second, now=1.0)
    assert peer.settle(second, now=1.1 + ACK_TIMEOUT_S) == []
    assert peer.settle(second, now=1.1 + STUCK_S) == ["CDS-"]
    assert all(B.digest12 in name for name in peer.removed)
    peer.is_silent_on = set()
    assert peer.settle(second, now=1.1 + RETRY_S)[0] == "CDS"
    assert StreamAck(9, 2) in peer.stream.acks(second)


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
        moved = dataclasses.replace(A, endpoints=(Endpoint("127.0.0.1", port, port + 500),))
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
    two = dataclasses.replace(A, endpoints=(*A.endpoints, Endpoint("127.0.0.1", 9031, 9032)))
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
        moved = dataclasses.replace(A, endpoints=(Endpoint("127.0.0.1", 9100 + i, 9200 + i),))
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


def test_a_listener_that_follows_a_refused_one_is_sent_all_routes_again() -> None:
    peer, current = Peer(), snapshot(route())
    peer.refuses = {"gateway_8000": "cannot bind"}
    peer.settle(current)
    assert peer.stream.acks(current)[0].error == "cannot bind"
    peer.refuses = {}
    peer.settle(current, now=1.0)
    assert peer.settle(current, now=1.0 + RETRY_S) == ["LDS", "SRDS"]
    assert peer.stream.acks(current) == [StreamAck(9, 1)]


def test_requests_to_no_model_have_routes_before_there_is_a_model() -> None:
    peer, none = Peer(), snapshot()
    assert peer.settle(none)[-1] == "SRDS"
    first = snapshot(route(), last=none)
    assert peer.settle(first) == ["CDS", "EDS", "SRDS"]
    assert peer.removed == []


def test_a_route_is_not_in_force_while_connections_go_by_an_older_versions_routes() -> None:
    peer, current = Peer(), snapshot(route(generation=7))
    peer.ask(OLDER_ROUTES, ("gateway",))
    peer.settle(current)
    assert peer.stream.acks(current) == [StreamAck(9, 7, OLDER_CONNECTIONS, False)]
    gone = discovery_pb2.DeltaDiscoveryRequest(type_url=OLDER_ROUTES, resource_names_unsubscribe=["gateway"])
    peer.stream.receive(gone)
    peer.settle(current)
    assert peer.stream.acks(current) == [StreamAck(9, 7, "", False)]
