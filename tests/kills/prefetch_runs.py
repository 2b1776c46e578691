"""An agent killed at every line with which it fetches files ahead: a copy under its name is whole, and none is told that is not there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from registry.models import Release
from serving.actions import prefetch as told
from serving.actions.routes import set_route
from serving.agent import blob_cache, node_agent, prefetcher
from serving.agent.blob_cache import BlobCache
from serving.agent.prefetcher import Prefetcher
from serving.core.prefetch import FilesStanding
from serving.models import Prefetch, Route
from tests.factories import make_environment, make_model, make_release, resealed
from tests.kills import databases
from tests.kills.agent_runs import PACE
from tests.kills.campaign import Played
from tests.kills.fleet_stories import PEOPLE
from tests.kills.lines import Lines
from tests.kills.machine import Machine
from tests.kills.points import Point, sites_in
from tests.kills.process import Child, fork
from tests.kills.stage import Stage

LONGEST_S, LOOK_S, LET_GO_S = 60.0, 0.02, 0.4
RANGE_BYTES = 1000
#: Of each release: one file of several ranges, and a small one.
SIZES = (2500, 100)
RELEASES = 3
WRITERS: tuple[Callable[..., object], ...] = (
    BlobCache.hold, BlobCache._fetched, BlobCache._cached, BlobCache._make_room, BlobCache.sweep, Prefetcher._fetch,
    told.record_prefetches.__wrapped__,  # type: ignore[attr-defined]
)  # fmt: skip


def bytes_of(release: int, size: int) -> bytes:
    return bytes([release]) * size


class Store:
    """A blob store that has every file of every release."""

    def __init__(self) -> None:
        every = [bytes_of(number, size) for number in range(1, RELEASES + 1) for size in SIZES]
        self._data = {hashlib.sha256(data).hexdigest(): data for data in every}

    def reader_of(self, sha256: str) -> Callable[[int, int], bytes]:
        return lambda start, length: self._data[sha256][start : start + length]


@dataclass(frozen=True)
class Caching(Machine):
    """Its launcher sweeps the node's copies, too."""

    cache: BlobCache | None = None

    def sweep(self, keep: set[Path]) -> list[Path]:
        assert self.cache is not None
        self.cache.sweep()
        return super().sweep(keep)


def agent(trace: Path, at: Point | None, place: Path) -> None:
    """`manage.py agent` in this process; there is room for the copies of two releases."""
    Lines(str(trace), at, WRITERS).watch()
    if at is not None and at.is_freeze:
        databases.let_go_after(LET_GO_S)
    blob_cache.RANGE_BYTES = RANGE_BYTES
    prefetcher._LOOK_EVERY_S, prefetcher._TELL_EVERY_S = 0.03, 0.0
    node_agent.LOOK_EVERY_S, node_agent.BEAT_EVERY_S = 0.03, 0.25
    cache = BlobCache(place / "cache", Store(), max_bytes=2 * sum(SIZES))
    machine = Caching("a", place / "servers", 2**10, cache=cache)
    node_agent.facts = machine.facts
    node_agent.Agent(
        node="a",
        servers=machine.servers,
        launcher=machine,
        connect=machine.connect,
        pace=PACE,
        prefetcher=Prefetcher(cache, bytes_per_s=1e12),
    ).run()


@dataclass(frozen=True)
class PrefetchVictim:
    """The agent of a node that fetches a candidate's files, and then another's, for which the first one's have to go. It is started again
    when it dies, as by a supervisor; frozen, it goes on once the database has let go of its transaction."""

    name: str = "prefetch, candidates change"
    kind: str = "prefetch"
    can_freeze: bool = True
    template: str = "kills_prefetch"

    def make_template(self) -> None:
        databases.copy(databases.BASE, self.template)
        databases.use(self.template)
        environment, model = make_environment("production"), make_model("double")
        for number in range(1, RELEASES + 1):
            files = [
                {"path": f"artifact/{size}", "role": "artifact", "sha256": _sha256(number, size), "size_bytes": size}
                for size in SIZES
            ]
            resealed(make_release(model), files=files)
        stable = Release.objects.get(number=1)
        set_route(actor=PEOPLE, environment=environment, model=model, stable=stable, reason="It serves.")
        databases.use("postgres")

    def play(self, folder: Path, at: Point | None) -> Played:
        return Fetching(self, folder, at).play()


@dataclass
class Fetching(Stage):
    victim: PrefetchVictim
    folder: Path
    at: Point | None
    agents: list[Child] = field(default_factory=list)
    is_thawed: bool = False

    @property
    def template(self) -> str:
        return self.victim.template

    def tell(self) -> None:
        (self.place / "servers").mkdir()
        self._start()
        route = Route.objects.select_related("environment", "model", "stable").get()
        for number in range(2, RELEASES + 1):
            set_route(
                actor=PEOPLE,
                environment=route.environment,
                model=route.model,
                stable=route.stable,
                candidate=Release.objects.get(number=number),
                candidate_bp=100,
                reason="It is time.",
            )
            self._until_ready({1, number})
        first = self.agents[0]
        self.played.was_reached = self.at is None or first.was_killed or self.is_thawed
        self.played.trace = sites_in(self.place / "first")
        self.played.history = {"copies": sorted(one.name for one in self._copies()), "ready": sorted(self._told())}

    def _start(self) -> None:
        at, name = (None, "later") if self.agents else (self.at, "first")
        self.agents.append(self.begin(fork("agent", lambda: agent(self.place / name, at, self.place), self.log)))

    def _until_ready(self, wanted: set[int]) -> None:
        """The node has told of exactly these that all is there, and it is; nothing half fetched is left."""
        until = time.monotonic() + LONGEST_S
        while True:
            one = self.agents[-1]
            if one.is_over:
                assert one.was_killed and len(self.agents) == 1, "the agent ended by itself"
                self._look()
                self._start()
            elif one.is_frozen:
                time.sleep(2 * LET_GO_S)  # the database has let go of what it held, if anything
                self._look()
                self.is_thawed = True
                one.thaw()
            elif self._told() == wanted and not list((self.place / "cache" / "incoming").glob("*")):
                self._look()
                return
            assert time.monotonic() < until, (
                f"ready are {self._told()}, not {wanted}: {list(Prefetch.objects.values())}"
            )
            time.sleep(LOOK_S)

    def _look(self) -> None:
        """While nobody writes: every copy is what its name says, and what was told to be there is."""
        right = {one.name for one in self._copies() if hashlib.sha256(one.read_bytes()).hexdigest() == one.name}
        wrong = [f"the copy {one.name} is not what its name says" for one in self._copies() if one.name not in right]
        for number in self._told():
            if missing := {_sha256(number, size) for size in SIZES} - right:
                wrong.append(f"r{number} was told to be ready, and {missing} are not there")
        self.played.problems += [one for one in wrong if one not in self.played.problems]

    def _copies(self) -> list[Path]:
        return list((self.place / "cache").glob("??/*"))

    def _told(self) -> set[int]:
        """The numbers of the releases that the node says are there."""
        ready = Prefetch.objects.filter(node="a", standing=FilesStanding.READY)
        return set(ready.values_list("release__number", flat=True))


def _sha256(release: int, size: int) -> str:
    return hashlib.sha256(bytes_of(release, size)).hexdigest()


PREFETCHES = [PrefetchVictim()]
