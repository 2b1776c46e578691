"""More load than a server can bear: the gateway beside a plain Envoy, and beside itself without its bound. Real Triton, real Envoy.

Run `python -m benchmarks.overload [--model fifo|metastable] [--seconds 10]`; five minutes for each model. One takes 20 ms for each
request, the other gets slower the larger its batches are, so that a queue, once it is there, stays. First a closed loop finds what the
server can do. Then users come at random, over HTTP at twice and three times as much and over gRPC at twice, and right after that at
0.7 times: each of the four has the same burst on a fresh server, in turn. *Plain* is an Envoy as it is written by hand: one cluster,
every default; *adaptive* is the same with Envoy's filter that finds the limit by itself (median latency, ten looks a second). The bound
is the one that the control plane gives such a release (`serving.traffic.core.bounds.bounds_of`).

Printed: good answers (200 or OK within 250 ms) in percent of the capacity; what was shed, and how fast, as its callers saw it (on the same
cores as everything else) and as the gateway counted it; what else was no answer; how good the answers were after the burst, and from
when on nine in ten were. Ends with 1 where the bound does not hold what it is for (`misses`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django
import numpy as np

django.setup()

from django.conf import settings  # noqa: E402

from serving.ports import ArmCounters  # noqa: E402
from serving.traffic.core.bounds import bounds_of  # noqa: E402
from serving.traffic.core.request_limits import Limits  # noqa: E402
from serving.traffic.core.routes import Arm, ServerAddress  # noqa: E402
from tests.contracts.serving_models import MemoryBlobs  # noqa: E402
from tests.support.rigs.gateway_rig import UNBOUNDED, Rig, rig, wait_until  # noqa: E402
from tests.support.rigs.overload_rig import (  # noqa: E402
    FIFO,
    METASTABLE,
    Call,
    Channel,
    Lines,
    Model,
    closed_loop,
    manifest,
    open_loop,
    triton,
)
from tests.support.servers.stub_server import free_port  # noqa: E402

MODELS: Final = {"fifo": FIFO, "metastable": METASTABLE}
PLAIN, OPEN, BOUND, ADAPTIVE = "plain Envoy", "no bound", "bound", "plain Envoy, adaptive"
ARMS: Final = (PLAIN, OPEN, BOUND, ADAPTIVE)
BY_HAND: Final = (PLAIN, ADAPTIVE)
#: (protocol, times the capacity).
BURSTS: Final = (("HTTP", 2.0), ("HTTP", 3.0), ("gRPC", 2.0))
USERS: Final = {"HTTP": Lines, "gRPC": Channel}
AFTER: Final = 0.7

GOOD_S = 0.25
#: What the bound must hold: of the capacity, good answers; of what is shed, 99 in 100 within so long; nine in ten answers good again.
LEAST_GOODPUT, SHED_WITHIN_S, NORMAL = 0.8, 0.05, 0.9
_AT_ONCE = (1, 2, 4, 8)
_TYPES = "type.googleapis.com/envoy.extensions"


@dataclass(frozen=True)
class Row:
    """What one arm made of one burst. `shed_at_gateway`: bins (upper edge, ms) of how long shed requests took; None: it counts none."""

    arm: str
    capacity: float  # requests a second
    seconds: float  # of the burst
    burst: Sequence[Call]
    after: Sequence[Call]
    counted: ArmCounters | None = None
    shed_at_gateway: Mapping[float, int] | None = None

    @property
    def calls(self) -> list[Call]:
        return [*self.burst, *self.after]

    @property
    def goodput(self) -> float:
        return len(good(self.burst)) / (self.capacity * self.seconds)

    @property
    def shed(self) -> list[Call]:
        return [one for one in self.calls if one.status == 429]

    @property
    def lost(self) -> list[Call]:
        return [one for one in self.calls if one.status not in (200, 429)]

    @property
    def shed_p99_s(self) -> float | None:
        return float(np.quantile([one.took_s for one in self.shed], 0.99)) if self.shed else None

    @property
    def gateway_p99_s(self) -> float | None:
        """The upper edge of the bin that holds the 99th percentile."""
        bins = sorted((self.shed_at_gateway or {}).items())
        whole, seen = sum(count for _, count in bins), 0
        for edge_ms, count in bins:
            seen += count
            if count and seen >= 0.99 * whole:
                return edge_ms / 1000
        return None

    @property
    def normal_after_s(self) -> float | None:
        """Seconds after the burst from which on nine in ten answers are good, for the rest of the time, a second at least."""
        for late_s in np.arange(0.0, self.seconds - 0.9, 0.5):
            rest = [one for one in self.after if one.at_s >= self.seconds + late_s]
            if rest and len(good(rest)) >= NORMAL * len(rest):
                return float(late_s)
        return None


def good(calls: Sequence[Call]) -> list[Call]:
    return [one for one in calls if one.status == 200 and one.took_s <= GOOD_S]


def misses(row: Row) -> list[str]:
    """What the bound did not hold, in words."""
    counted, shed = row.counted or ArmCounters(), len(row.shed)
    told = sum(one.has_term for one in row.shed)
    slow = [one for one in (row.shed_p99_s, row.gateway_p99_s) if one is None or one > SHED_WITHIN_S]
    found = {
        f"goodput {100 * row.goodput:.0f} % of the capacity": row.goodput < LEAST_GOODPUT,
        f"{len(row.lost)} requests were neither answered nor shed": bool(row.lost),
        f"of {shed} shed requests, {told} were told when to come again": told != shed,
        "shedding took too long, or nothing was shed": bool(slow),
        "not back to normal within the time after the burst": row.normal_after_s is None,
        f"the release is charged with {counted.failed} failures": bool(counted.failed),
        f"{counted.shed} are counted as shed, {shed} were": counted.shed != shed,
    }
    return [words for words, is_missed in found.items() if is_missed]


def adaptive_concurrency() -> dict[str, Any]:
    gradient = {
        "sample_aggregate_percentile": {"value": 50},
        "concurrency_limit_params": {"concurrency_update_interval": "0.1s"},
        "min_rtt_calc_params": {"interval": "10s", "request_count": 20},
    }
    kind = f"{_TYPES}.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency"
    config = {
        "@type": kind,
        "gradient_controller_config": gradient,
        "concurrency_limit_exceeded_status": {"code": "TooManyRequests"},
    }
    return {"name": "adaptive", "typed_config": config}


def plain_envoy(port: int, at: ServerAddress, protocol: str, *, is_adaptive: bool = False) -> dict[str, Any]:
    """What a team writes by hand: one listener, one route, one cluster. Everything else is Envoy's default."""
    router = {"name": "router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "triton"}}
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ingress",
        "route_config": {"virtual_hosts": [{"name": "triton", "domains": ["*"], "routes": [route]}]},
        "http_filters": [*([adaptive_concurrency()] if is_adaptive else []), router],
    }
    options = f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions"
    is_grpc = protocol == "gRPC"
    server = _address(at.host, at.grpc_port if is_grpc else at.http_port)
    http = {"@type": options, "explicit_http_config": {"http2_protocol_options": {}}}
    cluster = {
        "name": "triton",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "triton", "endpoints": [{"lb_endpoints": [{"endpoint": server}]}]},
        **({"typed_extension_protocol_options": {options.rpartition("/")[2]: http}} if is_grpc else {}),
    }
    listener = {
        **_address("127.0.0.1", port),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"address": {"socket_address": {"address": host, "port_value": port}}}


@contextlib.contextmanager
def door(parts: Rig, folder: Path, arm: str, at: ServerAddress, protocol: str, bound: int) -> Iterator[int]:
    """The port at which this arm takes requests for the server."""
    if arm in BY_HAND:
        port, file = free_port(), folder / "plain.json"
        file.write_text(json.dumps(plain_envoy(port, at, protocol, is_adaptive=arm == ADAPTIVE)))
        argv = [str(settings.ENVOY_BINARY), "-c", str(file), "--disable-hot-restart", "--concurrency", "1", "-l", "off"]
        process = subprocess.Popen(argv)
        try:
            wait_until(lambda: closed_loop(port, 1, 0.01)[0].status or protocol == "gRPC", "the plain Envoy's port")
            yield port
        finally:
            process.kill()
            process.wait(60)
        return
    limits = Limits(timeout_s=10.0, attempt_timeout_s=10.0)
    parts.apply(None, stable=Arm("r1", Rig.STABLE, (at,), UNBOUNDED if arm == OPEN else bound), limits=limits)
    yield parts.envoy.port


def counted(parts: Rig) -> tuple[ArmCounters, Counter[float]]:
    """Of the release, and of what the gateway itself refused, by the upper edge in ms of how long that took."""
    of_release = parts.counters().by_release.get(Rig.STABLE, ArmCounters())
    page = parts.envoy.admin("/stats?filter=^sli\\.request\\..*UO&histogram_buckets=detailed&format=json")
    bins: Counter[float] = Counter()
    for part in json.loads(page)["stats"]:
        for one in part.get("histograms", {}).get("details", ()):
            for each in one["totals"]:
                bins[each["lower_bound"] + each["width"]] += each["count"]
    return of_release, bins


def capacity_of(parts: Rig, folder: Path, model: Model) -> float:
    """Requests a second that the server answers at most, whichever number of users ask at once, through the plain Envoy."""
    with triton(folder / "first", model) as at, door(parts, folder, PLAIN, at, "HTTP", 0) as port:
        closed_loop(port, 1, 0.5)
        found = {}
        for clients in _AT_ONCE:
            calls = [one for one in closed_loop(port, clients, 2.0) if one.status == 200]
            found[clients] = len(calls) / max(one.at_s + one.took_s for one in calls)
    print(f"\n{model.name}; at once → answered: " + ", ".join(f"{n} → {rate:.1f}/s" for n, rate in found.items()))
    return max(found.values())


def measure(parts: Rig, folder: Path, model: Model, seconds: float) -> list[str]:
    bound = bounds_of(json.dumps(manifest(model, MemoryBlobs()))).max_in_flight
    capacity = capacity_of(parts, folder, model)
    print(f"capacity {capacity:.1f}/s; the bound is {bound} in flight, half of it for each protocol\n")
    print(
        "| load | | good, % of capacity | shed of the burst | shed p99: callers / gateway | else | after it: good, normal after |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    missed = []
    for turn, (protocol, times) in enumerate(BURSTS):
        phases = [(times * capacity, seconds), (AFTER * capacity, seconds)]
        for arm in (*ARMS[turn:], *ARMS[:turn]):
            before = counted(parts)
            here = folder / f"{turn}-{ARMS.index(arm)}"
            with triton(here, model) as at, door(parts, folder, arm, at, protocol, bound) as port:
                calls = open_loop(port, phases, users=USERS[protocol])
            row = Row(arm, capacity, seconds, *calls)
            if arm not in BY_HAND:
                of_release, bins = counted(parts)
                here_alone = ArmCounters(
                    failed=of_release.failed - before[0].failed, shed=of_release.shed - before[0].shed
                )
                row = Row(arm, capacity, seconds, *calls, here_alone, bins - before[1])
            print(as_line(row, f"{protocol}, {times:g}×"), flush=True)
            if arm == BOUND:
                missed += [f"{model.name}, {protocol} at {times:g}×: {one}" for one in misses(row)]
    return missed


def as_line(row: Row, load: str) -> str:
    at_gateway = f"{1000 * row.gateway_p99_s:.0f} ms" if row.gateway_p99_s is not None else "–"
    quick = f"{1000 * row.shed_p99_s:.0f} ms / {at_gateway}" if row.shed_p99_s is not None else "–"
    back = "never" if row.normal_after_s is None else f"{row.normal_after_s:g} s"
    after = f"{100 * len(good(row.after)) / max(len(row.after), 1):.0f} %, {back}"
    shed = f"{100 * sum(one.status == 429 for one in row.burst) / max(len(row.burst), 1):.0f} %"
    late = sum(one.status == 200 and one.took_s > GOOD_S for one in row.calls)
    other = f"{late} late, {len(row.lost)} lost"
    return f"| {load} | {row.arm} | {100 * row.goodput:.0f} | {shed} | {quick} | {other} | {after} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), help="both by default")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the burst, and of what follows it")
    asked = parser.parse_args()
    missed = []
    for name in [asked.model] if asked.model else MODELS:
        with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as parts:
            parts.apply(None)
            missed += measure(parts, Path(folder), MODELS[name], asked.seconds)
    print("\n" + ("\n".join(missed) or "The bound holds."))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
