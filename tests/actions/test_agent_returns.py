"""What is left where an agent dies or stands still: the next one takes it over, and ends nothing that is another's."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import InternalError

from ledger.models import Event
from registry.models import Release
from serving import wiring
from serving.models import Environment, ListedServer, Server
from serving.targets import actions, queries
from serving.targets.agent import node_agent
from serving.targets.agent.node_agent import Agent
from tests.support.worlds.replica_setup import (  # noqa: F401
    SYSTEM,
    S,
    World,
    clock,
    model,
    node,
    release,
    staging,
    world,
)

pytestmark = pytest.mark.django_db


def test_an_agent_outlives_an_idle_transaction_that_the_database_ended(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its machine stood still: the driver calls that an internal error."""
    agent = Agent(node="local", servers=tmp_path, launcher=world.launcher, connect=world.launcher.connect)
    tries: list[int] = []

    def introduce() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise InternalError("terminating connection due to idle-in-transaction timeout")
        agent.stop()

    monkeypatch.setattr(agent, "_introduce", introduce)
    monkeypatch.setattr(agent, "_dispatch", lambda: None)
    monkeypatch.setattr(node_agent, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(node_agent, "connection", SimpleNamespace(close=lambda: None))
    agent.run()
    assert len(tries) == 2


def test_what_could_not_be_stopped_is_tried_again_with_each_heartbeat(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, tries = Agent(node="local", servers=tmp_path, launcher=world.launcher, connect=world.launcher.connect), []
    monkeypatch.setattr(world.launcher, "stop_left", lambda: tries.append(1))
    agent._introduce()
    agent._introduce()
    assert len(tries) == 2


def test_agents_of_one_machine_sweep_nothing_of_each_other(tmp_path: Path, settings: Any) -> None:
    settings.STATE_DIR = tmp_path
    local = wiring.blob_cache()
    half_fetched = local.folder / "incoming" / "half"
    half_fetched.parent.mkdir(parents=True)
    half_fetched.touch()
    others = []
    for name in ("one", "other"):
        others.append(wiring.blob_cache(ListedServer(node_id=name)))
        others[-1].sweep()
    assert half_fetched.exists() and len({one.folder for one in (local, *others)}) == 3


def test_the_next_agent_adopts_a_living_server(world: World, release: Release, staging: Environment) -> None:
    world.until(S.READY)
    before = queries.ready_server(release, staging)
    world.reconciler = world.new_reconciler()  # the agent was killed and came back
    world.reconciler.step()
    assert world.state == S.READY and queries.ready_server(release, staging) == before
    assert len(world.launcher.started) == 1
    assert Event.objects.filter(verb="server.adopted").count() == 1


def test_a_server_that_answers_again_gets_traffic_again(world: World, release: Release, staging: Environment) -> None:
    world.until(S.READY)
    server = Server.objects.get()
    actions.mark_serving(actor=SYSTEM, server=server, is_serving=False, reason="It was slow.")
    world.step()
    assert queries.ready_server(release, staging) == server
    assert [event.verb for event in Event.objects.filter(subject_type="server").order_by("seq")] == [
        "server.started",
        "server.lost",
        "server.recovered",
    ]
    world.step()
    assert Event.objects.filter(verb="server.recovered").count() == 1


def test_the_next_agent_replaces_a_server_that_died_meanwhile(world: World) -> None:
    world.until(S.READY)
    world.server.is_down = True
    world.reconciler = world.new_reconciler()
    world.step()
    assert world.state == S.LOADING and "gone when the agent came back" in world.row.reason
    world.until(S.READY)
    assert len(world.launcher.started) == 2


def test_the_next_agent_starts_an_unfinished_launch_again(world: World) -> None:
    """Killed between the server's start and its load: the row says loading, and a server is there."""
    world.behaviour.load_error = "not yet"
    replica = queries.live_replicas().get(pk=world.row.pk)
    world.reconciler._begin(replica)
    assert world.state == S.LOADING and len(world.launcher.running) == 1
    world.behaviour.load_error = ""
    world.reconciler = world.new_reconciler()
    world.until(S.READY)
    assert len(world.launcher.running) == 1 and len(world.launcher.started) == 2
