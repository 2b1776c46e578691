"""Reads what an Envoy gateway counted of each server of a release, over its admin interface."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from serving.environments.core.addresses import TlsFiles
from serving.ports import GatewayError, HostCounts
from serving.traffic.adapters.envoy_admin import EnvoyAdmin, client_context
from serving.traffic.core.routes import digest12

_PAGE = "/clusters?format=json"
_STATS = ("rq_total", "rq_active", "rq_success", "rq_error", "cx_connect_fail")


#: Of `release_clusters` and `class_cluster`; none of a class's letters is the underscore that ends the digest.
_CLUSTER = re.compile(r"(?P<model>.+)_(?P<digest>[0-9a-f]{12})_(http|grpc)(-[a-z0-9-]+)?")
#: A line of a page of statistics. A release has further clusters of its servers: of streams, forced requests, second attempts, and those
#: that stand in for stable.
_IN_FLIGHT = re.compile(
    rf"cluster\.(?:(?:{_CLUSTER.pattern})(?:_streams|_forced|_again|_spare)?|.+)\.upstream_rq_active: (?P<active>\d+)"
)
_IN_FLIGHT_PAGE = "/stats?usedonly&filter=" + quote(r"^cluster\..*\.upstream_rq_active$")


def _of_release(model: str, digest: str) -> str:
    """Has the gateway tell of these clusters alone: a page of a thousand models keeps its main thread, and a rollback, waiting."""
    return "&filter=" + quote(f"^{re.escape(model)}_{digest}_(http|grpc)(-[a-z0-9-]+)?$")


class EnvoyHosts:
    """HostCounters over an Envoy, and what is in flight there for all releases. `tls` as `EnvoyCounters` has it.

    Envoy's `rq_error` lacks what was never answered, so failed is what ended without success. It counts what its own bounds
    refused as a success or an error of the server that it had picked. Its `rq_total` lacks the requests for which no connection
    could be made: they are errors, and no more than the connections that failed are taken for such (over gRPC several may have
    waited for one).
    """

    def __init__(self, tls: TlsFiles | None = None) -> None:
        self._context = client_context(tls) if tls else None

    def read_hosts(
        self, *, gateway: str, admin_url: str, timeout_s: float, model: str, digest: str
    ) -> dict[tuple[str, int], HostCounts]:
        """Asks on a connection of its own."""
        wanted, found = (model, digest12(digest)), defaultdict[tuple[str, int], HostCounts](HostCounts)
        for address, counts in self._hosts(gateway, admin_url, timeout_s, wanted):
            found[address] += counts
        return {address: counts for address, counts in found.items() if counts.attempts or counts.active}

    def read_in_flight(self, *, gateway: str, admin_url: str, timeout_s: float) -> dict[tuple[str, str], int]:
        """Asks on a connection of its own. Includes requests on clusters that were changed or removed since they began: their servers
        are listed no more, but Envoy keeps a cluster's gauge while a request is on it.
        """
        lines = [
            _IN_FLIGHT.fullmatch(line)
            for line in self._page(gateway, admin_url, timeout_s, _IN_FLIGHT_PAGE).splitlines()
        ]
        if not lines or not all(lines):
            raise GatewayError(
                "malformed", f"{gateway} does not count requests in flight; start it with its current bootstrap"
            )
        found = Counter[tuple[str, str]]()
        for line in lines:
            if line is not None and line["model"]:
                found[line["model"], line["digest"]] += int(line["active"])
        return dict(+found)

    def _hosts(
        self, gateway: str, url: str, timeout_s: float, wanted: tuple[str, str]
    ) -> list[tuple[tuple[str, int], HostCounts]]:
        page = self._page(gateway, url, timeout_s, _PAGE + _of_release(*wanted))
        try:
            return list(_hosts(json.loads(page), wanted))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GatewayError("malformed", f"{gateway} does not tell of its servers as Envoy does") from error

    def _page(self, gateway: str, url: str, timeout_s: float, path: str) -> str:
        admin = EnvoyAdmin(gateway, url, self._context)
        try:
            return admin.get(path, time.monotonic() + timeout_s)
        finally:
            admin.close()


def _hosts(page: Mapping[str, Any], wanted: tuple[str, str]) -> Iterator[tuple[tuple[str, int], HostCounts]]:
    """The servers of the release, each with its counts, once for each of its clusters of first attempts.

    Numbers of 64 bits are strings, and 0 is left out.
    """
    for cluster in page.get("cluster_statuses", ()):
        if not (name := _CLUSTER.fullmatch(cluster["name"])):
            continue
        if (name["model"], name["digest"]) != wanted:
            continue
        for host in cluster.get("host_statuses", ()):
            address = host["address"]["socket_address"]
            stats = {one["name"]: int(one.get("value", 0)) for one in host.get("stats", ())}
            total, active, success, errors, unconnected = (stats.get(name, 0) for name in _STATS)
            ended, unreached = max(0, total - active), min(errors, unconnected)
            counts = HostCounts(ended + unreached, max(0, ended - success) + unreached, active, unreached)
            yield (address["address"], int(address["port_value"])), counts
