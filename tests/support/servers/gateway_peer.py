"""A gateway's side of its stream without a gateway: it subscribes as Envoy does, and answers as it is told to."""

from __future__ import annotations

from envoy.service.discovery.v3 import discovery_pb2

from serving.traffic.control_plane.protos import CLUSTER, ENDPOINTS, LISTENER, SCOPE
from serving.traffic.control_plane.snapshot import Snapshot, compile_listeners, compile_table
from serving.traffic.control_plane.stream import (
    GatewayStream,
)  # fmt: skip
from serving.traffic.core.routes import Arm, ModelRoute, RoutingTable, ServerAddress

A = Arm("r1", "sha256:" + "a" * 64, (ServerAddress("127.0.0.1", 9001, 9002),))
B = Arm("r2", "sha256:" + "b" * 64, (ServerAddress("127.0.0.1", 9011, 9012),))
C = Arm("r3", "sha256:" + "c" * 64, (ServerAddress("127.0.0.1", 9021, 9022),))
SHORT = {CLUSTER: "CDS", ENDPOINTS: "EDS", LISTENER: "LDS", SCOPE: "SRDS"}


def route(candidate: Arm | None = B, bp: int = 500, generation: int = 1, model: str = "sentiment") -> ModelRoute:
    return ModelRoute(len(model), model, generation, A, candidate, bp)


def snapshot(*routes: ModelRoute, last: Snapshot | None = None) -> Snapshot:
    return compile_table(RoutingTable("production", max((r.generation for r in routes), default=0), "", routes), last)


class Peer:
    """An Envoy's side of the stream: subscribes as Envoy does, and acknowledges unless told otherwise."""

    def __init__(self, held: dict[str, dict[str, str]] | None = None) -> None:
        self.stream = GatewayStream(compile_listeners((("127.0.0.1", 8000),)), now=0.0)
        self.log: list[str] = []
        self.removed: list[str] = []
        self.refuses: dict[str, str] = {}
        self.is_silent_on: set[str] = set()
        self.held = held or {}
        self._asked: set[str] = set()
        self.ask(CLUSTER)

    def ask(self, type_url: str, names: tuple[str, ...] = ()) -> None:
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=names)
        if type_url not in self._asked:
            request.initial_resource_versions.update(self.held.get(type_url, {}))
        self._asked.add(type_url)
        self.stream.receive(request)

    def settle(self, current: Snapshot, now: float = 0.0) -> list[str]:
        """Answers until nothing is due; returns what was sent, in order."""
        start = len(self.log)
        for _ in range(30):
            responses = self.stream.due(current, now)
            if not responses:
                return self.log[start:]
            for response in responses:
                self._take(response)
        raise AssertionError(f"never settles: {self.log[-6:]}")

    def _take(self, response: discovery_pb2.DeltaDiscoveryResponse) -> None:
        names = [one.name for one in response.resources]
        self.log.append(SHORT[response.type_url] + ("-" if response.removed_resources else ""))
        self.removed += response.removed_resources
        if response.type_url in self.is_silent_on:
            return
        words = next((text for name, text in self.refuses.items() if name in names), "")
        answer = discovery_pb2.DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
        if words:
            answer.error_detail.message = words
        self.stream.receive(answer)
        if response.type_url == CLUSTER:
            new = tuple(name for name in names if "_or_" not in name and name not in words)
            if new:
                self.ask(ENDPOINTS, new)
            if LISTENER not in self._asked:
                self.ask(LISTENER)
        if response.type_url == LISTENER:
            self.ask(SCOPE)
