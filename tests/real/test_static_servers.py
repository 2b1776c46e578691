"""Tritons that their owners run, listed by an environment: a real agent, a real control plane and a real Envoy over them."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from accounts.models import Team
from ledger.core.canonical import canonical_bytes, sha256_of
from ledger.core.errors import Unavailable
from ledger.models import Event
from registry.models import Release, ServedModel
from registry.storage import FolderStore
from serving.environments.core.lifecycle import LIVE
from serving.environments.core.platforms import PlatformKind
from serving.models import Environment, ListedServer, Node, Replica, Server
from serving.targets import actions, queries
from serving.targets.actions.static_servers import list_server
from serving.targets.core.static_servers import REQUEST, StaticServer
from serving.targets.queries.fleet import fleet_of
from serving.traffic.actions.gateways import register_gateway
from serving.traffic.actions.routes import set_route
from serving.traffic.queries.routes import acknowledged
from tests.contracts import serving_models as made
from tests.real.test_agent import Machine, ask, database, eventually  # noqa: F401
from tests.support.rigs.gateway_rig import Envoy, free_port, wait_until
from tests.support.rigs.static_rig import HOST, Owner, owner
from tests.support.worlds.factories import make_admin

pytestmark = [pytest.mark.real("triton", "envoy"), pytest.mark.timeout(600)]
SYSTEM = Actor.system("test")
#: An answer that had begun as its server was killed: nobody can take that back.
CUT_OFF = "cut off"
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()


def static_production() -> Environment:
    defaults = {"title": "Production", "platform": PlatformKind.STATIC}
    return Environment.objects.update_or_create(slug="production", defaults=defaults)[0]


def listed(at: StaticServer, loads: str) -> ListedServer:
    """The server at that address, listed by production."""
    return list_server(
        actor=SYSTEM,
        environment=static_production(),
        name=f"theirs-{uuid.uuid4().hex[:6]}",
        address=str(at),
        loads=loads,
        runtime=made.doubling(made.MemoryBlobs())["runtime"]["image"],
    )


@contextlib.contextmanager
def tended(database: str, folder: Path, servers: list[ListedServer]) -> Iterator[Machine]:
    """The machine whose agent has reached these servers."""
    (folder / "state").mkdir(parents=True)
    machine = Machine(database, folder / "state")
    machine.env = {"SLUICEGATE_BLOB_STORE": str(folder / "blobs")}
    names = [server.node_id for server in servers]
    try:
        machine.begin()
        assert eventually(lambda: not Node.objects.filter(name__in=names, seen_at=None).exists())
        yield machine
    finally:
        machine.close()
        ListedServer.objects.filter(pk__in=names).delete()


class Place:
    """A server that its owner runs and production lists."""

    def __init__(self, theirs: Owner) -> None:
        self.owner, self.name = theirs, listed(theirs.at, REQUEST).node_id
        self.machine: Machine

    def has(self, model: str) -> bool:
        """Whether the server itself says that it is ready to answer for the model."""
        client = self.owner.client()
        try:
            return bool(client._client.is_model_ready(model, client_timeout=10))
        finally:
            client.close()


@pytest.fixture
def places(database: str, tmp_path: Path) -> Iterator[list[Place]]:
    """Two of them, and one agent that tends both."""
    with contextlib.ExitStack() as held:
        found = [Place(held.enter_context(owner(tmp_path / name / "owner"))) for name in ("a", "b")]
        rows = list(ListedServer.objects.filter(pk__in=[place.name for place in found]))
        machine = held.enter_context(tended(database, tmp_path, rows))
        for place in found:
            place.machine = machine
        yield found


class Product:
    """One model and its releases in production."""

    def __init__(self, folder: Path) -> None:
        self.store = FolderStore(folder / "blobs", max_bytes=1 << 30)
        team = Team.objects.get_or_create(slug="vision", defaults={"title": "Vision"})[0]
        self.model = ServedModel.objects.create(
            slug=f"doubling-{uuid.uuid4().hex[:6]}", team=team, objectives={"attempt_timeout_s": 50, "timeout_s": 100}
        )
        self.environment = Environment.objects.get_or_create(slug="production", defaults={"title": "Production"})[0]

    def release(self, number: int) -> Release:
        blobs = made.MemoryBlobs()
        manifest = {**made.doubling(blobs, self.model.slug), "provenance": {"n": number}}
        for sha256 in blobs.data:
            self.store.put_stream(blobs.open(sha256), sha256)
        data = canonical_bytes(manifest)
        return Release.objects.create(
            model=self.model,
            number=number,
            state="sealed",
            manifest=data.decode(),
            digest=sha256_of(data),
            sealed_at=timezone.now(),
        )

    def deploy(self, release: Release) -> Replica:
        return actions.ensure_replica(
            actor=SYSTEM, release=release, environment=self.environment, reason="a test wants it"
        )

    def route(self, stable: Release, candidate: Release | None = None, bp: int = 0) -> None:
        route = set_route(
            actor=SYSTEM, environment=self.environment, model=self.model, stable=stable, candidate=candidate,
            candidate_bp=bp, reason="a test",
        )  # fmt: skip
        wait_until(lambda: acknowledged(route).all_acked, f"{bp} bp acknowledged")


class Users:
    """Ask without a pause, until they are stopped: how often which release answered, and what went wrong."""

    def __init__(self, envoy: Envoy, model: str) -> None:
        self._path, self._envoy, self._enough = f"/v2/models/{model}/infer", envoy, threading.Event()
        self.answered: Counter[str] = Counter()
        self._trouble: Exception | None = None
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def ask(self) -> str:
        try:
            answer = self._envoy.http(self._path, {"Content-Type": "application/json"}, BODY)
        except (http.client.HTTPException, ConnectionError):
            return CUT_OFF
        if answer.status != 200:
            return f"HTTP {answer.status}"
        assert json.loads(answer.body)["outputs"][0]["data"] == [2, 4, 6, 8]
        return answer.release or "?"

    def _ask(self) -> None:
        try:
            while not self._enough.is_set():
                self.answered[self.ask()] += 1
        except Exception as error:  # told to whoever waits for an answer
            self._trouble = error

    def hear(self, release: str, more: int = 20) -> None:
        wanted = self.answered[release] + more
        wait_until(
            lambda: self._trouble or self.answered[release] >= wanted, f"{more} more of {release}: {self.answered}"
        )
        if self._trouble is not None:
            raise AssertionError(f"{self.answered}, and then: {self._trouble!r}") from self._trouble

    def stop(self) -> None:
        self._enough.set()
        self._thread.join(60)

    def heard(self, *answers: str) -> bool:
        """Whether each of these came and nothing else, but for the one answer that a kill may cut off."""
        return set(self.answered) - {CUT_OFF} == set(answers) and self.answered[CUT_OFF] <= 1


@pytest.fixture
def gateway(database: str, tmp_path: Path) -> Iterator[Envoy]:
    port = free_port()
    argv = [sys.executable, "manage.py", "control_plane", "--address", f"{HOST}:{port}"]
    envoy = Envoy(tmp_path, port, name=f"gateway-{uuid.uuid4().hex[:6]}")
    production = Environment.objects.get_or_create(slug="production", defaults={"title": "Production"})[0]
    with (tmp_path / "control_plane.log").open("ab") as log:
        plane = subprocess.Popen(argv, env={**os.environ, "DATABASE_URL": database}, stdout=log, stderr=log)
    try:
        register_gateway(
            actor=SYSTEM,
            environment=production,
            name=envoy.name,
            admin_url=envoy.admin_url,
            http_url=f"http://{HOST}:{envoy.port}",
            grpc_address=f"{HOST}:{envoy.port}",
        )
        envoy.start()
        yield envoy
    finally:
        envoy.stop()
        envoy.log.close()
        plane.kill()
        plane.wait(60)


def server_of(replica: Replica) -> Server:
    found = queries.server_of(replica)
    assert found
    return found


def ready(place: Place, replica: Replica, **over: Any) -> Server:
    place.machine.ready(replica, **over)
    return server_of(replica)


def test_releases_are_rolled_over_servers_that_somebody_else_runs(
    places: list[Place], gateway: Envoy, tmp_path: Path
) -> None:
    product = Product(tmp_path)
    r1, r2, r3 = (product.release(number) for number in (1, 2, 3))
    first = product.deploy(r1)
    one, other = places if first.node_id == places[0].name else places[::-1]
    server = ready(one, first)
    assert server.pid == 0 and server.http_port == one.owner.at.http_port and one.has(product.model.slug)
    product.route(r1)
    wait_until(gateway.is_open, "the gateway's port")
    users = Users(gateway, product.model.slug)
    try:
        users.hear("r1")
        second = product.deploy(r2)
        assert second.node_id == other.name  # a server takes one release of a model, and never two
        ready(other, second)
        with pytest.raises(Unavailable, match="it is one server, which serves one release of"):
            product.deploy(r3)
        product.route(r1, r2, 5000)
        users.hear("r1")
        users.hear("r2")
        product.route(r2)
        actions.release_replica(actor=SYSTEM, release=r1, environment=product.environment, reason="r2 is stable")
        assert eventually(lambda: Replica.objects.get(pk=first.pk).state == "gone")
        assert not one.has(product.model.slug) and one.owner.is_running  # taken out of it, and it lives on
        third = product.deploy(r3)
        assert third.node_id == one.name
        ready(one, third)
        product.route(r2, r3, 5000)
        users.hear("r3")
        product.route(r2)
        users.hear("r2")
    finally:
        users.stop()
    assert set(users.answered) == {"r1", "r2", "r3"}, users.answered  # nobody lost an answer


def test_what_its_owner_kills_and_brings_back_is_given_its_release_again(
    places: list[Place], gateway: Envoy, tmp_path: Path
) -> None:
    product = Product(tmp_path)
    r1 = product.release(1)
    replica = product.deploy(r1)
    place = next(one for one in places if one.name == replica.node_id)
    server = ready(place, replica)
    product.route(r1)
    wait_until(gateway.is_open, "the gateway's port")
    users = Users(gateway, product.model.slug)
    try:
        users.hear("r1")
        place.owner.kill()
        assert eventually(lambda: not Server.objects.get(pk=server.pk).is_serving)
        assert eventually(lambda: "does not answer as it should" in Replica.objects.get(pk=replica.pk).reason)
        row = Replica.objects.get(pk=replica.pk)
        assert row.state in LIVE and row.state != "ready" and "STABLE r1 HAS NO SERVER" in row.reason
        wait_until(lambda: users.ask() == "HTTP 503", "users are told the truth")
        place.owner.start()
        again = ready(place, replica, recoveries=1)
        assert again.pk != server.pk and place.has(product.model.slug)
        users.hear("r1")
    finally:
        users.stop()
    assert users.answered[CUT_OFF] <= 1
    # What nobody can know of it is unknown, and not well.
    assert again.digest == "" and again.drift_checked_at is None and again.memory_bytes is None
    (view,) = [one for one in fleet_of(make_admin()) if one.node.name == place.name]
    assert view.static == {"address": str(place.owner.at), "loads": REQUEST}
    assert (view.known.memory_mib, view.known.gpus, view.held[0].attested) == (None, None, "unknown")
    assert view.containment == "unknown" and view.gpus_read is None


def test_an_agent_that_is_killed_finds_its_release_there_again(places: list[Place], tmp_path: Path) -> None:
    product = Product(tmp_path)
    replica = product.deploy(product.release(1))
    place = next(one for one in places if one.name == replica.node_id)
    server = ready(place, replica)
    place.machine.kill_agent(signal.SIGKILL)
    assert ask(server, 1) == [2, 2, 2, 2]
    place.machine.start_agent()
    assert eventually(Event.objects.filter(verb="server.adopted", subject_id=str(server.pk)).exists)
    assert ready(place, replica).pk == server.pk and replica.recoveries == 0

    place.machine.kill_agent(signal.SIGKILL)
    place.owner.kill()  # while nobody watches
    place.owner.start()
    place.machine.start_agent()
    assert ready(place, replica, recoveries=1).pk != server.pk and place.has(product.model.slug)
    place.machine.kill_agent(signal.SIGTERM)
    assert place.has(product.model.slug)  # an agent that is asked to stop leaves it as well
