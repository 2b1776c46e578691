"""Reads what an Envoy gateway counted of each server of a release, over its admin interface."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from serving.adapters.envoy_admin import EnvoyAdmin, client_context
from serving.core.addresses import TlsFiles
from serving.core.routes import release_clusters
from serving.ports import GatewayError, HostCounts

_STATS = ("rq_total", "rq_active", "rq_success", "rq_error", "cx_connect_fail")


class EnvoyHosts:
    """HostCounters over an Envoy. `tls` as `EnvoyCounters` has it.

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
        admin = EnvoyAdmin(gateway, admin_url, self._context)
        try:
            page = admin.get("/clusters?format=json", time.monotonic() + timeout_s)
        finally:
            admin.close()
        found: dict[tuple[str, int], HostCounts] = defaultdict(HostCounts)
        try:
            for address, counts in _hosts(json.loads(page), release_clusters(model, digest).values()):
                found[address] += counts
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GatewayError("malformed", f"{gateway} does not tell of its servers as Envoy does") from error
        return {address: counts for address, counts in found.items() if counts.attempts or counts.active}


def _hosts(page: Mapping[str, Any], clusters: Collection[str]) -> Iterator[tuple[tuple[str, int], HostCounts]]:
    """The servers in these clusters and their classes', each with its counts; numbers of 64 bits are strings, and 0 is left out."""
    names = re.compile(rf"({'|'.join(map(re.escape, clusters))})(-[a-z0-9-]+)?")
    for cluster in page.get("cluster_statuses", ()):
        if not names.fullmatch(cluster["name"]):
            continue
        for host in cluster.get("host_statuses", ()):
            address = host["address"]["socket_address"]
            stats = {one["name"]: int(one.get("value", 0)) for one in host.get("stats", ())}
            total, active, success, errors, unconnected = (stats.get(name, 0) for name in _STATS)
            ended, unreached = max(0, total - active), min(errors, unconnected)
            counts = HostCounts(ended + unreached, max(0, ended - success) + unreached, active, unreached)
            yield (address["address"], int(address["port_value"])), counts
