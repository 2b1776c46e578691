"""What may be published to gateways, and what must not."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from serving.environments.core.addresses import Address
from serving.environments.core.lifecycle import ReplicaState
from serving.traffic.control_plane.clusters import PROBER_CLUSTER, clusters, endpoints
from serving.traffic.control_plane.virtual_hosts import vhost
from serving.traffic.core.asleep import Asleep
from serving.traffic.core.outcomes import is_failure
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import (
    Arm,
    ModelRoute,
    Prober,
    RoutingTable,
    ServerAddress,
    TableRefused,
    admit,
)

A = Arm("r1", "sha256:" + "a" * 64, (ServerAddress("127.0.0.1", 9001, 9002),))
TWO = (*A.endpoints, ServerAddress("127.0.0.1", 9021, 9022))
B = Arm("r2", "sha256:" + "b" * 64, (ServerAddress("127.0.0.1", 9011, 9012),))


def down(arm: Arm) -> Arm:
    return dataclasses.replace(arm, endpoints=())


def route(stable: Arm = A, candidate: Arm | None = B, bp: int = 500, generation: int = 1) -> ModelRoute:
    return ModelRoute(7, "sentiment", generation, stable, candidate, bp)


def table(*routes: ModelRoute, generation: int = 1) -> RoutingTable:
    return RoutingTable("production", generation, "", routes)


@pytest.mark.parametrize("bp", [0, 1, 500, 9999, 10_000])
def test_the_split_has_the_candidate_first_and_sums_to_the_whole(bp: int) -> None:
    split = route(bp=bp).split
    assert [arm.name for arm, _ in split] == ["r2", "r1"]
    assert [weight for _, weight in split] == [bp, 10_000 - bp]


def test_without_a_candidate_everything_goes_to_stable() -> None:
    assert route(candidate=None, bp=0).split == ((A, 10_000),)


@pytest.mark.parametrize(("candidate", "bp"), [(B, 10_001), (B, -1), (None, 1)])
def test_a_weight_that_makes_no_sense_is_refused(candidate: Arm | None, bp: int) -> None:
    with pytest.raises(ValueError, match="sentiment"):
        route(candidate=candidate, bp=bp)


@pytest.mark.parametrize(("candidate", "mirror_bp"), [(B, 10_001), (B, -1), (None, 1)])
def test_a_mirrored_share_that_makes_no_sense_is_refused(candidate: Arm | None, mirror_bp: int) -> None:
    with pytest.raises(ValueError, match="sentiment: a mirrored share"):
        ModelRoute(7, "sentiment", 1, A, candidate, mirror_bp=mirror_bp)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("", None),
        ("127.0.0.1:18010", Prober(Address("127.0.0.1", 18010))),
        ("[::1]:5", Prober(Address("::1", 5))),
        ("p.example:1", Prober(Address("p.example", 1))),
        ("unix:/run/p.sock", Prober(Address(path="/run/p.sock"))),
    ],
)
def test_a_probers_address_is_read(address: str, expected: Prober | None) -> None:
    assert Prober.at(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        "prober",
        ":18010",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "unix:p.sock",
        "unix:/" + "p" * 107,
    ],
)
def test_an_address_that_makes_no_sense_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="the prober's address .*unix:"):
        Prober.at(address)


def mirrors_by_route(route: ModelRoute) -> dict[str, list[int]]:
    """The mirrored share, in basis points, of every route of the virtual host that passes requests on."""
    found: dict[str, list[int]] = {}
    for one in vhost(route, forced_key="key")["routes"]:
        if "route" in one:
            policies = one["route"].get("request_mirror_policies", [])
            key = f"{one['name']} {'stream' if one['route'].get('timeout') == '0s' else 'unary'}"
            found.setdefault(key, []).extend(two["runtime_fraction"]["default_value"]["numerator"] for two in policies)
    return found


def test_only_what_the_split_answers_is_mirrored() -> None:
    mirrored = dataclasses.replace(route(), mirror_bp=2000, prober=Prober(Address("127.0.0.1", 9999)))
    assert mirrors_by_route(mirrored) == {
        "own_answer unary": [],
        "incoming unary": [],
        **{f"{name}{protocol} unary": [] for name in ("forced", "question") for protocol in ("", "_grpc")},
        "split unary": [2000] * 2,
        "split_grpc unary": [2000] * 2,
        "stream stream": [],
    }
    cluster = clusters(mirrored)[PROBER_CLUSTER]
    address = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
    assert address == {"socket_address": {"address": "127.0.0.1", "port_value": 9999}}
    assert "metadata" not in cluster  # attempts there belong to no release
    assert PROBER_CLUSTER not in endpoints(mirrored)


@pytest.mark.parametrize("changes", [{"mirror_bp": 2000}, {"prober": Prober(Address("127.0.0.1", 9999))}])
def test_without_a_share_or_without_a_prober_nothing_is_mirrored(changes: dict[str, object]) -> None:
    plain = dataclasses.replace(route(), **changes)  # type: ignore[arg-type]
    assert PROBER_CLUSTER not in clusters(plain)
    assert set(map(tuple, mirrors_by_route(plain).values())) == {()}


def test_mirroring_without_a_prober_is_said_and_the_route_is_published() -> None:
    wanted = table(dataclasses.replace(route(), mirror_bp=2000))
    admission = admit(wanted, None)
    assert admission.table == wanted
    (problem,) = admission.problems
    assert not problem.is_withheld
    assert "SLUICEGATE_PROBER_ADDRESS" in problem.message and "20 %" in problem.message


def test_an_attempt_cannot_take_longer_than_the_whole() -> None:
    with pytest.raises(ValueError, match="attempt"):
        Limits(timeout_s=1.0, attempt_timeout_s=2.0)


def test_a_time_out_is_above_nothing_and_at_most_ten_minutes() -> None:
    assert Limits(timeout_s=600.0, attempt_timeout_s=600.0).attempt_timeout_s == 600
    for whole_s, attempt_s in ((600.1, 1.0), (1.0, 0.0), (1.0, -1.0)):
        with pytest.raises(ValueError, match="0 < attempt ≤ whole ≤ 600"):
            Limits(timeout_s=whole_s, attempt_timeout_s=attempt_s)


def test_a_route_may_refuse_forced_requests_and_answers_questions_still() -> None:
    host = vhost(dataclasses.replace(route(), refuses_forced=True), forced_key="key")
    names = {one["name"] for one in host["routes"]}
    assert not names & {"forced", "forced_grpc", "no_release"} and {"question", "question_grpc"} <= names
    refused = [one for one in host["routes"] if one.get("direct_response", {}).get("status") == 429]
    assert len(refused) == 1 and "until its rollout ends" in refused[0]["direct_response"]["body"]["inline_string"]
    assert "forced" in {one["name"] for one in vhost(route(), forced_key="key")["routes"]}


def test_a_release_is_forced_only_where_the_environment_says_so() -> None:
    assert RoutingTable("production", 1).forced_key == ""


def test_the_least_share_is_mirrored_too() -> None:
    assert dataclasses.replace(route(), mirror_bp=1, prober=Prober(Address("127.0.0.1", 9999))).is_mirrored


def test_a_healthy_table_is_published_as_it_is() -> None:
    proposed = table(route())
    admission = admit(proposed, None)
    assert admission.table == proposed
    assert admission.problems == ()


def test_the_first_table_of_a_fresh_environment_may_be_empty() -> None:
    assert admit(table(generation=0), None).table.models == ()


def test_an_empty_table_is_never_published_after_a_full_one() -> None:
    with pytest.raises(TableRefused, match="no routes"):
        admit(table(generation=1), table(route()))


def test_an_empty_table_is_refused_even_without_memory_when_routes_were_written() -> None:
    for generation in (1, 3):
        with pytest.raises(TableRefused, match="Restore the routes"):
            admit(table(generation=generation), None)


def test_a_database_that_went_back_in_time_is_refused() -> None:
    with pytest.raises(TableRefused, match="generation 4, gateways already have 5"):
        admit(table(route(), generation=4), table(route(), generation=5))


def test_a_stable_that_lost_its_servers_keeps_the_last_ones_and_still_gets_new_weights() -> None:
    admission = admit(table(route(stable=down(A), bp=0, generation=2), generation=2), table(route(bp=500)))
    (published,) = admission.table.models
    assert published.stable.endpoints == A.endpoints
    assert (published.candidate_bp, published.generation) == (0, 2)
    assert not admission.problems[0].is_withheld
    assert "127.0.0.1:9001" in admission.problems[0].message


def test_after_a_restart_the_last_address_comes_from_servers_that_still_live() -> None:
    admission = admit(table(route(stable=down(A))), None, known={A.digest: A.endpoints})
    assert admission.table.models[0].stable.endpoints == A.endpoints


def test_an_address_that_another_release_took_over_is_not_kept() -> None:
    taken = dataclasses.replace(B, endpoints=A.endpoints)
    admission = admit(table(route(stable=down(A), candidate=taken), generation=2), table(route()))
    assert admission.table.models[0].stable.endpoints == ()


def test_a_new_stable_without_servers_is_held_back_and_the_old_one_stays() -> None:
    proposed = table(route(stable=down(B), candidate=None, bp=0, generation=2), generation=2)
    admission = admit(proposed, table(route(candidate=None, bp=0)))
    (published,) = admission.table.models
    assert (published.stable, published.generation) == (A, 1)
    assert admission.problems[0].is_withheld
    assert admission.problems[0].generation == 2


def test_a_candidate_whose_server_died_does_not_become_stable_at_its_dead_address() -> None:
    proposed = table(route(stable=down(B), candidate=None, bp=0, generation=2), generation=2)
    admission = admit(proposed, table(route(stable=A, candidate=B, bp=9500)))
    (published,) = admission.table.models
    assert (published.stable, published.candidate_bp, published.generation) == (A, 9500, 1)
    assert admission.problems[0].is_withheld


def test_a_model_that_never_had_a_server_is_published_empty_and_said_so() -> None:
    admission = admit(table(route(stable=down(A), candidate=None, bp=0)), None)
    assert admission.table.models[0].stable.endpoints == ()
    assert "no server" in admission.problems[0].message
    assert not admission.problems[0].is_withheld


def test_a_candidate_without_servers_is_no_problem_because_stable_answers_for_it() -> None:
    admission = admit(table(route(candidate=down(B))), None)
    assert admission.problems == ()
    assert admission.table.models[0].candidate == down(B)


@pytest.mark.parametrize(
    ("http_status", "grpc_status", "was_cut", "expected"),
    [
        (200, None, False, False),
        (200, 0, False, False),
        (200, 13, False, True),
        (200, 2, False, True),
        (200, 3, False, False),
        (200, 8, False, False),
        (400, None, False, False),
        (500, None, False, True),
        (0, None, True, True),
        (0, None, False, False),
    ],
)
def test_what_counts_as_a_failure(http_status: int, grpc_status: int | None, was_cut: bool, expected: bool) -> None:
    assert is_failure(http_status=http_status, grpc_status=grpc_status, was_cut=was_cut) is expected


def servers(count: int) -> tuple[ServerAddress, ...]:
    return tuple(ServerAddress("127.0.0.1", 9001 + 10 * i, 9002 + 10 * i) for i in range(count))


@pytest.mark.parametrize(
    ("max_in_flight", "count", "gateways", "expected"),
    [(8, 1, 1, 4), (8, 2, 1, 8), (8, 1, 2, 2), (8, 3, 2, 6), (1, 1, 1, 1), (3, 1, 1, 2), (8, 1, 100, 1), (8, 0, 1, 4)],
)
def test_what_may_be_in_flight_is_shared_by_protocols_and_gateways(
    max_in_flight: int, count: int, gateways: int, expected: int
) -> None:
    arm = dataclasses.replace(A, endpoints=servers(count), max_in_flight=max_in_flight)
    one = dataclasses.replace(route(stable=arm), gateways=gateways)
    assert one.in_flight(one.stable) == expected
    thresholds = clusters(one)["sentiment_aaaaaaaaaaaa_http"]["circuit_breakers"]["thresholds"]
    bounds = {each["priority"]: (each["max_requests"], each["max_pending_requests"]) for each in thresholds}
    assert bounds["DEFAULT"] == (expected, expected)
    assert bounds["HIGH"][0] > 1000  # a stream that stays open holds no request's place


def test_a_model_takes_what_the_roomiest_of_its_releases_takes() -> None:
    small, large = dataclasses.replace(A, max_request_bytes=1000), dataclasses.replace(B, max_request_bytes=5000)
    for stable, candidate in ((small, large), (large, small)):
        told = vhost(route(stable, candidate))
        assert told["request_body_buffer_limit"] == "5000"
        assert told["metadata"]["filter_metadata"]["request_guard"]["limits"].split(" ")[0] == "5000"
    with pytest.raises(ValueError, match="never be asked"):
        dataclasses.replace(A, max_request_bytes=0)


def test_a_model_takes_the_largest_batch_that_one_of_its_releases_takes() -> None:
    def told(*most: int) -> str:
        arms = [dataclasses.replace(arm, max_batch=one) for arm, one in zip((A, B), most, strict=True)]
        metadata = vhost(route(*arms))["metadata"]["filter_metadata"]["request_guard"]
        return str(metadata["limits"]).split(" ")[1]

    assert (told(8, 8), told(8, 16), told(16, 8)) == ("8", "16", "16")
    assert told(0, 0) == told(8, 0) == told(0, 8) == ""  # without a batch axis a first size may be any


def test_grpc_streams_have_a_route_where_every_release_of_the_split_asks_for_them() -> None:
    def is_routed(stable: bool, candidate: bool) -> bool:
        arms = dataclasses.replace(A, has_streams=stable), dataclasses.replace(B, has_streams=candidate)
        routes = vhost(route(*arms))["routes"]
        (first, *_) = [
            one for one in routes if "ModelStreamInfer" in one["match"].get("safe_regex", {}).get("regex", "")
        ]
        return "route" in first

    assert [is_routed(*both) for both in ((True, True), (True, False), (False, True), (False, False))] == [
        True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "words", "retry_after"),
    [
        (ReplicaState.WARMING, "r1 is being prepared. Try again in 10 s", "10"),
        (ReplicaState.READY, "r1 is loaded. Try again in 10 s", "10"),
        (ReplicaState.FAILED, "r1 did not load", None),
    ],
)
def test_callers_of_a_model_without_a_route_read_how_far_its_release_is(
    state: ReplicaState, words: str, retry_after: str | None
) -> None:
    for one in vhost(ModelRoute.preparing("sentiment", 5, A, state))["routes"]:
        answer = one.get("direct_response", {})
        if one["name"] != "model_preparing" or answer.get("status") != 503:
            continue
        told = {add["header"]["key"]: add["header"]["value"] for add in one["response_headers_to_add"]}
        said = answer["body"]["inline_string"]
        assert said == f"model_preparing: no release of sentiment has traffic here yet; {words}"
        assert told.get("retry-after") == retry_after
        break
    else:
        raise AssertionError("no answer for callers")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v2/models/chatter/ready"])
def test_callers_of_a_text_model_without_a_server_are_told_to_come_back(path: str) -> None:
    text = dataclasses.replace(A, kind="llamacpp")
    for made in (
        ModelRoute.preparing("chatter", 5, text),
        dataclasses.replace(route(text, None, 0), asleep=Asleep(7)),
    ):
        routes = [one for one in vhost(made)["routes"] if "safe_regex" in one["match"]]
        first = next(one for one in routes if re.search(one["match"]["safe_regex"]["regex"], path))
        assert first["name"] in ("model_preparing", "model_asleep")
        assert first["direct_response"]["status"] == 503
        assert "retry-after" in [add["header"]["key"] for add in first["response_headers_to_add"]]


@pytest.mark.parametrize(
    ("kind", "path", "statuses"),
    [
        ("triton", "/v2/models/m/infer", [415, 405]),
        ("triton", "/v2/models/m/config", [415]),
        ("llamacpp", "/v1/completions", [415, 405]),
    ],
)
def test_a_content_type_of_grpc_is_refused_before_the_method(kind: str, path: str, statuses: list[int]) -> None:
    routes = vhost(route(dataclasses.replace(A, kind=kind), None, 0))["routes"]
    refused = [one for one in routes if "direct_response" in one and "safe_regex" in one["match"]]
    assert [
        one["direct_response"]["status"] for one in refused if re.search(one["match"]["safe_regex"]["regex"], path)
    ] == statuses


def test_what_a_server_answered_is_tried_again_and_what_broke_is_not() -> None:
    for one in vhost(route(), forced_key="key")["routes"]:
        policy = one.get("route", {}).get("retry_policy")
        if policy:
            assert not {"5xx", "gateway-error", "reset"} & set(policy["retry_on"].split(","))


@pytest.mark.parametrize(
    ("changes", "is_retried", "is_hedged"),
    [
        ({}, True, True),
        ({"candidate": None, "candidate_bp": 0}, True, False),  # there is only the server that is late
        ({"candidate": None, "candidate_bp": 0, "stable": dataclasses.replace(A, endpoints=TWO)}, True, True),
        ({"is_idempotent": False}, False, False),
        ({"is_idempotent": False, "retries_resets": True}, False, False),
        (
            {"candidate": None, "candidate_bp": 0, "retries_resets": True},
            True,
            False,
        ),  # a late attempt counts as a cut one there
        ({"retries_resets": True}, True, True),
    ],
)
def test_what_may_be_asked_twice(changes: dict[str, Any], is_retried: bool, is_hedged: bool) -> None:
    host = vhost(dataclasses.replace(route(), **changes))
    unary = [one["route"] for one in host["routes"] if "request_mirror_policies" in one.get("route", {})]
    # Inference and questions; the candidate's share has routes of its own.
    assert len(unary) == (8 if "candidate" not in changes else 4)
    for one in unary:
        policy = one["retry_policy"]
        assert ("retriable_status_codes" in policy, "retriable-status-codes" in policy["retry_on"]) == (is_retried,) * 2
        assert "connect-failure" in policy["retry_on"]
        assert ("reset" in policy["retry_on"].split(",")) == (is_hedged and changes.get("retries_resets", False))
        assert ("per_try_timeout" in policy, "hedge_policy" in one) == (is_hedged,) * 2
    told = host["metadata"]["filter_metadata"]["answers"]["attempt_timeout_ms"]
    assert told == ("2000" if is_hedged else "10000")


def test_what_may_not_be_asked_twice_is_not_mirrored() -> None:
    mirrored = dataclasses.replace(route(), mirror_bp=100, prober=Prober(Address("p.example", 1)))
    once = dataclasses.replace(mirrored, is_idempotent=False)
    assert admit(table(mirrored), None).problems == ()
    (problem,) = admit(table(once), None).problems
    assert "idempotent: false" in problem.message and not problem.is_withheld
    assert PROBER_CLUSTER in clusters(mirrored) and PROBER_CLUSTER not in clusters(once)
    routes = vhost(once)["routes"]
    assert not any(one.get("route", {}).get("request_mirror_policies") for one in routes)


def test_all_shares_together_are_at_most_one_more_each_than_the_servers_may_have() -> None:
    for max_in_flight in range(1, 20):
        for gateways in range(1, 8):
            arm = dataclasses.replace(A, max_in_flight=max_in_flight)
            one = dataclasses.replace(route(stable=arm), gateways=gateways)
            assert max_in_flight <= 2 * gateways * one.in_flight(arm) < max_in_flight + 2 * gateways


def test_a_candidate_may_have_what_would_hang_of_it_until_stable_answers_instead() -> None:
    one = dataclasses.replace(route(), limits=Limits(10.0, 2.0))
    assert (one.in_flight(A), one.in_flight(B)) == (4, 64)
    quick = dataclasses.replace(one, limits=Limits(10.0, 0.1))
    assert quick.in_flight(B) == 4
    slow = dataclasses.replace(one, limits=Limits(120.0, 60.0))
    assert slow.in_flight(B) == 64, "what its memory bears is not a matter of patience"
    promoted = dataclasses.replace(one, stable=B, candidate=None, candidate_bp=0)
    assert promoted.in_flight(B) == 4


@pytest.mark.parametrize(
    ("within_s", "attempt_s", "expected"),
    [
        (1.0, 2.0, 8),  # a slow one: two seconds hold twice what one does
        (1.0, 0.5, 4),
        (0.02, 0.1, 20),  # a fast one, of which more hangs
        (0.001, 2.0, 64),
    ],
)
def test_what_would_hang_of_a_candidate_follows_from_the_time_in_which_it_was_proven(
    within_s: float, attempt_s: float, expected: int
) -> None:
    proven = dataclasses.replace(B, well_within_s=within_s)
    one = dataclasses.replace(route(candidate=proven), limits=Limits(10.0, attempt_s))
    assert one.in_flight(proven) == expected
    with pytest.raises(ValueError, match="nothing is answered within 0"):
        dataclasses.replace(B, well_within_s=0.0)


@pytest.mark.parametrize(
    ("changes", "match"), [({"max_in_flight": 0}, "never be asked"), ({"max_in_flight": -1}, "r1")]
)
def test_a_bound_that_lets_nothing_through_is_refused(changes: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(A, **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 gateways"):
        dataclasses.replace(route(), gateways=0)


def test_streams_take_their_places_from_a_pool_of_their_own() -> None:
    routes = [one for one in vhost(route(), forced_key="key")["routes"] if "route" in one]
    pools = {one["route"].get("timeout") == "0s": one["route"].get("priority", "DEFAULT") for one in routes}
    assert pools == {True: "HIGH", False: "DEFAULT"}


def test_what_a_release_that_declares_nothing_gets() -> None:
    images = 25 * 3 * 224 * 224 * 4  # a batch of 25 RGB images in FP32
    assert images < A.max_request_bytes == 16_777_216
    assert 100 * A.max_request_bytes < 1.7e9  # what a hundred slow callers may hold of a gateway's memory
    assert (Limits().timeout_s, Limits().attempt_timeout_s) == (10, 2)
    assert dataclasses.replace(A, max_request_bytes=1).max_request_bytes == 1
    assert route().slot == 0
