"""One telling of a story: an engine process that may die at a point, the one that takes over, and everybody around them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.core.management import call_command, load_command_class
from django.utils import timezone

from ledger.models import Lease
from rollouts.models import Rollout
from serving.models import Gateway, Replica
from tests.kills import checks, databases, gateway
from tests.kills.campaign import Played
from tests.kills.points import Point, Points, late_in, sites_in
from tests.kills.process import Child, fork
from tests.kills.stage import Stage
from tests.kills.stories import BUSY, Scene, Story, serve

TICK_S, LEASE_S = 0.05, 1.0
LONGEST_S = 120.0
#: How often agent, people and this test look.
LOOK_S = 0.02
#: The time that the last engine gets to do something that it should not, once all is over.
AFTERMATH_S = 0.12
#: An engine with torn transactions ends a rollout in several of them, and a busy machine lets time pass in between.
TORN_AFTERMATH_S = 1.0


def engine(trace: Path, at: Point | None, *, is_torn: bool = False) -> None:
    """`manage.py engine` in this process, at the pace of a test."""
    from rollouts.engine.timings import EngineTimings
    from rollouts.management.commands.engine import Command

    Points(str(trace), at, torn_after="" if is_torn else None).watch()
    settings.ENGINE_TICK_S, settings.ENGINE_LEASE_S = TICK_S, LEASE_S
    Command.timings = EngineTimings(early_s=0.02, gone_over_s=0.0, sweep_every_s=0.1)
    call_command("engine")


@dataclass(frozen=True)
class EngineVictim:
    """The engine in one story of a rollout."""

    story: Story
    is_torn: bool = False
    kind: str = "engine"
    can_freeze: bool = True

    @property
    def name(self) -> str:
        return f"engine, {self.story.name}"

    @property
    def template(self) -> str:
        return f"kills_{self.story.name.replace(' ', '_')}"

    def make_template(self) -> None:
        load_command_class("rollouts", "engine")  # imports it once, for all runs
        databases.copy(databases.BASE, self.template)
        databases.use(self.template)
        self.story.seed()
        databases.use("postgres")

    def play(self, folder: Path, at: Point | None) -> Played:
        return Telling(self.story, self.template, folder, at, is_torn=self.is_torn).play()


@dataclass
class Telling(Stage):
    """A story in a database of its own."""

    story: Story
    template: str
    folder: Path
    at: Point | None
    database: str = ""
    is_there: Callable[[Rollout], bool] | None = None  # when to stop; else the story says so
    is_torn: bool = False
    lines_when_frozen: int | None = None

    def tell(self) -> None:
        self.gateway = self.gateway_started()
        self.begin(self.gateway.process)
        Gateway.objects.update(admin_url=self.gateway.admin_url)
        Rollout.objects.update(started_at=timezone.now())  # the template may be old
        self.gateway.told(arms={str(Rollout.objects.get().candidate.digest): self.story.candidate})
        first = self._start_engine("first", self.engine_dies_at)
        self._until_the_end(first)
        time.sleep(TORN_AFTERMATH_S if self.is_torn else AFTERMATH_S)
        self.played.trace = sites_in(self.place / "first")
        if self.lines_when_frozen is not None:
            late = late_in(self._lines(), self.lines_when_frozen, self.at)
            # In its turn it may lead again; what it writes before that is wrong.
            unlawful = itertools.takewhile(lambda site: "leases.acquire" not in site, late)
            self.played.problems += [f"the frozen engine wrote later: {site}" for site in unlawful]
        self._check()

    def gateway_started(self) -> gateway.RunningGateway:
        return gateway.start(self.log, rate=self.story.rate)

    @property
    def engine_dies_at(self) -> Point | None:
        return self.at

    def tend(self) -> None:
        """What else is done all the time while the story goes on."""

    def _start_engine(self, name: str, at: Point | None) -> Child:
        return self.begin(fork(name, lambda: engine(self.place / name, at, is_torn=self.is_torn), self.log))

    def _until_the_end(self, first: Child) -> None:
        """Plays the agent and the people until the rollout is over; a second engine starts when the first is out of it."""
        scene: Scene | None = None
        second: Child | None = None
        died_at, fence = 0.0, 0
        until = time.monotonic() + LONGEST_S
        while True:
            rollout = Rollout.objects.get()
            if rollout.fence < fence:
                self.played.problems.append(f"token {rollout.fence} wrote after token {fence}")
            fence = rollout.fence
            scene = scene or Scene(self.gateway, rollout)
            scene.rollout = rollout
            if second is None and (first.is_over or first.is_frozen):
                died_at = time.monotonic()
                second = self._start_engine("second", None)
            if second and self.played.takeover_s is None and _leads(second):
                self.played.takeover_s = time.monotonic() - died_at
            is_led = not first.is_frozen or self.played.takeover_s is not None
            if (self.is_there or self.story.is_over)(rollout) and is_led:
                break
            if first.is_frozen and self.played.takeover_s is not None and fence == self._token():
                self._thaw(first)
            if self.story.has_agent and not self.story.is_ready:
                _serve_what_is_asked_for()
            self.story.meanwhile(scene)
            self.tend()
            if time.monotonic() > until:
                raise AssertionError(f"still {rollout.state} after {LONGEST_S:g} s: {rollout.reason}")
            time.sleep(LOOK_S)
        self.played.was_reached = self.at is None or second is not None
        if self.engine_dies_at is None and second is not None:
            raise AssertionError("the engine died by itself")
        if first.is_frozen and self.played.takeover_s is not None:  # else it may lead on, as nobody else does
            self._thaw(first)

    def _token(self) -> int:
        return Lease.objects.get(name="engine").token

    def _thaw(self, first: Child) -> None:
        """The frozen engine goes on, long after another has led, believing that it leads."""
        self.lines_when_frozen = len(self._lines())
        first.thaw()

    def _lines(self) -> list[str]:
        return (self.place / "first").read_text().splitlines()

    def _check(self) -> None:
        truth, rollout = self.gateway.truth(), Rollout.objects.get()
        self.played.history = checks.history()
        self.played.problems += checks.broken_rules()
        self.played.problems += checks.users_harmed(truth)
        is_shared = self.lines_when_frozen is not None  # what the other engine read at the end is nobody's
        most_before = truth["user_requests"] if is_shared else 4 * self.story.rate + 400
        by_reading = truth["user_requests"] if is_shared else BUSY
        self.played.problems += checks.miscounted(truth, rollout, most_before=most_before, by_reading=by_reading)
        if rollout.state != self.story.ends:
            self.played.problems.append(f"it ended {rollout.state}, not {self.story.ends}: {rollout.reason}")


def _leads(child: Child) -> bool:
    lease = Lease.objects.filter(name="engine").first()
    return lease is not None and f":{child.pid}:" in lease.owner


def _serve_what_is_asked_for() -> None:
    for replica in Replica.objects.filter(state="fetching", is_wanted=True):
        serve(replica)
