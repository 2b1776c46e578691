"""What the database says of every gateway and every routed model: one statement, and so one state of the database.

What is said of a model is text. As long as it is the same to the letter there is nothing new to make of it, and of a thousand models one
has changed, as a rule: to compare takes a microsecond each, to make a route a hundred times that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import connection

from serving.environments.core.endpoints import EndpointState
from serving.traffic.core.gateway_standing import GONE_AFTER_S
from serving.traffic.core.routes import ServerAddress

# Columns are in the order of the tuples below.
_STATEMENT = """
WITH servers AS (
  SELECT endpoint.environment_id, release.model_id, string_agg(json_build_array(
           endpoint.release_id, release.digest, endpoint.state, host, http_port, grpc_port, is_serving, was_well)::text,
           ',' ORDER BY endpoint.id) AS said
    FROM serving_endpoint endpoint
    JOIN registry_release release ON release.id = endpoint.release_id
   WHERE host IS NOT NULL
   GROUP BY endpoint.environment_id, release.model_id)
SELECT 'environment' AS kind, slug AS name, id AS environment_id, json_build_array(
         id, slug, generation, allows_forced_release, forced_key_number, statement_timestamp())::text, NULL
  FROM serving_environment WHERE is_routed AND retired_at IS NULL
UNION ALL
SELECT 'gateway', gateway.name, environment.id, json_build_array(
         gateway.id, gateway.name, environment.id, environment.slug, http_url, grpc_address,
         drained_at IS NOT NULL, coalesce(seen_at >= statement_timestamp() - make_interval(secs => %s), false))::text, NULL
  FROM serving_gateway gateway JOIN serving_environment environment ON environment.id = gateway.environment_id
 WHERE environment.retired_at IS NULL
UNION ALL
SELECT 'route', model.slug, route.environment_id, json_build_array(
         route.id, route.environment_id, route.model_id, stable_id, candidate_id, route.generation, changes, candidate_bp, mirror_bp,
        proven, refuses_forced,
         model.slug, model.objectives, model.traffic_policy,
         CASE WHEN sleep.state <> 'awake' THEN json_build_array(sleep.state, sleep.loads_on_demand, sleep.wake_s) END)::text, servers.said
  FROM serving_route route
  JOIN registry_servedmodel model ON model.id = route.model_id
  LEFT JOIN serving_sleep sleep ON sleep.environment_id = route.environment_id AND sleep.model_id = route.model_id
  LEFT JOIN servers ON servers.environment_id = route.environment_id AND servers.model_id = route.model_id
UNION ALL
SELECT 'preparing', slug, environment_id, json_build_array(slug, model_id, release_id, state)::text, NULL
  FROM (SELECT DISTINCT ON (endpoint.environment_id, release.model_id) model.slug, endpoint.environment_id, release.model_id,
               endpoint.release_id, endpoint.state
          FROM serving_endpoint endpoint
          JOIN registry_release release ON release.id = endpoint.release_id
          JOIN registry_servedmodel model ON model.id = release.model_id
         WHERE endpoint.state NOT IN ('gone', 'pending') AND NOT endpoint.is_leaving
           AND NOT EXISTS (SELECT 1 FROM serving_route route
                            WHERE route.environment_id = endpoint.environment_id AND route.model_id = release.model_id)
         ORDER BY endpoint.environment_id, release.model_id, endpoint.id DESC) AS without_route
 ORDER BY kind, name
"""


class EnvironmentRow(NamedTuple):
    """`read_at`: the database's time, ISO 8601. All that was committed by then has been read: where a statement is sent whole, as it is
    here, its time is taken before its snapshot; one that was prepared by the client first would have it after."""

    pk: int
    slug: str
    generation: int
    allows_forced: bool
    forced_key_number: int
    read_at: str


class GatewayRow(NamedTuple):
    """`is_about`: it spoke within `GONE_AFTER_S`."""

    pk: int
    name: str
    environment_id: int
    environment: str
    http_url: str
    grpc_address: str
    is_drained: bool
    is_about: bool


class RouteRow(NamedTuple):
    """A route and what is read of its model. Releases by their ids."""

    pk: int
    environment_id: int
    model_id: int
    stable_id: str
    candidate_id: str | None
    generation: int
    changes: int
    candidate_bp: int
    mirror_bp: int
    proven: dict[str, Any]
    refuses_forced: bool
    slug: str
    objectives: Any
    traffic_policy: Any
    sleep: tuple[str, bool, int] | None = (
        None  # its state, whether it loads on demand, in how many seconds it would answer
    )

    @property
    def arms(self) -> tuple[str, ...]:
        """The releases that it names."""
        return (self.stable_id, self.candidate_id) if self.candidate_id else (self.stable_id,)


class PreparingRow(NamedTuple):
    """A model without a route in this environment, and its newest release there. `state`: of its endpoint."""

    environment_id: int
    model: str
    model_id: int
    release_id: str
    state: str


class ServerRow(NamedTuple):
    """An endpoint with an address. `was_well`: it answered a real inference once."""

    release_id: str
    digest: str
    state: str
    host: str
    http_port: int
    grpc_port: int
    is_serving: bool
    was_well: bool


class ModelRows(NamedTuple):
    """What the database says of one model in one environment: its route, and the servers of its releases there. To be compared."""

    environment_id: int
    route: str
    servers: str | None

    def read(self) -> tuple[RouteRow, Servers]:
        return RouteRow(*json.loads(self.route)), Servers.of(self.servers)


@dataclass(frozen=True)
class Servers:
    """Of one model in one environment, by release digest: endpoints that serve, and those that are known and do not. `ready`: the
    ids of releases that serve."""

    serving: dict[str, tuple[ServerAddress, ...]]
    known: dict[str, tuple[ServerAddress, ...]]
    ready: frozenset[str]

    @classmethod
    def of(cls, said: str | None) -> Servers:
        rows = [ServerRow(*one) for one in json.loads(f"[{said or ''}]")]
        serving: dict[str, tuple[ServerAddress, ...]] = {}
        known: dict[str, tuple[ServerAddress, ...]] = {}
        ready = set()
        for one in rows:
            endpoint = ServerAddress(one.host, one.http_port, one.grpc_port)
            is_ready = one.is_serving and one.state == EndpointState.READY
            book = serving if is_ready else known
            if is_ready or one.was_well:
                book[one.digest] = tuple(sorted((*book.get(one.digest, ()), endpoint)))
            if is_ready:
                ready.add(one.release_id)
        return cls(serving, known, frozenset(ready))


@dataclass(frozen=True)
class Rows:
    """By the order of their names. Routes are not read yet: `said` has them in the order of their models' names."""

    environments: list[EnvironmentRow]
    gateways: list[GatewayRow]
    said: list[ModelRows]
    preparing: list[PreparingRow]


def read_rows() -> Rows:
    """Everything, as one moment had it. Raises django.db.Error."""
    with connection.cursor() as cursor:
        cursor.execute(_STATEMENT, [GONE_AFTER_S])
        rows = cursor.fetchall()
    return Rows(
        [EnvironmentRow(*json.loads(text)) for kind, _, _, text, _ in rows if kind == "environment"],
        [GatewayRow(*json.loads(text)) for kind, _, _, text, _ in rows if kind == "gateway"],
        [ModelRows(where, text, servers) for kind, _, where, text, servers in rows if kind == "route"],
        [PreparingRow(where, *json.loads(text)) for kind, _, where, text, _ in rows if kind == "preparing"],
    )
