"""One virtual host per model: forced releases first, then the split, then nothing else."""

from __future__ import annotations

from typing import Any

from serving.traffic.control_plane.calls import as_servers_want, match_of, offered
from serving.traffic.control_plane.clusters import (
    NAMESPACE,
    NOT_ACCEPTED_S,
    PROBER_CLUSTER,
    rest_name,
    stream_entry_name,
)
from serving.traffic.control_plane.forced import FORCED_KEY_HEADER, RELEASE_HEADER, forced_routes
from serving.traffic.control_plane.overflow import HANDED_ON, drawn_metadata, draws_candidate, room_header
from serving.traffic.control_plane.own_answers import (
    READY_OF_MODEL,
    model_routes,
    not_offered,
)
from serving.traffic.control_plane.refusals import (
    GRPC_NOT_FOUND,
    GRPC_UNIMPLEMENTED,
    refusals,
    wrong_calls,
)
from serving.traffic.control_plane.request_classes import of_class
from serving.traffic.control_plane.request_guard import FILTER, incoming_route, limits_metadata
from serving.traffic.control_plane.request_log import quick_header, slow_after
from serving.traffic.control_plane.response_filters import attempt_metadata
from serving.traffic.control_plane.tenants import quotas, tenant_metadata
from serving.traffic.core.asleep import Asleep
from serving.traffic.core.outcomes import GRPC, GRPC_FAILURES, HTTP, Purpose, route_name
from serving.traffic.core.request_classes import Pool
from serving.traffic.core.request_limits import LONGEST_S
from serving.traffic.core.routes import ModelRoute

ROUTE_CONFIG = "gateway"
#: On a mirrored request: the number of the route that it was split by.
MIRROR_HEADER = "x-sluicegate-mirror"
#: Beside it, what the prober knows the gateway by. Both replace whatever a caller sent under these names.
MIRROR_SECRET_HEADER = "x-sluicegate-mirror-secret"

_TYPES = "type.googleapis.com/"
#: What a server says of a model that it has lost, for some seconds after the model's process died. No failure of the server
#: for counting, since a caller may have asked for a version that does not exist; but worth a retry on stable.
HTTP_NOT_FOUND = 404
#: What is answered for a model that has no server loaded, and the header that says so.
GRPC_UNAVAILABLE = 14
ASLEEP, ASLEEP_HEADER = "model_asleep", "x-sluicegate-asleep"
PREPARING = "model_preparing"

#: What a server answered may be tried on stable, and what never reached a server. A request whose connection broke after it was sent
#: only where the model says so: it may be what ended the server, and would end the next one. `5xx` and `gateway-error` take a broken
#: connection for a server's error, so the errors are named one by one.
NEVER_SENT = "connect-failure,refused-stream,reset-before-request"
RETRY_ON = f"{NEVER_SENT},retriable-headers,retriable-status-codes"
RESET = "reset"
SERVER_ERRORS = range(500, 512)
#: gRPC failures that have no word of their own here are matched by the header of a trailers-only answer; over HTTP nothing reads it.
_BAD_STATUS = [
    {"name": "grpc-status", "string_match": {"exact": str(status)}}
    for status in sorted({*GRPC_FAILURES, GRPC_NOT_FOUND})
]
_BAD_ANSWERS = {
    protocol: {
        "retriable_headers": [*(_BAD_STATUS if protocol == GRPC else []), HANDED_ON],
        "retriable_status_codes": [HTTP_NOT_FOUND, *SERVER_ERRORS],
    }
    for protocol in (GRPC, HTTP)
}

#: Heads that no caller may hand to a server. With `triton_grpc_error` a stream asks for errors as a status, and Triton 2.51 ends by
#: a signal where the model's own error follows: one caller would end it for all. Seen on the real server.
#: gRPC's own lines come from its clients' inner workings; a server resets a call whose line it cannot read.
_NOT_FOR_SERVERS = (
    FORCED_KEY_HEADER, "triton_grpc_error", "grpc-previous-rpc-attempts", "grpc-retry-pushback-ms", "grpc-internal-encoding-request",
)  # fmt: skip
#: Seconds that a stream may stand still at least. A model whose requests may take longer gets that time.
STREAM_IDLE_S = 300.0
#: How much later than the limit of a request Envoy's own idle timers end, in seconds, so that the limit is what ends it.
IDLE_SPARE_S = 10.0
#: Seconds in which the first answer of a stream must come. Envoy counts a stream as a request that has not come whole,
#: since it stays open on the caller's side. So this is longer than any request may take.
REQUEST_WITHIN_S = LONGEST_S + 60.0
#: A request that its server works on stands still. Its own limit ends it, and `BODY_WITHIN_S` one that does not come.
UNARY_IDLE_S = REQUEST_WITHIN_S + IDLE_SPARE_S
#: Within this time after a failure stable is asked anew.
AGAIN_S = 0.005
#: A candidate whose process dies fails all that it has in flight at one instant, and stable has no room for a second's requests at once. So
#: they come to it spread over this time. Source: `python -m benchmarks.rollback_time --faults crash`, docs/rollouts.md.
HANDED_BACK_S = 0.05
#: Where there is no other release, on another replica than before, which Envoy draws anew so often.
_ANOTHER_REPLICA = {
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {
                "@type": _TYPES + "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
            },
        }
    ],
    "host_selection_retry_max_attempts": "5",
}


def _elsewhere(every: int = 1) -> dict[str, Any]:
    """Every `every` attempts, the next cluster gets the request: stable after the candidate."""
    kind = _TYPES + "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig"
    config = {"@type": kind, "update_frequency": every}
    return {"name": "envoy.retry_priorities.previous_priorities", "typed_config": config}


def vhost_name(model: str) -> str:
    return f"{ROUTE_CONFIG}/{model}"


def scope(model: str, host: dict[str, Any]) -> dict[str, Any]:
    """The routes of requests whose model header says `model`: one virtual host."""
    routes = {"name": vhost_name(model), "virtual_hosts": [host], "validate_clusters": False}
    return {
        "name": vhost_name(model),
        "key": {"fragments": [{"string_key": model}]},
        "route_configuration": routes,
    }


def vhost(route: ModelRoute, *, forced_key: str = "") -> dict[str, Any]:
    """The virtual host of one model. `forced_key`: the key of requests that force a release.
    Its metadata carry the route's generation: that is what gets acknowledged.
    """
    tenants = tenant_metadata(route.tenants, route.classes)
    return {
        "name": vhost_name(route.model),
        "domains": ["*"],  # the model header has picked these routes
        "routes": _routes(route, forced_key),
        "request_body_buffer_limit": str(route.max_request_bytes),
        "request_headers_to_add": quick_header(route.slow_ms),
        "request_headers_to_remove": [*_NOT_FOR_SERVERS],
        "include_request_attempt_count": True,  # for the log of attempts; replaces what the caller says
        "include_is_timeout_retry_header": True,  # on a second attempt alone that began because the first was late
        "response_headers_to_add": [
            # From the endpoint, not from the split: after a retry on stable it still names the one that answered.
            {
                "header": {"key": RELEASE_HEADER, "value": f"%METADATA(UPSTREAM_HOST:{NAMESPACE}:release)%"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
        "metadata": {
            "filter_metadata": {
                NAMESPACE: {"model": route.model, "generation": str(route.generation)},
                FILTER: {**_limits(route)[FILTER], **tenants},
                **attempt_metadata(_attempt_s(route), route.stable.kind),
            }
        },
        "typed_per_filter_config": quotas(route.tenants, route.gateways),
    }


def _routes(route: ModelRoute, forced_key: str) -> list[dict[str, Any]]:
    """Of a model that is asleep the gateway answers whatever a server of it would have."""
    pools = [pool.name for pool in reversed(route.pools)]  # that of whatever is of no other class comes last
    asks, asleep = HTTP in route.calls.question, _asleep_as(route)
    health = model_routes(route.model, is_ready=route.is_ready, asleep=asleep, asks_server=asks)
    routes = [incoming_route(_limits(route)), *health]
    if forced_key and route.asleep is None:
        routes += forced_routes(route, pools, forced_key)
    calls = route.calls
    if not route.has_streams and GRPC in calls.stream:
        # Nobody reads the messages of a stream before a server does: docs/decisions/0014-the-request-guard.md
        why = f"{route.model} takes no gRPC streams; its releases declare none (envelope.limits.streaming). Ask by ModelInfer."
        path = {"safe_regex": {"regex": calls.stream[GRPC]}}
        routes += refusals(path, why, name="no_streams", grpc_status=GRPC_UNIMPLEMENTED)
    for protocol in calls.protocols:
        purposes = offered(calls, protocol, has_grpc_streams=route.has_streams)
        if route.asleep is not None:
            matches = [match_of(calls, protocol, asked) for asked in purposes]
            matches += [] if asks or protocol == GRPC else [READY_OF_MODEL]
            routes += [_sleeps(route, route.asleep, protocol, match) for match in matches]
            continue
        for pool in reversed(route.pools):
            routes += _split(route, protocol, pool, Purpose.INFERENCE)
        if Purpose.STREAM in purposes:
            routes.append(_stream(route, protocol))
        if Purpose.QUESTION in purposes:
            routes += _split(route, protocol, route.pools[0], Purpose.QUESTION)
    why = not_offered(f"this model: {calls.words}")
    return [
        *routes,
        *wrong_calls(calls),
        *refusals({}, why, name="not_offered", grpc_status=GRPC_UNIMPLEMENTED),
    ]


def _sleeps(route: ModelRoute, asleep: Asleep, protocol: str, match: dict[str, Any]) -> dict[str, Any]:
    """503 or UNAVAILABLE at once, and when to ask again. Its name is what such requests are counted by, apart from errors."""
    after_s, name = asleep.retry_after_s, _asleep_as(route) or ASLEEP
    then = f"it is being loaded; try again in {after_s} s" if after_s is not None else "somebody has to wake it"
    words = f"{route.model} is asleep; {then}"
    if asleep.is_preparing:
        stage = f"is {'loaded' if asleep.is_loaded else 'being prepared'}. Try again in {after_s} s"
        if after_s is None:
            stage = "did not load"
        words = f"no release of {route.model} has traffic here yet; {route.stable.name} {stage}"
    told = {ASLEEP_HEADER: name, **({"grpc-status": str(GRPC_UNAVAILABLE)} if protocol == "grpc" else {})}
    told |= {"retry-after": str(after_s)} if after_s is not None else {}
    return {
        "name": name,
        "metadata": _label(route),
        "match": match,
        "direct_response": {"status": 503, "body": {"inline_string": f"{name}: {words}"}},
        "response_headers_to_add": [
            {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
            for key, value in told.items()
        ],
    }


def _asleep_as(route: ModelRoute) -> str:
    """Name of the gateway's answers in the place of a model's servers; empty if they answer."""
    if route.asleep is None:
        return ""
    return PREPARING if route.is_preparing else ASLEEP


def _label(route: ModelRoute, **more: dict[str, str]) -> dict[str, Any]:
    """A request keeps the route that it was matched to, for all its attempts: so its counts name the weight that drew it."""
    about = {"slot": str(route.slot), **slow_after(route.slow_ms)}
    return {"filter_metadata": {NAMESPACE: about, **_limits(route), **more}}


def _whole(timeout_s: float, protocol: str) -> dict[str, Any]:
    """The time of a whole request, of which a gRPC call may want less. Envoy ignores `timeout` where `max_stream_duration` stands."""
    if protocol == "http":
        return {"timeout": _seconds(timeout_s)}
    return {
        "max_stream_duration": {
            "max_stream_duration": _seconds(timeout_s),
            "grpc_timeout_header_max": _seconds(timeout_s),
        }
    }


def _split(route: ModelRoute, protocol: str, pool: Pool, asked: Purpose) -> list[dict[str, Any]]:
    """The candidate's share of the requests, and the rest, which is stable's. Both are routes: a weight cannot ask who has room.

    A retry of the rest waits until the gateway has mostly seen a closed port, so the candidate gets no request in stable's place that
    a server has seen. Another server of stable's gets an attempt before: Envoy knows tried servers by their cluster.
    """
    waits = route.uses_spare and route.is_idempotent
    where = {"cluster": rest_name(route, protocol, pool.name)}
    rest = _unary(route, protocol, pool.name, asked, where, NOT_ACCEPTED_S if waits else AGAIN_S)
    if waits and len(route.stable.endpoints) > 1:
        rest["route"]["retry_policy"] |= {"num_retries": 2, "retry_priority": _elsewhere(2)}
    if route.candidate is None or not route.candidate_bp:
        return [rest]
    where = draws_candidate(route, route.candidate, protocol, pool)
    drawn = _unary(route, protocol, pool.name, asked, where, HANDED_BACK_S)
    share = {"numerator": route.candidate_bp, "denominator": "TEN_THOUSAND"}
    return [
        {
            **drawn,
            "match": {**drawn["match"], "runtime_fraction": {"default_value": share}},
            "metadata": _label(route, **drawn_metadata(route)),
            **{key: [*lines, *drawn.get(key, ())] for key, lines in room_header().items()},
        },
        rest,
    ]


def _unary(
    route: ModelRoute, protocol: str, pool: str, asked: Purpose, where: dict[str, Any], again_s: float = AGAIN_S
) -> dict[str, Any]:
    """`again_s`: a second attempt is made at a random time within so many seconds after the first has failed."""
    return {
        "name": route_name(asked, protocol, pool),
        "metadata": _label(route),
        "match": match_of(route.calls, protocol, asked, of_class(pool)),
        **as_servers_want(protocol, asked),
        "route": {
            **_whole(route.limits.timeout_s, protocol),
            **where,
            "request_mirror_policies": _mirrors(route) if asked is Purpose.INFERENCE else [],
            "retry_policy": {
                "num_retries": 1,
                "retry_back_off": {"base_interval": _seconds(again_s), "max_interval": _seconds(again_s)},
                **({"retry_priority": _elsewhere()} if route.candidate is not None else {}),
                **_ANOTHER_REPLICA,
                **_retried(route, protocol),
                **({"per_try_timeout": _seconds(_attempt_s(route))} if _is_hedged(route) else {}),
            },
            # Without this an attempt that is late counts as one that was cut, which is never tried again. It goes on until there
            # is an answer, and the user gets the first one.
            **({"hedge_policy": {"hedge_on_per_try_timeout": True}} if _is_hedged(route) else {}),
        },
    }


def _retried(route: ModelRoute, protocol: str) -> dict[str, Any]:
    if not route.is_idempotent:
        return {"retry_on": NEVER_SENT, "num_retries": _of_never_sent(route)}
    return {"retry_on": f"{RETRY_ON},{RESET}" if _retries_resets(route) else RETRY_ON, **_BAD_ANSWERS[protocol]}


def _of_never_sent(route: ModelRoute) -> int:
    """Further attempts: on stable's servers, and then on the candidate in stable's place."""
    return 2 if route.uses_spare else 1


def _retries_resets(route: ModelRoute) -> bool:
    """Only beside hedging, without which Envoy takes an attempt that is late for one that was cut."""
    return route.retries_resets and _is_hedged(route)


def _is_hedged(route: ModelRoute) -> bool:
    """Whether a request that is late is asked a second time: never of the very server that is late, which has too much to do."""
    return route.is_idempotent and route.has_another


def _attempt_s(route: ModelRoute) -> float:
    """How long the first attempt may take before there is another."""
    return route.limits.attempt_timeout_s if _is_hedged(route) else route.limits.timeout_s


def _limits(route: ModelRoute) -> dict[str, dict[str, str]]:
    """For the request guard."""
    tells = route.tenants is not None or route.classes is not None
    return limits_metadata(route.max_request_bytes, route.max_batch, _least_deadline_ms(route), tells_tenants=tells)


def _least_deadline_ms(route: ModelRoute) -> float:
    """The shortest deadline of a caller that a release can be blamed for: its objective, or half of the time of one attempt."""
    half_ms = 500 * route.limits.attempt_timeout_s
    return half_ms if route.slow_ms is None else min(route.slow_ms, half_ms)


def _mirrors(route: ModelRoute) -> list[dict[str, Any]]:
    """Of what the split answers, whichever release answers it. Forced requests and streams are never mirrored."""
    if not route.is_mirrored or route.prober is None:
        return []
    told = {MIRROR_HEADER: str(route.route_id)}
    if route.prober.secret:
        told[MIRROR_SECRET_HEADER] = route.prober.secret
    mutations = [
        {"append": {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
        for key, value in told.items()
    ]
    share = {"numerator": route.mirror_bp, "denominator": "TEN_THOUSAND"}
    return [
        {
            "cluster": PROBER_CLUSTER,
            "runtime_fraction": {"default_value": share},
            "request_headers_mutations": mutations,
        }
    ]


def _stream(route: ModelRoute, protocol: str) -> dict[str, Any]:
    """Streams have no time limit, and are retried on stable only when they never began. A stream that stands still for longer than
    any request to the model may take is ended.
    """
    return {
        "name": route_name(Purpose.STREAM, protocol),
        "metadata": _label(route),
        "match": match_of(route.calls, protocol, Purpose.STREAM),
        **as_servers_want(protocol, Purpose.STREAM),
        "route": {
            "timeout": "0s",
            "idle_timeout": _seconds(stream_idle_s(route.limits.timeout_s)),
            "priority": "HIGH",  # of another pool: it must not hold for hours a place that requests share
            "weighted_clusters": {
                "clusters": [
                    {"name": stream_entry_name(route, arm, protocol), "weight": weight} for arm, weight in route.split
                ]
            },
            "retry_policy": {
                "retry_on": "connect-failure,refused-stream",
                "num_retries": _of_never_sent(route),
                "retry_priority": _elsewhere(),
                **_ANOTHER_REPLICA,
            },
        },
    }


def stream_idle_s(timeout_s: float) -> float:
    """Longest pause of a stream to a model with this `timeout_s`, both in seconds."""
    return max(STREAM_IDLE_S, timeout_s + IDLE_SPARE_S)


def _seconds(value: float) -> str:
    return f"{value:.3f}s"
