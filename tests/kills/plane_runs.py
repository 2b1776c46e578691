"""The control plane killed at its writes: gateways keep what they have, and acknowledgements are written by the next one."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from django.core.management import call_command, load_command_class
from envoy.service.discovery.v3 import discovery_pb2

from rollouts.models import Rollout
from serving.environments.core.addresses import UNIX
from serving.models import Route, RouteAck
from serving.traffic.control_plane.protos import CLUSTER, ENDPOINTS, LISTENER, SCOPE
from serving.traffic.control_plane.server import SERVICE
from tests.kills import databases, gateway
from tests.kills.campaign import Played
from tests.kills.engine_runs import LONGEST_S, Telling
from tests.kills.points import Point, Points, sites_in
from tests.kills.process import Child, fork
from tests.kills.stories import STORIES, Story

Ask = discovery_pb2.DeltaDiscoveryRequest
Answer = discovery_pb2.DeltaDiscoveryResponse


class Peer:
    """An Envoy's side of the stream: it subscribes as Envoy does, takes everything, and tells what it has when it comes back."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._held: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._asked: set[str] = set()

    def start(self) -> None:
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        """For as long as the process lives; whenever the stream ends it calls again."""
        while True:
            try:
                with grpc.insecure_channel(self._address) as channel:
                    self._stream(channel)
            except grpc.RpcError:
                time.sleep(0.02)

    def _stream(self, channel: grpc.Channel) -> None:
        said: queue.SimpleQueue[Ask] = queue.SimpleQueue()
        self._asked = set()
        self._ask(said, CLUSTER, node=True)
        for url in (ENDPOINTS, LISTENER, SCOPE):  # one that comes back asks for all that it had at once
            if names := _names(url, self._held):
                self._ask(said, url, names)
            elif self._held[url]:
                self._ask(said, url)
        call = channel.stream_stream(
            f"/{SERVICE}/DeltaAggregatedResources",
            request_serializer=Ask.SerializeToString,
            response_deserializer=Answer.FromString,
        )
        for answer in call(_endless(said)):
            self._take(said, answer)

    def took(self, answer: Answer) -> None:
        """What it was told."""

    def _ask(self, said: queue.SimpleQueue[Ask], url: str, names: tuple[str, ...] = (), *, node: bool = False) -> None:
        request = Ask(type_url=url, resource_names_subscribe=names)
        if node:
            request.node.id = gateway.NAME
        if url not in self._asked:
            request.initial_resource_versions.update(self._held[url])
        self._asked.add(url)
        said.put(request)

    def _take(self, said: queue.SimpleQueue[Ask], answer: Answer) -> None:
        url = answer.type_url
        self.took(answer)
        self._held[url].update({one.name: one.version for one in answer.resources})
        for name in answer.removed_resources:
            self._held[url].pop(name, None)
        said.put(Ask(type_url=url, response_nonce=answer.nonce))
        new = _with_endpoints(one.name for one in answer.resources)
        if url == CLUSTER and new:
            self._ask(said, ENDPOINTS, new)
        follows = {CLUSTER: LISTENER, LISTENER: SCOPE}.get(url)
        if follows and follows not in self._asked:
            self._ask(said, follows)


def _names(url: str, held: dict[str, dict[str, str]]) -> tuple[str, ...]:
    """What it asks for by name, also what it had not been told yet when the stream ended."""
    return _with_endpoints(held[CLUSTER]) if url == ENDPOINTS else ()


def _with_endpoints(clusters: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in clusters if "_or_" not in name)


def _endless(said: queue.SimpleQueue[Ask]) -> Iterator[Ask]:
    while True:
        yield said.get()


def control_plane(trace: Path, at: Point | None, address: str) -> None:
    """`manage.py control_plane` in this process."""
    Points(str(trace), at).watch()
    call_command("control_plane", address=address)


@dataclass(frozen=True)
class PlaneVictim:
    """The control plane in one story of a rollout. It is started again when it dies, as by a supervisor."""

    story: Story
    kind: str = "control plane"
    can_freeze: bool = False

    @property
    def name(self) -> str:
        return f"control plane, {self.story.name}"

    @property
    def template(self) -> str:
        return f"kills_plane_{self.story.name.replace(' ', '_')}"

    def make_template(self) -> None:
        load_command_class("rollouts", "engine")
        load_command_class("serving", "control_plane")
        databases.copy(databases.BASE, self.template)
        databases.use(self.template)
        self.story.seed()
        databases.use("postgres")

    def play(self, folder: Path, at: Point | None) -> Played:
        return Planned(self.story, self.template, folder, at).play()


@dataclass
class Planned(Telling):
    """A story in which the engine lives and the control plane may be killed; traffic follows what is acknowledged."""

    def tell(self) -> None:
        # not a port: another process could have it before the next control plane does
        self.address = f"{UNIX}{self.place / 'ads.sock'}"
        self.planes: list[Child] = []
        self.tend()
        super().tell()
        self.played.trace = sites_in(self.place / "plane 0")
        self.played.was_reached = self.at is None or len(self.planes) > 1
        self._check_words()

    @property
    def engine_dies_at(self) -> None:
        return None

    def gateway_started(self) -> gateway.RunningGateway:
        beside: Callable[[], object] = lambda: Peer(self.address).start()  # noqa: E731
        return gateway.start(self.log, rate=self.story.rate, follows="acknowledged", beside=beside)

    def tend(self) -> None:
        if not self.planes or self.planes[-1].is_over:
            number, at = len(self.planes), self.at if not self.planes else None
            trace = self.place / f"plane {number}"
            self.planes.append(
                self.begin(fork(f"plane {number}", lambda: control_plane(trace, at, self.address), self.log))
            )

    def _check_words(self) -> None:
        """In the end the gateway's word on the route is the newest one, and without error."""
        until = time.monotonic() + LONGEST_S
        route = Route.objects.get()
        while not RouteAck.objects.filter(route=route, generation=route.generation, error="").exists():
            if time.monotonic() > until:
                words = list(RouteAck.objects.values_list("generation", "error"))
                self.played.problems.append(f"generation {route.generation} is not acknowledged: {words}")
                return
            self.tend()
            time.sleep(0.02)
        rollout = Rollout.objects.get()
        if rollout.zero_at and rollout.decided_at and rollout.zero_at < rollout.decided_at:
            self.played.problems.append("weight 0 was acknowledged before it was decided")


PLANES = [PlaneVictim(story) for story in STORIES if story.name in {"promoted", "breach", "aborted"}]
