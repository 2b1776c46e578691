"""Servers that environments list: the right to list one, the releases that run there, their states, and their agents."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import Invalid, NotFound, Refused, StateChanged, Unavailable
from ledger.models import Event
from registry.models import Release
from serving.actions.deployments import ensure_deployment, register_node
from serving.actions.environments import change_environment
from serving.actions.static_servers import list_server, remove_server
from serving.agent.listed_servers import ListedServers
from serving.models import Deployment, Environment, ListedServer, Node
from serving.queries.static_servers import servers_of
from tests.support.worlds.factories import RUNTIME, make_actor, make_admin, make_environment, make_node, make_release

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent")
TOLD: list[dict[str, Any]] = [{"image": RUNTIME, "server": "triton", "backends": ["onnxruntime"], "versions": {}}]


@pytest.fixture
def production() -> Environment:
    return make_environment("production", platform="static")


def listed(environment: Environment, name: str = "theirs", port: int = 8000, **over: Any) -> ListedServer:
    address = f"127.0.0.1:{port}:{port + 1}"
    said = {"actor": make_admin(), "name": name, "address": address, "runtime": RUNTIME, "loads": "request", **over}
    return list_server(environment=environment, **said)


def reached(name: str = "theirs", **facts: Any) -> None:
    told = {"static": {"address": "127.0.0.1:8000:8001", "loads": "request"}, **facts}
    runtimes = [] if "missing" in facts else TOLD
    register_node(actor=AGENT, name=name, runtimes=runtimes, facts=told, is_listed=True)


def deploy(release: Release, environment: Environment) -> Deployment:
    return ensure_deployment(actor=AGENT, release=release, environment=environment, reason="a test")


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


def test_only_an_administrator_lists_and_only_where_the_platform_is_static(production: Environment) -> None:
    with pytest.raises(Refused):
        listed(production, actor=make_actor())
    with pytest.raises(Invalid, match="PATCH /environments/staging platform=static"):
        listed(make_environment("staging"))
    listed(production)
    with pytest.raises(Refused):
        remove_server(actor=make_actor(), environment=production, name="theirs")


def test_a_server_is_removed_once_it_has_no_release_and_its_name_is_free_again(production: Environment) -> None:
    listed(production)
    reached()
    deployment = deploy(make_release(), production)
    with pytest.raises(StateChanged, match="theirs has model-") as caught:
        remove_server(actor=make_admin(), environment=production, name="theirs")
    assert caught.value.code == "server_in_use"
    Deployment.objects.filter(pk=deployment.pk).update(state="gone", is_wanted=False)
    remove_server(actor=make_admin(), environment=production, name="theirs", reason="sold")
    with pytest.raises(NotFound):
        remove_server(actor=make_admin(), environment=production, name="theirs")
    assert servers_of(make_admin(), production) == []
    with pytest.raises(Refused) as refused:  # its agent may not know yet
        reached()
    assert refused.value.code == "server_not_listed" and Node.objects.get(name="theirs").removed_at is not None
    with pytest.raises(Unavailable):
        deploy(make_release(), production)
    listed(production, port=9000)
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
    deployment = deploy(make_release(), production)
    Deployment.objects.update(state="loading", reason="not_ready: a secret word")
    name = f"{deployment.release.model.slug} {deployment.release.name}"
    assert state_of(production) == ("loading", "not_ready: a secret word", (name,))
    assert state_of(production, stranger) == ("loading", "A release is being loaded or taken out.", ())
    Deployment.objects.update(state="ready")
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
