"""xDS messages from plain dictionaries.

Importing this module registers every extension that the dictionaries name by `@type`; without that, parsing fails.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import scoped_route_pb2
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2  # noqa: F401
from envoy.extensions.access_loggers.grpc.v3 import als_pb2 as grpc_log_pb2  # noqa: F401
from envoy.extensions.access_loggers.stats.v3 import stats_pb2  # noqa: F401
from envoy.extensions.clusters.aggregate.v3 import cluster_pb2 as aggregate_pb2  # noqa: F401
from envoy.extensions.common.matching.v3 import extension_matcher_pb2  # noqa: F401
from envoy.extensions.filters.common.matcher.action.v3 import skip_action_pb2  # noqa: F401
from envoy.extensions.filters.http.grpc_field_extraction.v3 import config_pb2 as field_extraction_pb2  # noqa: F401
from envoy.extensions.filters.http.local_ratelimit.v3 import local_rate_limit_pb2  # noqa: F401
from envoy.extensions.filters.http.lua.v3 import lua_pb2  # noqa: F401
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2  # noqa: F401
from envoy.extensions.filters.http.router.v3 import router_pb2  # noqa: F401
from envoy.extensions.filters.http.upstream_codec.v3 import upstream_codec_pb2  # noqa: F401
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2  # noqa: F401
from envoy.extensions.http.early_header_mutation.header_mutation.v3 import header_mutation_pb2  # noqa: F401
from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2  # noqa: F401
from envoy.extensions.retry.priority.previous_priorities.v3 import previous_priorities_config_pb2  # noqa: F401
from envoy.extensions.router.cluster_specifiers.lua.v3 import lua_pb2 as lua_specifier_pb2  # noqa: F401
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2  # noqa: F401
from envoy.service.discovery.v3 import discovery_pb2
from envoy.type.matcher.v3 import http_inputs_pb2  # noqa: F401
from google.protobuf import any_pb2, json_format, message

_URL = "type.googleapis.com/"
CLUSTER = _URL + "envoy.config.cluster.v3.Cluster"
ENDPOINTS = _URL + "envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER = _URL + "envoy.config.listener.v3.Listener"
SCOPE = _URL + "envoy.config.route.v3.ScopedRouteConfiguration"
#: What an older version's listener asks for: one table with the routes of all models. None is sent any more.
OLDER_ROUTES = _URL + "envoy.config.route.v3.RouteConfiguration"

_CLASSES: dict[str, type[message.Message]] = {
    CLUSTER: cluster_pb2.Cluster,
    ENDPOINTS: endpoint_pb2.ClusterLoadAssignment,
    LISTENER: listener_pb2.Listener,
    SCOPE: scoped_route_pb2.ScopedRouteConfiguration,
}


@dataclass(frozen=True)
class Resource:
    """One named resource. `version` is a hash of its bytes, so that every control plane gives the same one; `source` one of what it was
    made from.
    """

    name: str
    version: str
    message: discovery_pb2.Resource
    source: bytes


def resource(type_url: str, name: str, body: dict[str, Any], before: Iterable[Resource] = ()) -> Resource:
    """The resource for a dictionary in protobuf's JSON form; that of `before`, which are of the same type and name, that was made
    from the same: to parse takes many times as long as to compare. Raises json_format.ParseError for an unknown field.
    """
    source = hashlib.sha256(json.dumps(body).encode()).digest()
    for one in before:
        if one.source == source:
            return one
    value = json_format.ParseDict(body, _CLASSES[type_url]()).SerializeToString(deterministic=True)
    version = hashlib.sha256(value).hexdigest()[:16]
    return Resource(
        name,
        version,
        discovery_pb2.Resource(name=name, version=version, resource=any_pb2.Any(type_url=type_url, value=value)),
        source,
    )
