"""Agents killed at their writes while replicas come, go and move: as many answer as are wanted, and no server runs unknown."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from django.utils import timezone

from registry.models import Release
from registry.queries import manifest_of
from serving.models import Environment, Node, Replica
from serving.ports import LaunchSpec
from serving.targets.actions.lifecycle import mark_serving, record_server, register_node
from serving.targets.agent import node_agent
from serving.targets.agent.timings import AgentTimings
from serving.targets.core.placement import Claim
from tests.kills import databases, fleet_checks
from tests.kills.campaign import Played
from tests.kills.fleet_checks import Seen
from tests.kills.fleet_stories import MIB, PEOPLE, SPARE_MIB, STORIES, Chapter, FleetStory, scaled, silent
from tests.kills.machine import Machine
from tests.kills.points import Point, Points, sites_in
from tests.kills.process import Child, fork
from tests.kills.stage import Stage

#: It comes right in seconds, but agents share a busy machine. What is torn often never does, and is not waited for as long.
LONGEST_S, LONGEST_TORN_S, LOOK_S = 240.0, 60.0, 0.02
#: A frozen one's transaction is ended by then: before the others count as having done what they can.
LET_GO_S = 0.8
PACE = AgentTimings(
    probe_every=0.05,
    follow=0.05,
    drain=0.05,
    stop_grace=0.05,
    backoff=(0.0, 0.05),
    hung_after=60,
    hung_after_last_stable=60,
)
#: The victim looks more often than the others, so that it is mostly the one who places.
BEAT_S, OTHERS_BEAT_S = 0.03, 0.25
#: While the victim is frozen nothing has changed for so long: the others have done what they can.
QUIET_S = 1.5
#: The agent's steady writes. Their first few are points, since it writes them for as long as it lives.
PULSE = ("register_node", "record_probe", "record_memory", "record_gpus")
MOST_OF_A_PULSE = 2


def agent(machine: Machine, points: Points | None, *, let_go_s: float | None) -> None:
    """`manage.py agent` in this process, at the pace of a test. Only the victim has `points`."""
    if points is not None:
        points.watch()
    if let_go_s is not None:
        databases.let_go_after(let_go_s)
    node_agent.LOOK_EVERY_S, node_agent.BEAT_EVERY_S = 0.03, BEAT_S if points else OTHERS_BEAT_S
    node_agent.facts = machine.facts
    node_agent.Agent(
        node=machine.name,
        servers=machine.servers,
        launcher=machine,
        connect=machine.connect,
        pace=PACE,
    ).run()


@dataclass(frozen=True)
class AgentVictim:
    """The agent of one node in one story. It is started again when it dies, as by a supervisor; while it is frozen its node is lost."""

    story: FleetStory
    is_torn: bool = False
    kind: str = "agent"

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.story.name}"

    @property
    def can_freeze(self) -> bool:
        return self.story.can_freeze

    @property
    def template(self) -> str:
        return f"kills_{self.name.replace(', ', '_').replace(' ', '_')}"

    def make_template(self) -> None:
        databases.copy(databases.BASE, self.template)
        databases.use(self.template)
        self.story.seed()
        databases.use("postgres")

    def play(self, folder: Path, at: Point | None) -> Played:
        return Tended(self, folder, at).play()


@dataclass
class Tended(Stage):
    """A story with an agent for each node in a process of its own."""

    victim: AgentVictim
    folder: Path
    at: Point | None
    agents: dict[str, list[Child]] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    stood: dict[int, int] = field(default_factory=dict)  # replicas of the beginning and their versions
    least: int = 0  # answer at every moment
    is_thawed: bool = False
    is_hurt: bool = False  # a node was lost that the story does not lose
    last_seen: Sequence[Seen] = ()
    quiet_since: float = 0.0

    @property
    def template(self) -> str:
        return self.victim.template

    def tell(self) -> None:
        self._set_up()
        self._go_through(self.victim.story.chapters)
        self._check()

    # -- what stories do ---------------------------------------------------------------------------------------------

    def cut_off(self, node: str) -> None:
        self.agents[node][-1].kill()
        self.away |= {node}

    def back(self, node: str) -> None:
        self.away -= {node}
        self._start(node)

    # -- how it goes on -----------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        """Everybody who is there from the beginning was heard of."""
        story = self.victim.story
        self.machines = {
            name: Machine(name, self.place / name, story.fits * MIB + SPARE_MIB[name]) for name in story.nodes
        }
        for machine in self.machines.values():
            machine.servers.mkdir()
        self._stand()
        self.away = frozenset(story.joins)
        for node in self.machines.keys() - self.away:
            self._start(node)
        self.least = len(self.stood)
        self._until(self._all_are_there)

    def _go_through(self, chapters: Iterable[Chapter]) -> None:
        for chapter in chapters:
            self.least = chapter.least
            chapter.act(self)
            self._until(partial(self._why_not, chapter.wanted))

    def _all_are_there(self, _: Sequence[Seen]) -> str:
        missing = self.machines.keys() - self.away - set(Node.objects.values_list("name", flat=True))
        return f"nothing was heard of {missing}" if missing else ""

    def _why_not(self, wanted: int, seen: Sequence[Seen]) -> str:
        return fleet_checks.unsettled(seen, self.machines.values(), wanted, self.away)

    def _start(self, node: str) -> None:
        story, mine, machine = self.victim.story, self.agents.setdefault(node, []), self.machines[node]
        earlier = node in story.late  # an agent that lived before the victim
        is_victim, is_first = node == story.victim and len(mine) >= earlier, len(mine) == earlier
        at = self.at if is_first else None
        trace = str(self.place / ("first" if is_first else f"agent {node} {len(mine)}"))
        points = self._watched(trace, at) if is_victim else None
        let_go_s = LET_GO_S if is_victim and at is not None and at.is_freeze else None
        work = partial(agent, machine, points, let_go_s=let_go_s)
        mine.append(self.begin(fork(f"agent {node}", work, self.log)))

    def _watched(self, trace: str, at: Point | None) -> Points:
        return Points(trace, at, torn_after="UPDATE serving_deployment" if self.victim.is_torn else None)

    def _stand(self) -> None:
        """What earlier agents had brought about."""
        release, where = Release.objects.get(), Environment.objects.get()
        for ordinal, node in enumerate(self.victim.story.stand):
            machine = self.machines[node]
            register_node(actor=PEOPLE, name=node, runtimes=machine.runtimes(), facts=machine.facts())
            row = Replica.objects.create(
                release=release,
                environment=where,
                node_id=node,
                ordinal=ordinal,
                state="ready",
                claim=Claim(MIB).as_json(),
                ready_at=timezone.now(),
            )
            folder = machine.folder_for(row.pk, release.model.slug, release.name)
            its = (release.model.slug, release.name, str(release.digest), manifest_of(release), folder)
            running = machine.start(LaunchSpec(row.pk, *its))
            server = record_server(actor=PEOPLE, replica=row, running=running)
            mark_serving(actor=PEOPLE, server=server, is_serving=True, reason="It answers.")
            self.stood[row.pk] = row.version
        if self.stood:
            scaled(len(self.stood))(self)

    def _until(self, is_there: Callable[[Sequence[Seen]], str]) -> None:
        """Looks on until it is so, and starts the agent that died again."""
        longest_s = LONGEST_TORN_S if self.victim.is_torn else LONGEST_S
        until = time.monotonic() + longest_s
        while True:
            self._tend()
            seen = fleet_checks.look()
            wrong = fleet_checks.wrong_now(
                seen, self.machines.values(), min(self.least, 1) if self.is_hurt else self.least
            )
            self.played.problems += [one for one in wrong if one not in self.played.problems]
            why = is_there(seen)
            if not why and not self._is_frozen:
                return
            if self._is_frozen:
                self._wait_frozen(seen)
            if time.monotonic() > until:
                raise AssertionError(f"after {longest_s:g} s: {why}")
            time.sleep(LOOK_S)

    @property
    def _first(self) -> Child | None:
        """The victim, once it was started."""
        mine = self.agents.get(self.victim.story.victim, [])
        earlier = self.victim.story.victim in self.victim.story.late
        return mine[earlier] if len(mine) > earlier else None

    @property
    def _is_frozen(self) -> bool:
        return self._first is not None and not self.is_thawed and self._first.is_frozen

    def _tend(self) -> None:
        for node, mine in self.agents.items():
            if node not in self.away and mine[-1].is_over:
                assert mine[-1].was_killed and mine[-1] is self._first, f"the agent of {node} ended by itself"
                self._start(node)

    def _wait_frozen(self, seen: Sequence[Seen]) -> None:
        """Its node is lost, until the others have done what they can; then it goes on, as if nothing had been."""
        self.is_hurt = True
        first = self._first
        assert first is not None
        silent(self.victim.story.victim)
        if seen != self.last_seen:
            self.last_seen, self.quiet_since = seen, time.monotonic()
        elif time.monotonic() - self.quiet_since > QUIET_S:
            self.is_thawed = True
            first.thaw()

    def _check(self) -> None:
        first = self._first
        assert first is not None
        self.played.was_reached = self.at is None or self.is_thawed or first.was_killed
        self.played.trace = without_pulse(sites_in(self.place / "first"))
        self.played.problems += fleet_checks.broken_lives(self.stood)
        if not self.is_thawed:  # else others took over what it had
            placed = fleet_checks.placed(fleet_checks.look())
            self.played.history = {"placed": placed, "told": fleet_checks.told_of()}


def without_pulse(sites: list[str]) -> list[str]:
    """The sites without the later ones of each steady write."""
    return first_of_each(sites, MOST_OF_A_PULSE, lambda site: any(f".{name}" in site for name in PULSE))


def first_of_each(sites: list[str], most: int, is_counted: Callable[[str], bool] = lambda site: True) -> list[str]:
    """The first so many of each site that is counted, and all others."""
    kept, seen = [], Counter[str]()
    for site in sites:
        seen[site] += is_counted(site)
        if seen[site] <= most:
            kept.append(site)
    return kept


AGENTS = [AgentVictim(story) for story in STORIES]
