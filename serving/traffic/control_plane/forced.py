"""Requests that choose their release, if the environment allows it. They are no part of the split, and no evidence.

Only one release gets this work, and its users wait behind it. So a request needs the key, and one runs at a time.
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

from serving.traffic.control_plane.calls import as_servers_want, match_of
from serving.traffic.control_plane.clusters import cluster_name, forced_name
from serving.traffic.control_plane.overflow import picks_cluster
from serving.traffic.control_plane.refusals import GRPC_PERMISSION_DENIED, GRPC_RESOURCE_EXHAUSTED, REFUSED, refusals
from serving.traffic.control_plane.request_classes import of_class
from serving.traffic.core.outcomes import GRPC, HTTP, Purpose, route_name
from serving.traffic.core.routes import Arm, ModelRoute

RELEASE_HEADER = "x-sluicegate-release"
#: The environment's key, which administrators see.
FORCED_KEY_HEADER = "x-sluicegate-release-key"
NO_KEY = (
    f"a request that forces a release shows the environment's key in {FORCED_KEY_HEADER}; an administrator finds it by "
    f"`sluicegate environment show`. Without {RELEASE_HEADER} the gateway chooses the release"
)
NOT_NOW = (
    f"no request forces a release of {{model}} until its rollout ends: such requests disturb the times by which it is judged. Leave "
    f"out {RELEASE_HEADER}"
)
#: No cluster has this name. The script returns it while a forced request runs over the other protocol.
TAKEN = "taken"


def forced_routes(route: ModelRoute, pools: list[str], key: str) -> list[dict[str, Any]]:
    """Returns routes to each release by its name and digest, for requests with `RELEASE_HEADER` and `key`. If the route refuses forced
    requests, only questions, which run no model, are answered."""
    forces = {"headers": [{"name": RELEASE_HEADER, "present_match": True}]}
    shows = {"name": FORCED_KEY_HEADER, "string_match": {"exact": key}}
    hides = {"headers": [*forces["headers"], {**shows, "invert_match": True, "treat_missing_header_as_empty": True}]}
    routes = refusals(hides, NO_KEY, name=REFUSED, status=403, grpc_status=GRPC_PERMISSION_DENIED)
    for arm in route.arms:
        for name, protocol in product((arm.name, arm.digest), route.calls.protocols):
            routes += [_forced(route, arm, name, protocol, pool) for pool in pools if not route.refuses_forced]
            if protocol in route.calls.question:
                routes.append(_question(route, arm, name, protocol))
    if route.refuses_forced:
        said, status = NOT_NOW.format(model=route.model), {"status": 429, "grpc_status": GRPC_RESOURCE_EXHAUSTED}
        return routes + refusals(forces, said, name=REFUSED, **status)
    missing = f"this release of {route.model} has no server here"
    routes += refusals(forces, missing, name="no_release")
    return routes


def _forced(route: ModelRoute, arm: Arm, name: str, protocol: str, pool: str) -> dict[str, Any]:
    """Forced releases have no fallback: the caller wants that release's own answer. Not for streams."""
    header = {"name": RELEASE_HEADER, "string_match": {"exact": name}}
    return {
        "name": route_name(Purpose.FORCED, protocol),
        "match": match_of(route.calls, protocol, Purpose.INFERENCE, [header, *of_class(pool)]),
        **as_servers_want(protocol, Purpose.INFERENCE),
        "route": {
            **_alone(route, arm, protocol, pool),
            "timeout": f"{route.limits.timeout_s:.3f}s",
        },
    }


def _question(route: ModelRoute, arm: Arm, name: str, protocol: str) -> dict[str, Any]:
    """A question about one release: no model runs for it."""
    header = {"name": RELEASE_HEADER, "string_match": {"exact": name}}
    return {
        "name": route_name(Purpose.QUESTION, protocol),
        "match": match_of(route.calls, protocol, Purpose.QUESTION, [header]),
        **as_servers_want(protocol, Purpose.QUESTION),
        "route": {"cluster": cluster_name(route.model, arm, protocol), "timeout": f"{route.limits.timeout_s:.3f}s"},
    }


def _alone(route: ModelRoute, arm: Arm, protocol: str, pool: str) -> dict[str, Any]:
    """Returns the action of a route whose cluster has one place. Its script also checks the cluster of the other protocol. A
    release outside the split has no users, and no such bound."""
    if arm in route.others:
        return {"cluster": cluster_name(route.model, arm, protocol, pool)}
    own, other = (forced_name(route.model, arm, one) for one in (protocol, HTTP if protocol == GRPC else GRPC))
    script = _FORCED_SCRIPT.format(other=json.dumps(other), own=json.dumps(own), taken=json.dumps(TAKEN))
    return {"inline_cluster_specifier_plugin": picks_cluster(script, own)}


_FORCED_SCRIPT = """
function envoy_on_route(handle)
  local other = handle:getCluster({other})
  if other and other:numRequests() + other:numPendingRequests() > 0 then return {taken} end
  return {own}
end
"""
