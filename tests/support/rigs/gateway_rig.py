"""A real gateway for tests: backends that fail as they are told, an Envoy, and a control plane without a database."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
from django.conf import settings
from django.utils import timezone
from tritonclient.grpc import service_pb2

from serving.environments.core.addresses import TlsFiles
from serving.ports import ArmCounters, GatewayCounters
from serving.traffic.adapters.envoy_bootstrap import bootstrap
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.control_plane.received import StreamAck
from serving.traffic.control_plane.request_log import LoggedRequest
from serving.traffic.control_plane.server import AdsServer, GatewayIdentity, Wake
from serving.traffic.control_plane.snapshot import Snapshot, compile_table
from serving.traffic.core.routes import Arm, ModelRoute, RoutingTable
from tests.support.servers.stub_server import MODEL, Backend, Loop, free_port

#: Key of a request that forces a release.
KEY = "a key of this rig"
FORCES = {"x-sluicegate-release-key": KEY}
#: The stubs bear whatever the tests ask of them at once.
UNBOUNDED = 2000
#: By these the rig knows what can be read by now: Envoy counts readings too, and merges that count with all the others.
_READINGS = "http.admin.downstream_rq_"


def wait_until(is_true: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """What it found. The time is that of a hang: no machine is so busy."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if found := is_true():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s} s: {what}")


class Plane:
    """A control plane's memory without a database: tables are published by hand, acknowledgements are kept."""

    def __init__(self, gateway: GatewayIdentity) -> None:
        self._gateway = gateway
        self._snapshot: Snapshot | None = None
        self._published_at: datetime | None = None
        self._wakes: set[Wake] = set()
        self.acks: list[tuple[float, StreamAck]] = []
        self.refusals: list[str] = []
        self.requests: list[LoggedRequest] = []

    def gateway(self, name: str) -> GatewayIdentity | None:
        return self._gateway if name == self._gateway.name else None

    def snapshot(self, environment: str) -> Snapshot | None:
        return self._snapshot

    def read_at(self, environment: str) -> datetime | None:
        return self._published_at

    def subscribe(self, gateway: GatewayIdentity, wake: Wake) -> None:
        self._wakes.add(wake)

    def unsubscribe(self, gateway: GatewayIdentity, wake: Wake) -> None:
        self._wakes.discard(wake)

    def is_followed(self, table: RoutingTable) -> bool:
        """Whether a gateway is connected, and every one has taken all of what was published last, if that is the table."""
        is_told = self._snapshot is not None and self._snapshot.table is table and bool(self._wakes)
        return is_told and all(wake.follows_at == self._published_at for wake in self._wakes)

    def record_acks(self, gateway: GatewayIdentity, acks: list[StreamAck]) -> None:
        self.acks += [(time.monotonic(), one) for one in acks]

    def record_refusal(self, gateway: GatewayIdentity, peer: str, reason: str) -> None:
        self.refusals.append(reason)

    def record_requests(self, gateway: GatewayIdentity, requests: Iterable[LoggedRequest]) -> None:
        self.requests += requests

    def publish(self, table: RoutingTable) -> None:
        self._snapshot, self._published_at = compile_table(table, self._snapshot), timezone.now()
        for wake in self._wakes:
            wake.publish()


@dataclass
class Answer:
    status: int
    release: str | None
    by: str | None
    body: bytes
    seconds: float
    headers: dict[str, str]


class Envoy:
    """A gateway process."""

    def __init__(
        self,
        folder: Path,
        xds: int | str,
        name: str = "gateway-1",
        port: int | None = None,
        tls: TlsFiles | None = None,
        relay: str = "",
    ) -> None:
        """`xds`: the control plane's port of this machine, or its address. With `tls` its counters can be read over TLS as well."""
        self.name, self.port, self.admin_port = name, port or free_port(), free_port()
        counters = f"127.0.0.1:{free_port()}" if tls else ""
        self.counters_url = f"https://{counters}"
        address = xds if isinstance(xds, str) else f"127.0.0.1:{xds}"
        self.config = folder / f"{name}.json"
        told = bootstrap(name, address, f"127.0.0.1:{self.admin_port}", tls, counters, relay=relay)
        told["stats_config"]["stats_matcher"]["inclusion_list"]["patterns"].append({"prefix": _READINGS})
        self.config.write_text(json.dumps(told))
        self.log = (folder / f"{name}.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, workers: int = 1) -> None:
        argv = [
            str(settings.ENVOY_BINARY),
            "-c",
            str(self.config),
            "--disable-hot-restart",
            "--concurrency",
            str(workers),
            "-l",
            "warning",
        ]
        self._process = subprocess.Popen(argv, stdout=self.log, stderr=self.log)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_open(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
            return True
        return False

    def admin(self, path: str) -> str:
        line = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=60)
        try:
            line.request("GET", path)
            return line.getresponse().read().decode()
        finally:
            line.close()

    def flushed(self) -> None:
        """Waits until everything that was answered before can be read: counts are merged `FLUSH_S` after they were counted, or later."""
        before = int(self.admin(f"/stats?filter=^{_READINGS}completed$").rpartition(": ")[2])
        page = f"/stats?filter=^{_READINGS}time$&histogram_buckets=cumulative"
        wait_until(lambda: any(int(n) > before for n in re.findall(r",(\d+)\)", self.admin(page))), "counts are merged")

    def http(
        self,
        path: str = f"/v2/models/{MODEL}/infer",
        headers: dict[str, str] | None = None,
        body: bytes = b"{}",
        method: str = "POST",
    ) -> Answer:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=50)
        began = time.monotonic()
        try:
            line.request(method, path, body, headers or {})
            answer = line.getresponse()
            raw = answer.read()
            found = {key.lower(): value for key, value in answer.getheaders()}
            with contextlib.suppress(ValueError):
                return Answer(
                    answer.status,
                    found.get("x-sluicegate-release"),
                    json.loads(raw).get("by"),
                    raw,
                    time.monotonic() - began,
                    found,
                )
            return Answer(answer.status, found.get("x-sluicegate-release"), None, raw, time.monotonic() - began, found)
        finally:
            line.close()

    @contextlib.contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            yield channel


def grpc_infer(
    channel: grpc.Channel,
    model: str = MODEL,
    metadata: tuple[tuple[str, str], ...] = (),
    timeout_s: float = 50.0,
    request: bytes = b"",
) -> tuple[grpc.StatusCode, str | None, str | None]:
    """(status, release header, the backend's name) of one call. `request` is a message that is sent as it is."""
    sent = request or service_pb2.ModelInferRequest(model_name=model).SerializeToString()
    ask = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer", response_deserializer=service_pb2.ModelInferResponse.FromString
    )
    try:
        answer, call = ask.with_call(sent, timeout=timeout_s, metadata=metadata)
        return grpc.StatusCode.OK, dict(call.initial_metadata()).get("x-sluicegate-release"), answer.id
    except grpc.RpcError as error:
        found = {**dict(error.initial_metadata() or ()), **dict(error.trailing_metadata() or ())}
        return error.code(), found.get("x-sluicegate-release"), None


class Traffic:
    """Clients that call over and over, HTTP and gRPC, each on a connection of its own, until stopped."""

    def __init__(
        self, envoy: Envoy, clients: int = 4, pause_s: float = 0.005, *, body: bytes = b"{}", message: bytes = b""
    ) -> None:
        """`body` and `message` are what is asked: any request of this model's by default."""
        self._stop = threading.Event()
        self._body, self._message = body, message or service_pb2.ModelInferRequest(model_name=MODEL).SerializeToString()
        self.calls: list[tuple[float, str, str]] = []  # (when it began, release or "", what went wrong or "")
        self._pause_s = pause_s
        self._pool = ThreadPoolExecutor(clients)
        self._jobs = [self._pool.submit(self._http if i % 2 else self._grpc, envoy) for i in range(clients)]

    def go_on(self, calls: int = 40) -> None:
        """Waits until so many further calls have ended."""
        wanted = len(self.calls) + calls
        wait_until(lambda: len(self.calls) >= wanted, f"{calls} more calls")

    def stop(self) -> Counter[str]:
        """Calls by outcome: "" is well."""
        self._stop.set()
        for job in self._jobs:
            job.result(60)
        self._pool.shutdown()
        return Counter(error for _, _, error in self.calls)

    def _http(self, envoy: Envoy) -> None:
        line = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=50)
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                line.request("POST", f"/v2/models/{MODEL}/infer", self._body)
                answer = line.getresponse()
                answer.read()
                release = answer.getheader("x-sluicegate-release") or ""
                self.calls.append((began, release, "" if answer.status == 200 else f"HTTP {answer.status}"))
            except OSError as error:
                self.calls.append((began, "", repr(error)))
                line.close()
            self._stop.wait(self._pause_s)
        line.close()

    def _grpc(self, envoy: Envoy) -> None:
        with envoy.channel() as channel:
            while not self._stop.is_set():
                began = time.monotonic()
                code, release, _ = grpc_infer(channel, request=self._message)
                self.calls.append((began, release or "", "" if code is grpc.StatusCode.OK else code.name))
                self._stop.wait(self._pause_s)


@dataclass
class Rig:
    """Two releases, r1 (stable) and r2 (candidate), behind one gateway."""

    loop: Loop
    envoy: Envoy
    plane: Plane
    ads: AdsServer
    stable: Backend
    candidate: Backend
    generation: int = 0

    STABLE = "sha256:" + "1a" * 32
    CANDIDATE = "sha256:" + "2b" * 32

    def route(self, candidate_bp: int | None = 0, **changes: Any) -> ModelRoute:
        """The next generation of the route; None leaves the candidate out."""
        self.generation += 1
        stable = Arm("r1", self.STABLE, (self.stable.endpoint,), UNBOUNDED)
        candidate = (
            Arm("r2", self.CANDIDATE, (self.candidate.endpoint,), UNBOUNDED) if candidate_bp is not None else None
        )
        settled: dict[str, Any] = {
            "route_id": 1,
            "model": MODEL,
            "generation": self.generation,
            "stable": stable,
            "candidate": candidate,
            "candidate_bp": candidate_bp or 0,
        }
        return ModelRoute(**{**settled, **changes})

    def publish(self, *routes: ModelRoute, allows_forced: bool = False) -> None:
        table = RoutingTable("production", self.generation, KEY if allows_forced else "", routes)
        self.loop.loop.call_soon_threadsafe(self.plane.publish, table)

    def apply(self, candidate_bp: int | None = 0, *, allows_forced: bool = False, **changes: Any) -> float:
        """Publishes one route and waits for its acknowledgement; returns the seconds it took."""
        route = self.route(candidate_bp, **changes)
        began = time.monotonic()
        self.publish(route, allows_forced=allows_forced)
        at = wait_until(lambda: self.acked(route.generation), f"acknowledgement of generation {route.generation}")
        wait_until(self.envoy.is_open, "the gateway's port")
        return float(at) - began

    def counters(self) -> GatewayCounters:
        """Counters of the gateway for the model, for all requests that were answered before. Zeros for a release without requests."""
        self.envoy.flushed()
        url = self.envoy.admin_url
        found = EnvoyCounters().read(gateway="gateway-1", admin_url=url, models=[MODEL], timeout_s=20.0)[MODEL]
        return replace(found, by_release=defaultdict(ArmCounters, found.by_release))

    def acked(self, generation: int) -> float | None:
        found = [at for at, one in self.plane.acks if one.generation == generation and not one.error]
        return found[0] if found else None


@contextlib.contextmanager
def rig(
    folder: Path,
    port: int | None = None,
    *,
    xds: str = "",
    tls: TlsFiles | None = None,
    gateway_tls: TlsFiles | None = None,
    relay: str = "",
    trusted: tuple[str, ...] = (),
    is_drained: bool = False,
) -> Iterator[Rig]:
    """`port`: where the gateway is to listen, whoever else is there; any free port by default. `xds`: where the control plane is to,
    with `tls` if its gateway is to show a certificate, `gateway_tls`. `relay`: where the gateway's relay listens, if it has one.
    `trusted`: proxies that it believes. `is_drained`: it is to answer that it is not ready."""
    loop, port = Loop(), port or free_port()
    plane = Plane(GatewayIdentity(1, "gateway-1", "production", (("127.0.0.1", port),), trusted, is_drained))
    ads = AdsServer(plane)
    xds = xds or f"127.0.0.1:{free_port()}"
    loop.run(ads.start(xds, tls))
    envoy = Envoy(folder, xds, port=port, tls=gateway_tls, relay=relay)
    built = Rig(loop, envoy, plane, ads, Backend(loop, "stable").start(), Backend(loop, "candidate").start())
    try:
        envoy.start()
        yield built
    finally:
        envoy.stop()
        envoy.log.close()
        loop.run(built.ads.stop())
        for backend in (built.stable, built.candidate):
            backend.stop()
        loop.close()
