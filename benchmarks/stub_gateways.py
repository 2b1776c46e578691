"""Gateways that take every resource and say so, for `benchmarks.fleet_scale`: many ADS streams in one process.

Run `python -m benchmarks.stub_gateways ADDRESS OUT NAME…`. Each subscribes as Envoy does, on a connection of its own. At SIGTERM what
each was sent of virtual hosts, one at a time, is written to OUT as JSON: [when it came (Unix seconds), gateway, virtual host, bytes].
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import grpc
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest as Request
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse as Response

from serving.traffic.control_plane.protos import CLUSTER, ENDPOINTS, LISTENER, SCOPE
from serving.traffic.control_plane.server import OPTIONS, SERVICE

Taken = tuple[float, str, str, int]


async def gateway(name: str, address: str, taken: list[Taken]) -> None:
    """One gateway's stream, until it is cancelled."""
    options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
    async with grpc.aio.insecure_channel(address, options=options) as line:
        method = line.stream_stream(
            f"/{SERVICE}/DeltaAggregatedResources",
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )
        call: Any = method(wait_for_ready=True)
        first = Request(type_url=CLUSTER)
        first.node.id = name
        await call.write(first)
        has_routes = False
        while (answer := await call.read()) is not grpc.aio.EOF:
            if answer.type_url == SCOPE and len(answer.resources) == 1:
                taken.append((time.time(), name, answer.resources[0].name, answer.ByteSize()))
            await call.write(Request(type_url=answer.type_url, response_nonce=answer.nonce))
            if answer.type_url == CLUSTER:
                own = [one.name for one in answer.resources if "_or_" not in one.name]
                if own:
                    await call.write(Request(type_url=ENDPOINTS, resource_names_subscribe=own))
                await call.write(Request(type_url=LISTENER))
            elif answer.type_url == LISTENER and not has_routes:
                has_routes = True
                await call.write(Request(type_url=SCOPE))


async def run(address: str, out: Path, names: list[str]) -> None:
    taken: list[Taken] = []
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    streams = [asyncio.create_task(gateway(name, address, taken)) for name in names]
    over = asyncio.create_task(ended.wait())
    await asyncio.wait([over, *streams], return_when=asyncio.FIRST_COMPLETED)
    broken = [one for one in streams if one.done()]
    for one in streams:
        one.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    out.write_text(json.dumps(taken))
    if broken:
        sys.exit(f"{len(broken)} streams ended by themselves: {broken[0]}")


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
