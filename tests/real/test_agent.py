"""The node agent as a process of its own, on a real tritonserver and a real database: what it survives, and what it brings back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from accounts.core.access import Actor
from accounts.models import Team
from ledger.adapters.linux_processes import started_at_ticks
from ledger.core.canonical import canonical_bytes, sha256_of
from ledger.models import Event
from registry.models import Release, ServedModel, Waiver
from registry.storage import FolderStore
from serving.environments.actions.locks import CHANGE_CHANNEL
from serving.models import Environment, Node, Replica, Server
from serving.ports import InferenceError
from serving.servers.adapters.triton import TritonServer
from serving.targets import actions, queries
from serving.targets.core.gpu import reading_of
from tests.contracts import serving_models as made
from tests.support.rigs.triton_rig import kill_servers

pytestmark = pytest.mark.real("triton")
PROJECT = Path(__file__).resolve().parents[2]
SYSTEM = Actor.system("test")


@pytest.fixture(scope="module")
def database(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """A database of this module alone, seen by the agent as by the tests, with nothing rolled back."""
    name, before = f"agent_{uuid.uuid4().hex[:8]}", connection.settings_dict["NAME"]
    settings = connection.settings_dict
    address = f"postgresql://{settings['USER']}:{settings['PASSWORD']}@{settings['HOST']}:{settings['PORT']}"
    with django_db_blocker.unblock():
        is_migrated = bool(connection.introspection.table_names())  # it is none where this file runs alone
        connection.close()
        with psycopg.connect(f"{address}/postgres", autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [before])
            admin.execute(f'CREATE DATABASE "{name}"' + f' TEMPLATE "{before}"' * is_migrated)
        settings["NAME"] = name
        call_command("migrate", verbosity=0)
        yield f"{address}/{name}"
        connection.close()
        settings["NAME"] = before
        with psycopg.connect(f"{address}/postgres", autocommit=True) as admin:
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


class Machine:
    """One node with its state folder, its stack's lock, and its agent."""

    def __init__(self, database: str, state: Path) -> None:
        self.database, self.state, self.name = database, state, f"n{uuid.uuid4().hex[:6]}"
        self.servers, self.agents = state / "servers", list[subprocess.Popen[bytes]]()
        self.program, self.env = ["manage.py"], dict[str, str]()
        self._lock = (state / "stack.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def begin(self) -> None:
        self.start_agent()
        assert eventually(lambda: Node.objects.filter(name=self.name).exists())

    def start_agent(self) -> None:
        env = {
            **os.environ,
            "DATABASE_URL": self.database,
            "SLUICEGATE_NODE": self.name,
            "SLUICEGATE_STATE_DIR": str(self.state),
            "SLUICEGATE_SERVING_VENV": str(made.VENV),
            "SLUICEGATE_DRIFT_CHECK_EVERY_S": "0.5",
            **self.env,
        }
        command = [sys.executable, *self.program, "agent"]
        with (self.state / "agent.log").open("ab") as log:
            self.agents.append(subprocess.Popen(command, cwd=PROJECT, env=env, stdout=log, stderr=log))

    @property
    def agent(self) -> subprocess.Popen[bytes]:
        """The newest."""
        return self.agents[-1]

    def kill_agent(self, number: int = signal.SIGKILL) -> int:
        self.agent.send_signal(number)
        return self.agent.wait(60)

    def free_lock(self) -> None:
        self._lock.close()

    def deploy(self, kind: str, *, accelerator: dict[str, Any] | None = None) -> Replica:
        store = FolderStore(self.state / "blobs", max_bytes=1 << 30)
        blobs = made.MemoryBlobs()
        model = f"{kind}-{uuid.uuid4().hex[:6]}"
        manifest = getattr(made, kind)(blobs, model)
        if accelerator:
            manifest["envelope"] = {"accelerator": accelerator}
        for sha256 in blobs.data:
            store.put_stream(blobs.open(sha256), sha256)
        data = canonical_bytes(manifest)
        served = ServedModel.objects.create(
            slug=model, team=Team.objects.get_or_create(slug="vision", defaults={"title": "Vision"})[0]
        )
        release = Release.objects.create(
            model=served,
            number=1,
            state="sealed",
            manifest=data.decode(),
            digest=sha256_of(data),
            is_code_bearing=kind in ("misbehaving", "streaming"),
            sealed_at=timezone.now(),
        )
        if release.is_code_bearing:
            Waiver.objects.create(release=release, manifest_digest=release.digest, reason="a test")
        staging = Environment.objects.get_or_create(slug="staging", defaults={"title": "Staging", "is_routed": False})[
            0
        ]
        # Nodes of earlier tests are in the table, and removed: this one is chosen.
        replica = actions.ensure_replica(actor=SYSTEM, release=release, environment=staging, reason="a test")
        assert replica.node_id == self.name
        return replica

    def ready(self, replica: Replica, within_s: float = 60, *, recoveries: int = 0) -> Server:
        def is_ready() -> bool:
            replica.refresh_from_db()
            return replica.state == "ready" and replica.recoveries >= recoveries

        assert eventually(is_ready, within_s), (
            f"{replica.state}: {replica.reason}\n{(self.state / 'agent.log').read_text()[-2000:]}"
        )
        server = queries.ready_server(replica.release, replica.environment)
        assert server
        return server

    def close(self) -> None:
        for agent in self.agents:
            agent.kill()
            agent.wait(60)
        kill_servers(self.servers)
        self.free_lock()
        assert eventually(lambda: not processes_under(self.state))


@pytest.fixture
def machine(database: str, tmp_path: Path) -> Iterator[Machine]:
    made_machine = Machine(database, tmp_path)
    try:
        made_machine.begin()
        yield made_machine
    finally:
        made_machine.close()
        Node.objects.filter(name=made_machine.name).update(removed_at=timezone.now())


def eventually(condition: Callable[[], bool], within_s: float = 60) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def processes_under(state: Path) -> list[str]:
    """Keepers, servers and model processes of this state folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode()
            if str(state / "servers") in command and started_at_ticks(int(path.parent.name)):
                found.append(command)
        except OSError:
            continue
    return found


def shared_memory_of(server: Server) -> list[str]:
    """The machine's, and the server's own where it has one."""
    places = (Path("/dev/shm"), Path(f"/proc/{server.pid}/root/dev/shm"))
    return [path.name for place in places for path in place.glob(f"sg{server.folder.rpartition('-')[2]}_*")]


def ask(server: Server, value: float, timeout_s: float = 30.0) -> list[float]:
    client = TritonServer(server.host, server.http_port, server.grpc_port)
    try:
        inputs = {"x": np.full((1, 4), value, np.float32)}
        answered: list[float] = (
            client.infer(server.replica.release.model.slug, inputs, timeout_s=timeout_s).outputs["y"][0].tolist()
        )
        return answered
    finally:
        client.close()


def test_a_release_without_code_serves_and_leaves_when_it_is_drained(machine: Machine) -> None:
    with psycopg.connect(machine.database, autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANGE_CHANNEL}")
        replica = machine.deploy("words")
        server = machine.ready(replica)
        assert next(listener.notifies(timeout=60, stop_after=1), None)  # the control plane was woken
    assert set(replica.timings) == {"fetch_s", "load_s", "warmup_s"} and all(
        0 <= t < 60 for t in replica.timings.values()
    )
    client = TritonServer(server.host, server.http_port, server.grpc_port)
    answer = client.infer(
        replica.release.model.slug, {"text": np.array([["good bad film"]], dtype=object)}, timeout_s=30
    )
    assert answer.outputs["total"].tolist() == [[9]]
    client.close()
    first_probe = server.probed_at
    assert eventually(lambda: Server.objects.get(pk=server.pk).probed_at > first_probe)
    actions.drain_replica(actor=SYSTEM, replica=replica, reason="done")
    assert eventually(lambda: Replica.objects.get(pk=replica.pk).state == "gone")
    assert processes_under(machine.state) == [] and shared_memory_of(server) == [] and not Path(server.folder).exists()


def test_files_that_change_under_a_server_raise_an_alarm_and_a_held_blob_is_not_fetched_again(machine: Machine) -> None:
    replica = machine.deploy("words")
    server = machine.ready(replica)
    assert eventually(lambda: Server.objects.get(pk=server.pk).drift_checked_at)
    assert Server.objects.get(pk=server.pk).drift == []
    (copy,) = Path(server.folder).rglob("model.onnx")
    assert copy.stat().st_nlink == 2  # the node's copy and the server's file are one
    copy.chmod(0o644)
    with copy.open("r+b") as file:
        file.write(b"x")
    assert eventually(lambda: Event.objects.filter(verb="server.drifted", subject_id=str(server.pk)).exists())
    assert [one["path"] for one in Server.objects.get(pk=server.pk).drift] == ["1/model.onnx"]


def test_a_release_that_streams_is_warmed_up_over_a_stream(machine: Machine) -> None:
    server = machine.ready(machine.deploy("streaming"))
    with contextlib.closing(TritonServer(server.host, server.http_port, server.grpc_port)) as client:
        found = client.infer(server.replica.release.model.slug, {"text": np.array([[b"a b"]], object)}, timeout_s=30)
    assert found.outputs["y"].tolist() == [[b"a b "]]


def test_what_breaks_is_brought_back(machine: Machine) -> None:
    replica = machine.deploy("misbehaving")
    first = machine.ready(replica)
    with pytest.raises(InferenceError):
        ask(first, 666)  # the model's process ends itself
    second = machine.ready(replica, recoveries=1)
    assert second.pk != first.pk and ask(second, 3) == [6, 6, 6, 6]

    os.kill(second.pid, signal.SIGKILL)
    assert eventually(lambda: not Server.objects.get(pk=second.pk).is_serving)
    third = machine.ready(replica, recoveries=2)
    assert not Event.objects.filter(
        verb="server.lost", reason__contains="it hung"
    ).exists()  # known at once, by no window
    assert third.pk != second.pk and third.pid != second.pid and ask(third, 4) == [8, 8, 8, 8]
    assert shared_memory_of(second) == [] and not Path(second.folder).exists()
    assert Event.objects.filter(verb="server.lost", facts__deployment=replica.pk).count() == 2


def test_a_killed_agent_leaves_its_servers_and_the_next_one_adopts_them(machine: Machine) -> None:
    replica = machine.deploy("doubling")
    server = machine.ready(replica)
    machine.kill_agent(signal.SIGKILL)
    assert ask(server, 1) == [2, 2, 2, 2]
    machine.start_agent()
    adopted = Event.objects.filter(verb="server.adopted", subject_id=str(server.pk))
    assert eventually(adopted.exists)
    assert machine.ready(replica).pid == server.pid and replica.recoveries == 0
    assert machine.kill_agent(signal.SIGTERM) == 0  # an agent that is asked to stop leaves them as well
    assert ask(server, 2) == [4, 4, 4, 4]

    os.kill(server.pid, signal.SIGKILL)  # while nobody watches
    machine.start_agent()
    assert machine.ready(replica, recoveries=1).pid != server.pid


def test_a_second_agent_on_the_same_servers_waits_until_the_first_is_gone(machine: Machine) -> None:
    replica = machine.deploy("doubling")
    server = machine.ready(replica)
    first = machine.agent
    machine.start_agent()
    assert eventually(lambda: "another agent manages" in (machine.state / "agent.log").read_text())
    time.sleep(1.0)  # what it would do, it would have begun
    assert machine.agent.poll() is None and first.poll() is None
    assert [one.pk for one in Server.objects.filter(replica=replica)] == [server.pk]
    first.kill()
    first.wait(60)
    heard = Node.objects.get(name=machine.name).seen_at
    assert eventually(lambda: Node.objects.get(name=machine.name).seen_at > heard)
    read = reading_of(Node.objects.get(name=machine.name).gpus)
    assert read and bool(read.gpus) != bool(read.unknown), "what its GPUs said, or why nobody knows"
    assert machine.ready(replica).pid == server.pid


def test_an_agent_outlives_the_loss_of_its_database_connections(machine: Machine) -> None:
    replica = machine.deploy("doubling")
    server = machine.ready(replica)
    with psycopg.connect(machine.database, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    connection.close()  # ours went with them
    os.kill(server.pid, signal.SIGKILL)
    assert machine.ready(replica, recoveries=1).pid != server.pid
    assert machine.agent.poll() is None


def test_a_stack_that_is_killed_leaves_no_process_and_no_shared_memory(machine: Machine) -> None:
    one, two = machine.ready(machine.deploy("doubling")), machine.ready(machine.deploy("misbehaving"))
    assert shared_memory_of(one) and shared_memory_of(two)
    with pytest.raises(InferenceError):
        ask(two, 666)  # a dead model process makes Triton leak its memory
    machine.kill_agent(signal.SIGKILL)
    machine.free_lock()  # as the kernel does when the supervisor is killed
    assert eventually(lambda: processes_under(machine.state) == [])
    assert shared_memory_of(one) == [] and shared_memory_of(two) == []
    assert [path for path in machine.servers.iterdir() if path.is_dir()] == []
