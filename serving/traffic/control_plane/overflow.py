"""What a candidate has no room for is answered by stable, once, and is the candidate's: shed, whoever answered in its place.

Two things refuse a request: the gateway's bound on what is in flight, and a server whose own queue is full. Neither computed it.

*The bound.* Envoy's router never tries anew what a circuit breaker refused. So the split asks first: a script that picks the cluster sees
what is in flight on the candidate's, and where that is the bound, it picks a cluster in the candidate's name with stable's servers alone.
Picked and sent in one turn of the worker, so nothing comes in between; workers that see the last place at once find `AT_ONCE` more.

*The queue.* What the server says is read by the response filter (`response_filters`), which marks the answer as one that may be tried anew;
only of a candidate's first attempt, and only where requests may be asked twice: an ensemble passes on that a later step's queue is full.

Stable's own bound holds behind both. What it refuses is refused for good, so that nothing is ever tried anew where there is no room.
"""

from __future__ import annotations

import json
from typing import Any

from serving.traffic.control_plane.clusters import NAMESPACE, SHED, cluster_name, entry_name, full_name
from serving.traffic.control_plane.response_filters import FILTER, FULL_HEADER, FULL_VALUE, HANDS_ON, ROOM_HEADER
from serving.traffic.core.request_classes import Pool
from serving.traffic.core.routes import Arm, ModelRoute

#: An answer that says so is tried anew where the route's policy names this header.
HANDED_ON = {"name": FULL_HEADER, "string_match": {"exact": FULL_VALUE}}

_SCRIPT = """
function envoy_on_route(handle)
  local servers = handle:getCluster({servers})
  if servers and servers:numRequests() + servers:numPendingRequests() >= {most} then return {full} end
  return {entry}
end
"""


def draws_candidate(route: ModelRoute, candidate: Arm, protocol: str, pool: Pool) -> dict[str, Any]:
    """The part of a route's action that picks the cluster of a request that was drawn for the candidate."""
    entry = entry_name(route, candidate, protocol, pool.name)
    script = _SCRIPT.format(
        servers=json.dumps(cluster_name(route.model, candidate, protocol, pool.name)),
        most=route.in_flight(candidate, pool.share_pct),
        full=json.dumps(full_name(route, candidate, protocol, pool.name)),
        entry=json.dumps(entry),
    )
    return {"inline_cluster_specifier_plugin": picks_cluster(script, entry)}


def picks_cluster(script: str, default: str) -> dict[str, Any]:
    """The plug-in that picks a request's cluster by a script; `default` if the script fails."""
    config = {
        "@type": "type.googleapis.com/envoy.extensions.router.cluster_specifiers.lua.v3.LuaConfig",
        "source_code": {"inline_string": script},
        "default_cluster": default,
    }
    return {"extension": {"name": "envoy.router.cluster_specifier_plugin.lua", "typed_config": config}}


def room_header() -> dict[str, Any]:
    """Returns a route's change of the head: the response filter learns that the candidate had no room.

    A caller's own header of this name is removed.
    """
    header = {"key": ROOM_HEADER, "value": f"%METADATA(CLUSTER:{NAMESPACE}:{SHED})%"}
    return {
        "request_headers_to_add": [{"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
        "request_headers_to_remove": [ROOM_HEADER],
    }


def drawn_metadata(route: ModelRoute) -> dict[str, dict[str, str]]:
    """Returns metadata of a candidate's route: whether a request may be asked twice."""
    return {FILTER: {HANDS_ON: "yes" if route.is_idempotent else "no"}}
