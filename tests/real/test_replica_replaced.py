"""A candidate's bad replica in a rollout, on a real Envoy and with real agents: held for, set aside, and replaced by another node's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from accounts.core.access import Actor
from ledger.queries.clock import DatabaseClock
from registry.models import Release
from rollouts import actions
from rollouts.core.rules import replica_differs, stable_replica
from rollouts.engine import loop, stable_replicas
from rollouts.engine.loop import Engine
from rollouts.engine.timings import EngineTimings
from rollouts.models import DecisionRecord
from serving.environments.queries.inventory import answering_servers
from serving.models import Gateway, Replica, ReplicaTarget
from serving.ports import LaunchSpec, RunningServer
from serving.targets.actions.lifecycle import ensure_replica
from serving.targets.agent import node_agent
from serving.targets.agent.node_agent import Agent
from serving.targets.agent.timings import AgentTimings
from serving.traffic.actions.routes import set_route
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.adapters.envoy_hosts import EnvoyHosts
from serving.traffic.control_plane import store
from serving.traffic.core.routes import RoutingTable, admit
from tests.contracts.serving_models import serving
from tests.support.fakes.ports import FakeLauncher, FakeModel
from tests.support.rigs.engine_rig import ROOM, _no_waiting, hear_everyone  # noqa: F401 - one moment with failures is proof
from tests.support.rigs.gateway_rig import MODEL, Rig, rig
from tests.support.servers.stub_server import Backend
from tests.support.worlds.factories import RUNTIME, make_admin, make_environment, make_model, make_release, resealed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.real("envoy"), pytest.mark.timeout(600)]
SYSTEM = Actor.system("test")
POLICY = {
    "preset": "demo",
    "second_look": {"looks": 1},
    "cold_s": 0,
    "steps": [{"weight_pct": 50, "min_s": 0, "min_samples": 100_000, "deadline_s": 100_000}],
    "prepare_deadline_s": 100_000,
    "no_data_s": 600,
    "instant_window_s": 0,
}
#: Turns are taken for so long, however many that are: agents look by the clock.
WITHIN_S = 150.0
#: Users' requests of a turn, and how many of them the bad replica fails: as many in each, so that nothing looks like a clump.
REQUESTS, FAILURES = 60, 4


class Seconds(DatabaseClock):
    """A clock by which at least a second passes between two turns, however fast they are made: failures of one second are one clump."""

    turns = 0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.turns)


class Stubs(FakeLauncher):
    """A node's launcher. Its servers answer the agent's probes as they should, and users as each backend is told to."""

    def __init__(self, parts: Rig, name: str) -> None:
        runtime = {"image": RUNTIME, "server": "triton", "backends": ["sluicegate-onnx"], "versions": {}}
        super().__init__([runtime], lambda spec: FakeModel(spec.manifest["serving"], lambda arrays: {"y": arrays["x"]}))
        self.parts, self.name, self.backends = parts, name, dict[Path, Backend]()

    def start(self, spec: LaunchSpec) -> RunningServer:
        made = super().start(spec)
        one = self.backends[spec.folder] = Backend(self.parts.loop, f"{spec.release_name} on {self.name}").start()
        running = replace(made, http_port=one.http_port, grpc_port=one.grpc_port)
        self.running[spec.folder] = running, self.running[spec.folder][1]
        return running

    def stop(self, server: RunningServer, *, grace_s: float) -> None:
        if one := self.backends.get(server.folder):
            one.stop()
        super().stop(server, grace_s=grace_s)

    def end(self) -> None:
        for one in self.backends.values():
            one.stop()


class Site:
    """One model on three nodes, each with an agent, behind one gateway; a rollout whose turns are taken one by one."""

    def __init__(
        self,
        parts: Rig,
        agents: dict[str, Stubs],
        *,
        replicas: tuple[int, int] = (1, 2),
        max_frac: float = 0.01,
        **policy: object,
    ) -> None:
        """`replicas`: of stable and of the candidate."""
        self.parts, self.agents, self.clock = parts, agents, Seconds()
        self.last: RoutingTable | None = None
        self.model = make_model(MODEL, objectives={"errors_max_frac": max_frac}, rollout_policy={**POLICY, **policy})
        self.environment = make_environment("production", needs_passed_report=False)
        Gateway.objects.create(
            environment=self.environment, name="gateway-1", admin_url=parts.envoy.admin_url,
            http_url=f"http://127.0.0.1:{parts.envoy.port}", grpc_address=f"127.0.0.1:{parts.envoy.port}",
        )  # fmt: skip
        self.stable, self.candidate = (resealed(make_release(self.model), serving=serving()) for _ in range(2))
        for release, many in zip((self.stable, self.candidate), replicas, strict=True):
            ReplicaTarget.objects.create(release=release, environment=self.environment, replicas=many)
            ensure_replica(actor=SYSTEM, release=release, environment=self.environment, reason="It serves.")
            self.wait_for(lambda one=release, n=many: len(self.answering(one)) == n, f"{release.name} answers")
        set_route(actor=SYSTEM, environment=self.environment, model=self.model, stable=self.stable, reason="It serves.")
        self.obey()
        self.rollout = actions.start_rollout(actor=make_admin(), candidate=self.candidate, environment=self.environment)
        self.engine = hear_everyone(
            Engine(
                EnvoyCounters(now=self.clock.now),
                clock=self.clock,
                hosts=EnvoyHosts(),
                tick_s=0.05,
                lease_s=600,
                timings=EngineTimings(zero_poll_for_s=0.0, gone_over_s=0.0, effects_share=ROOM),
            )
        )

    def answering(self, release: Release) -> list[Replica]:
        """By ordinal."""
        found = [one.replica for one in answering_servers().filter(replica__release=release)]
        return sorted(found, key=lambda one: one.ordinal)

    def backend_of(self, replica: Replica) -> Backend:
        (folder,) = replica.servers.filter(ended_at=None).values_list("folder", flat=True)
        return self.agents[str(replica.node_id)].backends[Path(folder)]

    def obey(self) -> None:
        """The gateway takes what was written, and its word is written down, as the control plane does."""
        loaded = store.load()
        table = admit(loaded.tables["production"], self.last, loaded.known["production"]).table
        gateway = Gateway.objects.get().pk
        if self.last is None or table != self.last:
            self.last = table
            self.parts.loop.loop.call_soon_threadsafe(self.parts.plane.publish, table)
            (route,) = table.models
            self.wait_for(lambda: self.parts.acked(route.generation) is not None, f"generation {route.generation}")
            self.wait_for(self.parts.envoy.is_open, "the gateway's port")
            store.write_acks([store.AckRow(gateway, route.route_id, route.generation, "", self.clock.now())])
        last = self.last
        self.wait_for(lambda: self.parts.plane.is_followed(last), "the gateway follows")
        store.write_follows({gateway: loaded.read_at["production"]})

    def turn(self, *, fails: Sequence[tuple[Backend, int]] = ()) -> None:
        """Users' requests, of which each of `fails` fails a few; a tick of the engine; and the gateway follows."""
        until = [(one, one.hits + few) for one, few in fails]
        for _ in range(REQUESTS):
            failing = next((one for one, hits in until if one.hits < hits), None)
            for one, _ in until:
                one.mode = "error" if one is failing else "ok"  # one at a time, so that a second attempt meets none
            assert self.parts.envoy.http().status == 200  # a failed first attempt is answered by stable
        self.parts.envoy.flushed()
        self.clock.turns += 1
        store.write_seen([Gateway.objects.get().pk], self.clock.now())
        self.engine.step()
        self.obey()
        self.rollout.refresh_from_db()

    def until(self, is_so: Callable[[], bool], what: str, *, fails: Sequence[tuple[Backend, int]] = ()) -> None:
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            if is_so():
                return
            self.turn(fails=fails)
        told = [(one.action, one.code, one.reason) for one in DecisionRecord.objects.order_by("pk")]
        raise AssertionError(f"not: {what}. {self.rollout.state}: {self.rollout.reason} {told}")

    @staticmethod
    def wait_for(is_so: Callable[[], bool], what: str) -> None:
        never = threading.Event()
        for _ in range(12_000):
            if is_so():
                return
            never.wait(0.01)
        raise AssertionError(f"not: {what}")

    def codes(self) -> list[str]:
        return list(DecisionRecord.objects.filter(rollout=self.rollout).order_by("pk").values_list("code", flat=True))


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Rig, dict[str, Stubs]]]:
    """A gateway, and three nodes, each with an agent."""
    for rule in (replica_differs, stable_replica):  # nothing is in flight between two turns
        monkeypatch.setattr(rule, "SETTLES_S", 0.0)
    monkeypatch.setattr(loop, "WAIT_S", 60.0)  # a busy machine is given time to tell
    monkeypatch.setattr(stable_replicas, "WAIT_S", 60.0)
    monkeypatch.setattr(node_agent, "BEAT_EVERY_S", 0.2)
    monkeypatch.setattr(node_agent, "LOOK_EVERY_S", 0.05)
    with ExitStack() as held:
        parts = held.enter_context(rig(tmp_path))
        agents = {}
        for name in "abc":
            launcher = agents[name] = Stubs(parts, name)
            agent = Agent(
                node=name, servers=tmp_path / name, launcher=launcher, connect=launcher.connect,
                pace=AgentTimings(probe_every=0.2, drain=0.5, stop_grace=0.0),
            )  # fmt: skip
            running = threading.Thread(target=agent.run)
            held.callback(launcher.end)
            held.callback(running.join, 60)
            held.callback(agent.stop)
            running.start()
        yield parts, agents


@pytest.fixture
def site(nodes: tuple[Rig, dict[str, Stubs]]) -> Site:
    return Site(*nodes)


def test_the_rollout_holds_the_replica_is_set_aside_and_another_takes_its_place(site: Site) -> None:
    good, bad = site.answering(site.candidate)
    backend = site.backend_of(bad)
    ended = {"replica_differs", "worse_than_stable", "objective_breached"}
    site.until(lambda: bool(ended & {*site.codes()}), "it is told", fails=[(backend, FAILURES)])

    assert "replica_differs" in site.codes(), site.rollout.reason
    decided = DecisionRecord.objects.get(rollout=site.rollout, code="replica_differs")
    assert decided.action == "hold" and site.rollout.state == "shifting" and site.rollout.weight_bp == 5000
    assert decided.facts["odd_replica"]["replica"] == f"{bad.node_id}:{backend.http_port}"
    assert decided.facts["odd_replica"]["others"][0] == 0
    bad.refresh_from_db()
    assert bad.is_set_aside
    backend.mode = "error"  # should anybody still ask it
    asked = backend.hits
    site.turn()
    assert backend.hits == asked

    site.until(lambda: len(site.answering(site.candidate)) == 2, "another answers in its place")
    (other,) = (one for one in site.answering(site.candidate) if one.pk != good.pk)
    assert (other.ordinal, other.node_id != bad.node_id) == (bad.ordinal, True)
    site.until(lambda: site.backend_of(other).hits > 0, "users are answered by it")
    site.until(
        lambda: not site.rollout.reason.startswith("r2 waits") and "in the place of" not in site.rollout.reason, "on"
    )
    assert site.rollout.state == "shifting" and site.rollout.weight_bp == 5000 and backend.hits == asked
    assert site.codes().count("replica_differs") == 1 and not DecisionRecord.objects.filter(action="roll_back").exists()
    site.wait_for(lambda: Replica.objects.get(pk=bad.pk).state == "gone", "its agent lets the bad one go")
