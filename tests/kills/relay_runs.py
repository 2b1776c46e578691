"""A gateway's relay killed at every line that writes its snapshot: the file is the old one or the new one, and never older than
what the gateway's word was passed on for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from django.core.management import load_command_class
from envoy.config.route.v3 import scoped_route_pb2
from envoy.service.discovery.v3 import discovery_pb2

from accounts.core.access import Actor
from ledger.adapters import files
from registry.models import Release
from serving.environments.core.addresses import UNIX
from serving.models import Route, RouteAck
from serving.traffic.actions.routes import set_route
from serving.traffic.control_plane import kept, relay
from serving.traffic.control_plane.clusters import NAMESPACE
from serving.traffic.control_plane.protos import SCOPE
from tests.kills import checks, databases, gateway
from tests.kills.campaign import Played
from tests.kills.lines import Lines
from tests.kills.plane_runs import Peer, control_plane
from tests.kills.points import Point, sites_in
from tests.kills.process import Child, fork
from tests.kills.stage import Stage
from tests.kills.stories import Story

LONGEST_S, LOOK_S = 60.0, 0.01
#: The candidate's weights, one after the other: it comes, grows, and is taken back.
WEIGHTS_BP = (2500, 5000, 0)
WRITERS: tuple[Callable[..., object], ...] = (
    kept.SnapshotFile.write, kept.SnapshotFile._write_whole, kept.SnapshotFile._append, files.write_whole, files._sync_folder,
)  # fmt: skip


def passes_on(
    trace: Path, at: Point | None, place: Path, breaks: Callable[[], tuple[Callable[..., object], ...]]
) -> None:
    """`python -m serving.traffic.control_plane.relay` in this process."""
    Lines(str(trace), at, WRITERS + breaks()).watch()
    one = relay.Relay(_file(place), (f"{UNIX}{place / 'ads.sock'}",))
    asyncio.run(relay.run(one, f"{UNIX}{place / 'relay.sock'}"))


def as_it_is() -> tuple[Callable[..., object], ...]:
    """The product is not broken."""
    return ()


def in_place() -> tuple[Callable[..., object], ...]:
    """Breaks the product: the file is written over for each change, piece by piece."""

    def write(path: Path, data: bytes, **_: object) -> None:
        with path.open("wb") as file:
            file.write(data[:200])
            file.flush()
            file.write(data[200:])
        path.chmod(0o600)

    kept.write_whole = write  # type: ignore[assignment]
    kept.SnapshotFile._append = lambda *_: False  # type: ignore[method-assign]
    return (write,)


@dataclass(frozen=True)
class RelayVictim:
    """The relay of one gateway while a route changes. It is started again when it dies, as by a supervisor; frozen, it goes on later.

    `breaks` spoils the product in its process, and says which functions write then: the campaign must find that out.
    """

    breaks: Callable[[], tuple[Callable[..., object], ...]] = as_it_is
    name: str = "relay, route changes"
    kind: str = "relay"
    can_freeze: bool = True
    template: str = "kills_relay"

    def make_template(self) -> None:
        load_command_class("serving", "control_plane")
        databases.copy(databases.BASE, self.template)
        databases.use(self.template)
        Story("route changes", "", starts=False).seed()
        databases.use("postgres")

    def play(self, folder: Path, at: Point | None) -> Played:
        return Relayed(self, folder, at).play()


@dataclass
class Relayed(Stage):
    victim: RelayVictim
    folder: Path
    at: Point | None
    relays: list[Child] = field(default_factory=list)
    is_thawed: bool = False

    @property
    def template(self) -> str:
        return self.victim.template

    def tell(self) -> None:
        address = f"{UNIX}{self.place / 'ads.sock'}"
        plane = self.begin(fork("plane", lambda: control_plane(self.place / "plane", None, address), self.log))
        self._start_relay()
        self.begin(fork("gateway", Peer(f"{UNIX}{self.place / 'relay.sock'}").run, self.log))
        self._until_acknowledged()
        route = Route.objects.select_related("environment", "model", "stable").get()
        candidate = Release.objects.get(number=2)
        for weight_bp in WEIGHTS_BP:
            set_route(
                actor=Actor.system("test"),
                environment=route.environment,
                model=route.model,
                stable=route.stable,
                candidate=candidate,
                candidate_bp=weight_bp,
                reason="It is time.",
            )
            self._until_acknowledged()
        first = self.relays[0]
        self.played.was_reached = self.at is None or first.was_killed or self.is_thawed
        self.played.trace = sites_in(self.place / "first")
        self.played.history = checks.history()
        self.played.problems += checks.broken_rules(may_reopen=True)
        plane.kill()
        self._start_anew()

    def _start_relay(self) -> None:
        at, breaks = (None if self.relays else self.at), self.victim.breaks
        trace = self.place / ("later" if self.relays else "first")
        self.relays.append(self.begin(fork("relay", lambda: passes_on(trace, at, self.place, breaks), self.log)))

    def _until_acknowledged(self) -> None:
        until, route = time.monotonic() + LONGEST_S, Route.objects.get()
        while True:
            relay_now, is_done = self.relays[-1], self._look() >= route.generation
            if relay_now.is_over:
                assert relay_now.was_killed and len(self.relays) == 1, "the relay ended by itself"
                self._start_relay()
            elif relay_now.is_frozen:
                self._look()
                self.is_thawed = True
                relay_now.thaw()
            elif is_done:
                return
            assert time.monotonic() < until, f"generation {route.generation} is not acknowledged"
            time.sleep(LOOK_S)

    def _look(self) -> int:
        """The generation that is acknowledged; that or a newer one is kept, whole."""
        acknowledged = RouteAck.objects.filter(error="").values_list("generation", flat=True).first() or 0
        found = generation_of(_file(self.place).read())
        relay_now = self.relays[-1]
        if found < acknowledged and (relay_now.is_over or relay_now.is_frozen):  # nobody reads it while it is written
            problem = f"generation {acknowledged} was acknowledged, and {found} is kept"
            self.played.problems += [problem] if problem not in self.played.problems else []
        return acknowledged

    def _start_anew(self) -> None:
        """A relay and a gateway that both begin while no control plane answers: what was acknowledged last is served."""
        self.relays[-1].kill()
        self._start_relay()
        told = self.place / "told"
        starting = self.begin(fork("starting", Starting(f"{UNIX}{self.place / 'relay.sock'}", told).run, self.log))
        until, wanted = time.monotonic() + LONGEST_S, Route.objects.get().generation
        while not told.exists():
            assert time.monotonic() < until and not starting.is_over, "a gateway that starts is told nothing"
            time.sleep(LOOK_S)
        if int(told.read_text()) != wanted:
            self.played.problems.append(f"a gateway that starts is told generation {told.read_text()}, not {wanted}")


class Starting(Peer):
    """Writes the route's generation down once it is told it."""

    def __init__(self, address: str, told: Path) -> None:
        super().__init__(address)
        self._told = told

    def took(self, answer: discovery_pb2.DeltaDiscoveryResponse) -> None:
        if answer.type_url == SCOPE:
            found = generation_of({SCOPE: {one.name: one for one in answer.resources}})
            files.write_whole(self._told, str(found))


def generation_of(resources: kept.Resources) -> int:
    """Of the one model's route; 0 where it is not there."""
    for one in resources.get(SCOPE, {}).values():
        scope = scoped_route_pb2.ScopedRouteConfiguration.FromString(one.resource.value)
        for host in scope.route_configuration.virtual_hosts:
            if told := host.metadata.filter_metadata[NAMESPACE].fields["generation"].string_value:
                return int(told)
    return 0


def _file(place: Path) -> kept.SnapshotFile:
    return kept.SnapshotFile(place / "snapshot", gateway.NAME)


RELAYS = [RelayVictim()]
