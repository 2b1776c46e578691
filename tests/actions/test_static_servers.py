"""Servers that environments list: the right to list one, the releases that run there, their states, and their agents."""

from __future__ import annotations

import gc
import threading
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import Invalid, NotFound, Refused, StateChanged, Unavailable
from ledger.models import Event
from registry.models import Release
from serving import wiring
from serving.environments.actions.environments import change_environment
from serving.environments.queries.reporting import REPORTS_WITHIN
from serving.management.commands.agent import _agent_of
from serving.models import Environment, ListedServer, Node, Replica
from serving.ports import InferenceError
from serving.targets.actions.lifecycle import ensure_replica, register_node
from serving.targets.actions.static_servers import list_server, remove_server
from serving.targets.agent import listed_servers, node_agent
from serving.targets.agent.listed_servers import ListedServers
from serving.targets.agent.node_agent import Agent, facts
from serving.targets.queries.static_servers import servers_of
from tests.support.worlds.factories import (
    RUNTIME,
    make_actor,
    make_admin,
    make_environment,
    make_node,
    make_release,
    make_replica,
)

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent")
TOLD: list[dict[str, Any]] = [{"image": RUNTIME, "server": "triton", "backends": ["sluicegate-onnx"], "versions": {}}]


@pytest.fixture
def production() -> Environment:
    return make_environment("production", platform="static")


def listed(environment: Environment, name: str = "theirs", port: int = 8000, **over: Any) -> ListedServer:
    address = f"127.0.0.1:{port}:{port + 1}"
    said = {"actor": make_admin(), "name": name, "address": address, "runtime": RUNTIME, "loads": "request", **over}
    return list_server(environment=environment, **said)


def reached(name: str = "theirs", listed_at: datetime | None = None, **facts: Any) -> None:
    told = {"static": {"address": "127.0.0.1:8000:8001", "loads": "request"}, **facts}
    runtimes = [] if "missing" in facts else TOLD
    listed_at = listed_at or ListedServer.objects.get(pk=name).listed_at
    register_node(actor=AGENT, name=name, runtimes=runtimes, facts=told, listed_at=listed_at)


def deploy(release: Release, environment: Environment) -> Replica:
    return ensure_replica(actor=AGENT, release=release, environment=environment, reason="a test")


def state_of(environment: Environment, actor: Actor | None = None) -> tuple[str, str, tuple[str, ...]]:
    (view,) = servers_of(actor or make_admin(), environment)
    return view.state, view.says, view.releases


def test_a_release_runs_on_the_servers_of_its_environment_alone(production: Environment) -> None:
    staging = make_environment("staging")
    make_node("local")
    listed(production)
    reached()
    release = make_release()
    assert deploy(release, production).node_id == "theirs"
    assert deploy(release, staging).node_id == "local"
    with pytest.raises(Unavailable, match="it is one server, which serves one release of"):
        deploy(make_release(release.model), production)


def test_an_environment_without_a_server_takes_no_release(production: Environment) -> None:
    make_node("local")
    with pytest.raises(Unavailable) as caught:
        deploy(make_release(), production)
    assert caught.value.code == "no_node_for_runtime"
    assert (
        "production lists no server" in caught.value.message
        and "/environments/production/servers" in caught.value.message
    )


@pytest.mark.parametrize(
    ("over", "field"),
    [
        ({"name": "a/b"}, "name"),
        ({"name": "-a"}, "name"),
        ({"address": "127.0.0.1:8000"}, "address"),
        ({"address": "8.8.8.8:8000:8001"}, "address"),
        ({"address": "triton.example:8000:8001"}, "address"),
        ({"loads": "/etc"}, "loads"),
        ({"runtime": "triton:24.10"}, "runtime"),
        ({"kind": "a b"}, "kind"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(production: Environment, over: dict[str, str], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        listed(production, **over)
    assert [one["field"] for one in caught.value.facts["errors"]] == [field]
    assert not ListedServer.objects.exists() and not Node.objects.exists()


def test_a_name_and_an_address_are_of_one_server(production: Environment) -> None:
    make_node("local")
    listed(production)
    other = make_environment("canary", platform="static")
    for environment, name, port in (
        (production, "local", 9000),
        (other, "theirs", 9000),
        (other, "b", 8000),
        (other, "b", 7999),
    ):
        with pytest.raises(StateChanged) as caught:
            listed(environment, name, port)
        assert caught.value.code == "server_listed"
    assert ListedServer.objects.count() == 1
    make_replica()
    Node.objects.filter(name="local").update(removed_at=timezone.now())
    with pytest.raises(StateChanged, match="local is the name of another"):  # its replica is not gone
        listed(production, "local", 9000)


def test_each_server_has_a_model_repository_of_its_own(production: Environment, settings: Any) -> None:
    settings.STATIC_FOLDER = "/srv/models"
    listed(production, "a", 8000, loads="/srv/models/a")
    other = make_environment("canary", platform="static")
    for loads in ("/srv/models/a", "/srv/models/a/b"):
        with pytest.raises(StateChanged, match="a has the model repository /srv/models/a") as caught:
            listed(other, "b", 9000, loads=loads)
        assert caught.value.code == "server_listed"
    listed(other, "b", 9000, loads="/srv/models/ab")


def test_a_server_outside_of_todays_settings_is_left_alone(production: Environment, settings: Any) -> None:
    settings.PRIVATE_NETWORKS, settings.STATIC_FOLDER = ["10.20.0.0/16"], "/srv/models"
    listed(production, "a", address="10.20.0.7:8000:8001")
    listed(production, "b", 9000, loads="/srv/models/b")
    reached("a")
    made: list[str] = []
    tended = ListedServers(lambda server: made.append(server.node_id) or _Agent(server))  # type: ignore
    tended.look()
    assert made == ["a", "b"]
    settings.PRIVATE_NETWORKS, settings.STATIC_FOLDER = [], ""
    tended.look()
    assert not tended._agents and made == ["a", "b"]
    a, b = servers_of(make_admin(), production)
    assert a.state == b.state == "unusable"
    assert "SLUICEGATE_PRIVATE_NETWORKS" in a.says and "SLUICEGATE_STATIC_FOLDER, which is not set" in b.says


def test_only_an_administrator_lists_and_only_where_the_platform_is_static(production: Environment) -> None:
    with pytest.raises(Refused):
        listed(production, actor=make_actor())
    with pytest.raises(Invalid, match="PATCH /environments/staging platform=static"):
        listed(make_environment("staging"))
    listed(production)
    with pytest.raises(Refused):
        remove_server(actor=make_actor(), environment=production, name="theirs")


def test_a_server_is_removed_once_it_has_no_release_and_its_name_is_free_again(production: Environment) -> None:
    first = listed(production)
    reached()
    replica = deploy(make_release(), production)
    with pytest.raises(StateChanged, match="theirs has model-") as caught:
        remove_server(actor=make_admin(), environment=production, name="theirs")
    assert caught.value.code == "server_in_use"
    Replica.objects.filter(pk=replica.pk).update(state="gone", is_wanted=False)
    remove_server(actor=make_admin(), environment=production, name="theirs", reason="sold")
    with pytest.raises(NotFound):
        remove_server(actor=make_admin(), environment=production, name="theirs")
    assert servers_of(make_admin(), production) == []
    with pytest.raises(Refused) as refused:  # its agent may not know yet
        reached(listed_at=first.listed_at)
    assert refused.value.code == "server_not_listed" and Node.objects.get(name="theirs").removed_at is not None
    with pytest.raises(Unavailable):
        deploy(make_release(), production)
    listed(production, port=9000)
    with pytest.raises(Refused):  # the agent of the first address
        reached(listed_at=first.listed_at)
    assert state_of(production)[0] == "waiting"
    assert list(Event.objects.filter(subject_type="environment").values_list("verb", flat=True).order_by("seq")) == [
        "environment.server_listed", "environment.server_removed", "environment.server_listed",
    ]  # fmt: skip


def test_a_machine_does_not_report_as_a_listed_server(production: Environment) -> None:
    listed(production)
    with pytest.raises(Refused) as caught:
        register_node(actor=AGENT, name="theirs", runtimes=TOLD, facts={})
    assert caught.value.code == "server_listed" and Node.objects.get(name="theirs").seen_at is None


def test_the_platform_stays_while_something_is_there(production: Environment) -> None:
    def to(platform: str) -> Environment:
        production.refresh_from_db()
        return change_environment(
            actor=make_admin(),
            environment=production,
            expected_version=production.version,
            changes={"platform": platform},
        )

    with pytest.raises(Invalid, match="no platform"):
        to("cloud")
    listed(production)
    with pytest.raises(StateChanged) as caught:
        to("local")
    assert caught.value.code == "environment_in_use"
    remove_server(actor=make_admin(), environment=production, name="theirs")
    assert to("local").platform == "local"


def test_each_state_has_a_sentence_and_hides_what_the_reader_may_not_see(production: Environment) -> None:
    stranger = make_actor(team="ads")
    listed(production)
    assert state_of(production)[:2] == (
        "waiting",
        "No agent has looked at it yet. Start one if none runs: manage.py agent",
    )
    reached(missing="The server at 127.0.0.1:8000:8001 does not answer.")
    assert state_of(production)[:2] == ("unusable", "The server at 127.0.0.1:8000:8001 does not answer.")
    reached()
    assert state_of(production)[0] == "free"
    replica = deploy(make_release(), production)
    Replica.objects.update(state="loading", reason="not_ready: a secret word")
    name = f"{replica.release.model.slug} {replica.release.name}"
    assert state_of(production) == ("loading", "not_ready: a secret word", (name,))
    assert state_of(production, stranger) == ("loading", "A release is being loaded or taken out.", ())
    Replica.objects.update(state="ready")
    assert state_of(production)[0] == "serving" and state_of(production, stranger)[2] == ()
    Node.objects.update(seen_at=timezone.now() - timedelta(seconds=8))
    assert state_of(production)[0] == "silent"


class _Agent:
    def __init__(self, server: ListedServer) -> None:
        self.at, self.is_over = server.http_port, threading.Event()

    def run(self) -> None:
        self.is_over.wait(60)

    def stop(self) -> None:
        self.is_over.set()


def test_each_listed_server_has_one_agent_while_it_is_listed(production: Environment) -> None:
    made: list[_Agent] = []

    def make(server: ListedServer) -> Any:
        made.append(_Agent(server))
        return made[-1]

    def at() -> list[int]:
        tended.look()
        return [one.at for one in made if not one.is_over.is_set()]

    tended = ListedServers(make)
    assert at() == []
    listed(production, "a", 8000)
    listed(production, "b", 9000)
    assert at() == at() == [8000, 9000]
    remove_server(actor=make_admin(), environment=production, name="a")
    listed(production, "a", 7000)  # at another address
    assert at() == [9000, 7000] and len(made) == 3
    tended._end(list(tended._agents))
    assert all(one.is_over.is_set() for one in made)


class _Broken(_Agent):
    def run(self) -> None:
        raise ValueError("a bug")


def test_an_agent_that_ends_by_an_error_is_followed_by_another(
    production: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[_Agent] = []

    def make(server: ListedServer) -> Any:
        if server.node_id == "a" and len(made) < 3:
            made.append(_Agent(server))
            raise OSError("no space left")
        made.append((_Broken if len(made) < 2 else _Agent)(server))
        return made[-1]

    listed(production, "a", 8000)
    listed(production, "b", 9000)
    tended = ListedServers(make)
    tended.look()  # a gets none, and the agent of b ends
    for _, thread in tended._agents.values():
        thread.join(10)
    assert "a bug" in caplog.text and "a gets no agent" in caplog.text
    tended.look()
    tended.look()
    assert sorted(key[0] for key, (_, thread) in tended._agents.items() if thread.is_alive()) == ["a", "b"]
    tended._end(list(tended._agents))


def test_the_list_is_read_again_after_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tended, looks = ListedServers(lambda server: _Agent(server)), list[int]()  # type: ignore

    def look() -> None:
        looks.append(1)
        if len(looks) == 2:
            tended.stop()
        raise RuntimeError("a bug")

    monkeypatch.setattr(tended, "look", look)
    monkeypatch.setattr(listed_servers, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(listed_servers, "connection", SimpleNamespace(close=lambda: None))
    tended.run()
    assert len(looks) == 2


class _Asked:
    """Stands for the client of a server whose name has a NUL."""

    def __init__(self) -> None:
        self.asks = 0

    def get_server_metadata(self, **_: Any) -> Any:
        self.asks += 1
        return SimpleNamespace(name="tri\x00ton" + "n" * 200, version="2\x00", extensions=["model_configuration"])


def test_a_heartbeat_asks_the_server_once_and_stores_what_it_states(production: Environment, tmp_path: Path) -> None:
    server, client = listed(production, loads="nothing"), _Asked()
    launcher = wiring.static_launcher(server, wiring.blob_cache(server))
    launcher._control._client = client
    runtimes, told = launcher.runtimes(), facts(launcher)
    assert client.asks == 1 and "missing" not in told
    register_node(actor=AGENT, name="theirs", runtimes=runtimes, facts=told, listed_at=server.listed_at)
    assert Node.objects.get(name="theirs").runtimes[0]["server"] == "triton" + "n" * 94
    assert str(InferenceError("rejected", "un\x00known")) == "unknown"


def test_a_slow_server_is_reported_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now, beats = [0.0], list[float]()
    agent = Agent(node="a", servers=tmp_path, launcher=None, connect=None)  # type: ignore

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    def beat() -> None:
        pass_by(4.0)  # a look that ends by its time limit, and a second for what was left there
        beats.append(now[0])
        if len(beats) == 4:
            agent.stop()

    monkeypatch.setattr(node_agent, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for name, does in {"_beat": beat, "_sweep": lambda: None, "_dispatch": lambda: None}.items():
        monkeypatch.setattr(agent, name, does)
    monkeypatch.setattr(agent._stop, "wait", pass_by)
    agent._work()
    assert max(after - before for before, after in pairwise(beats)) < REPORTS_WITHIN.total_seconds() - 2


def test_copies_of_files_are_kept_where_the_agent_loads_them(production: Environment) -> None:
    assert _agent_of(listed(production, "a", 8000))._blobs is not None
    assert _agent_of(listed(production, "b", 9000, loads="nothing"))._blobs is None


def test_the_channel_to_a_server_closes_with_its_agent(production: Environment) -> None:
    agent, closed = _agent_of(listed(production)), list[int]()
    launcher: Any = agent._launcher
    client = launcher._control._client
    client._channel.close()
    client._channel = SimpleNamespace(close=lambda: closed.append(1))
    del agent, launcher, client
    gc.collect()
    assert closed == [1]
