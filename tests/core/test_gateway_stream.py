"""The order in which one gateway is told things, and what it means when it refuses or says nothing."""

from __future__ import annotations

import dataclasses

from envoy.service.discovery.v3 import discovery_pb2

from serving.traffic.control_plane.protos import CLUSTER, ENDPOINTS, LISTENER, OLDER_ROUTES, SCOPE
from serving.traffic.control_plane.received import StreamAck
from serving.traffic.control_plane.snapshot import compile_listeners, compile_table
from serving.traffic.control_plane.stream import ACK_TIMEOUT_S, GRACE_S, OLDER_CONNECTIONS, RETRY_S, STUCK_S
from serving.traffic.core.routes import RoutingTable
from tests.support.servers.gateway_peer import B, C, Peer, route, snapshot


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
    assert peer.settle(second) == ["CDS", "EDS", "EDS"]
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
    assert peer.settle(second, now=1.0) == ["EDS", "SRDS"]
    assert peer.settle(second, now=1.0 + GRACE_S - 0.1) == []
    assert peer.settle(second, now=1.0 + GRACE_S) == ["CDS-"]
    own = [name for name in peer.removed if "_or_" not in name]
    # for each protocol one for requests, one for streams, and for stable's share its second attempts and the candidate's servers
    assert len(own) == 8
    assert peer.removed[-8:] == own
    assert len(peer.removed) == 8 + 8


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
    assert len(peer.removed) == 4 * (6 + 8)  # the cluster of stable's second attempts stays
    assert peer.stream._unused == set() and peer.stream._unused_since == {}


def test_a_model_that_goes_when_its_routes_are_to_be_offered_again_is_taken_away() -> None:
    peer, both = Peer(), snapshot(route(), route(model="other", candidate=None, bp=0))
    peer.settle(both)
    peer.is_silent_on = {SCOPE}
    changed = snapshot(route(), route(model="other", candidate=None, bp=0, generation=2), last=both)
    assert peer.settle(changed, now=1.0) == ["SRDS"]
    peer.settle(changed, now=1.1 + ACK_TIMEOUT_S)  # no answer: it is in doubt what the gateway has
    peer.settle(snapshot(route(), last=changed), now=1.1 + RETRY_S)
    assert "gateway/other" in peer.removed


def test_what_was_in_doubt_and_is_wanted_again_is_sent_again_when_it_is_taken_late() -> None:
    peer, first = Peer(), snapshot(route())
    peer.settle(first)
    peer.is_silent_on = {SCOPE}
    second = snapshot(route(bp=700, generation=2), last=first)
    peer.settle(second, now=1.0)
    (late,) = [nonce for nonce, _ in peer.stream._flights]
    peer.settle(second, now=1.1 + ACK_TIMEOUT_S)
    third = snapshot(route(bp=0, generation=3), last=second)
    again = snapshot(route(bp=700, generation=2), last=third)
    assert peer.settle(third, now=7.0) == ["SRDS"]
    assert peer.settle(again, now=7.1) == []  # what it said nothing of is not offered again at once
    peer.stream.receive(discovery_pb2.DeltaDiscoveryRequest(type_url=SCOPE, response_nonce=late))
    assert peer.settle(again, now=7.2) == ["SRDS"]


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
    unmade = compile_table(RoutingTable("production", 2, "", both[:1], frozenset({"other"})))
    peer = Peer(held)  # the control plane was started anew
    peer.ask(ENDPOINTS, tuple(whole.endpoints))
    for _ in range(3):
        peer.settle(unmade, now)
        now += GRACE_S
    assert peer.removed == []
    removed = compile_table(RoutingTable("production", 3, "", both[:1]), unmade)
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
    peer.is_silent_on = {CLUSTER, ENDPOINTS}
    second = snapshot(route(bp=0, generation=3), route(model="other", candidate=C, generation=2), last=first)
    assert peer.settle(second, now=1.0) == ["CDS", "EDS", "SRDS"]
    assert peer.stream.acks(second) == [StreamAck(9, 3)]


def test_a_cluster_that_is_stuck_while_new_is_taken_away_and_tried_again() -> None:
    peer, first = Peer(), snapshot(route(candidate=None, bp=0))
    peer.settle(first)
    peer.is_silent_on = {CLUSTER}
    second = snapshot(route(generation=2), last=first)
    peer.settle(second, now=1.0)
    assert peer.settle(second, now=1.1 + ACK_TIMEOUT_S) == []
    assert peer.settle(second, now=1.1 + STUCK_S) == ["CDS-"]
    assert all(B.digest12 in name or name.endswith("_again") for name in peer.removed)
    peer.is_silent_on = set()
    assert peer.settle(second, now=1.1 + RETRY_S)[0] == "CDS"
    assert StreamAck(9, 2) in peer.stream.acks(second)


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
