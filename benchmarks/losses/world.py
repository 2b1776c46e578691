"""What runs on the hosts: a database, two control planes with an engine each, three nodes, two gateways with relays.

A node has either two stub servers that nobody looks after, or an agent that starts real ones.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import psycopg

from benchmarks.losses.net import NETWORK, Host, Net
from serving.agent import server_shim
from sluicegate.stack.postgres import Postgres

DATABASE, PLANES, NODES, GATEWAYS = "db", ["ctl-a", "ctl-b"], ["node-1", "node-2", "node-3"], ["gw-1", "gw-2"]
#: Whoever judges is on the users' host, whose links are never cut.
USERS = "users"
NAMES = [DATABASE, *PLANES, *NODES, *GATEWAYS, USERS]
#: One more, where nodes have agents.
JOINS = "node-4"
XDS_PORT, HTTP_PORT, GRPC_PORT, COUNTERS_PORT = 18000, 8080, 8081, 9902
SERVERS = {"r1": 9000, "r2": 9010}
#: A stub server answers after that long.
ANSWERS_AFTER_S = 0.005


def until(is_true: Callable[[], Any], what: str, within_s: float, *, look_s: float = 0.05) -> float:
    """Seconds until it was so, looked at every `look_s`. Raises TimeoutError, in a sentence, when it was not within that."""
    began = time.monotonic()
    while not is_true():
        if time.monotonic() - began > within_s:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        time.sleep(look_s)
    return time.monotonic() - began


class Machines:
    """The processes of every host, in a folder that they share; what they share it for is their own files and logs."""

    def __init__(self, net: Net, folder: Path, *, has_agents: bool) -> None:
        self.net, self.folder, self.has_agents = net, folder, has_agents
        self.postgres = Postgres(folder, is_durable=False)
        self._argv: list[str] = []
        self._env: dict[str, str] = {}
        self._agents: dict[str, subprocess.Popen[bytes]] = {}

    def host(self, name: str) -> Host:
        return self.net.hosts[name]

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    # -- the database ------------------------------------------------------------------------------------------------

    def make_database(self) -> None:
        """Up, and in the environment that Django reads."""
        here = self.host(DATABASE).address
        self._argv = [*self.postgres.prepare(), "-c", f"listen_addresses={here}"]
        with (self.postgres.home / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {NETWORK}.0/24 scram-sha-256\n")
        self.start_database()
        os.environ.update(
            DATABASE_URL=self.postgres.url.replace("127.0.0.1", here),
            DATABASE_OWNER_URL=self.postgres.owner_url.replace("127.0.0.1", here),
            SLUICEGATE_STATE_DIR=str(self.folder),
            SLUICEGATE_BLOB_STORE=str(self.folder / "blobs"),
            SLUICEGATE_PRIVATE_NETWORKS=f"{NETWORK}.0/24",
            DJANGO_SETTINGS_MODULE="sluicegate.settings",
        )
        for secret in ("DATABASE_URL_FILE", "REDIS_URL_FILE", "DATABASE_OWNER_URL_FILE"):
            os.environ.pop(secret, None)

    def start_database(self) -> None:
        user = pwd.getpwnam(self.postgres.user or "root")
        self.host(DATABASE).popen(self._argv, self.log("postgres"), {"PATH": os.defpath}, user.pw_uid, user.pw_gid)
        url = self.postgres.url.replace("127.0.0.1", self.host(DATABASE).address)

        def answers() -> bool:
            try:
                psycopg.connect(url, connect_timeout=2).close()
            except psycopg.Error:
                return False
            return True

        until(answers, "the database answers", 60)

    # -- the others --------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Everything that runs on this host."""
        if name == DATABASE:
            self.start_database()
        elif name in PLANES:
            self.start_control_plane(name)
            self.start_engine(name)
        elif name in GATEWAYS:
            self.start_gateway(name)
        elif self.has_agents:
            self.start_agent(name)
        else:
            self.start_servers(name)

    def start_control_plane(self, name: str) -> None:
        self._manage(name, "control_plane", "--address", f"{self.host(name).address}:{XDS_PORT}")

    def start_engine(self, name: str) -> None:
        self._manage(name, "engine")

    def _manage(self, name: str, *said: str, **more: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, **self._env, "SLUICEGATE_STATE_DIR": str(self._own(name)), **more}
        return self.host(name).popen([sys.executable, "manage.py", *said], self.log(f"{name}-{said[0]}"), env)

    def start_agent(self, name: str) -> None:
        """The node's agent alone. It finds what an earlier one left running."""
        self._agents[name] = self._manage(
            name, "agent", "--node", name, SLUICEGATE_NODE_ADDRESS=self.host(name).address
        )

    def kill_agent(self, name: str) -> None:
        """The agent alone; its servers live on."""
        self._agents[name].kill()
        self._agents[name].wait(60)

    def start_servers(self, name: str) -> None:
        for release, port in SERVERS.items():
            told = [f"{name}-{release}", port, port + 1, ANSWERS_AFTER_S, 0.0, self.host(name).address]
            argv = [sys.executable, "-m", "tests.stub_process", *map(str, told)]
            self.host(name).popen(argv, self.log(f"{name}-{release}"))

    def start_gateway(self, name: str) -> None:
        self.start_relay(name)
        self.start_envoy(name)

    def start_relay(self, name: str) -> None:
        own, tls = self._own(name), self.tls[name]
        argv = [sys.executable, "-m", "serving.control_plane.relay", name, f"--listen=unix:{own}/relay.sock"]
        argv += [f"--file={own}/snapshot", f"--control-planes={self.control_planes}"]
        argv += [f"--certificate={tls.certificate}", f"--key={tls.key}", f"--authority={tls.authority}"]
        self.host(name).popen(argv, self.log(f"{name}-relay"))

    def start_envoy(self, name: str) -> None:
        from django.conf import settings

        argv: list[str | Path] = [settings.ENVOY_BINARY, "-c", self._own(name) / "envoy.json", "--disable-hot-restart"]
        argv += ["--concurrency", "1", "-l", "warning"]
        self.host(name).popen(argv, self.log(f"{name}-envoy"))

    @property
    def control_planes(self) -> str:
        return ",".join(f"{self.host(one).address}:{XDS_PORT}" for one in PLANES)

    def admin_url(self, gateway: str) -> str:
        """Of its Envoy."""
        return f"unix:{self._own(gateway)}/admin.sock"

    def _own(self, name: str) -> Path:
        made = self.folder / name
        made.mkdir(exist_ok=True)
        return made

    def make_gateways(self, environment: Any) -> None:
        """Certificates for everyone, and each gateway as `manage.py register_gateway` registers it."""
        from accounts.core.access import Actor
        from serving.actions.gateways import add_gateway
        from serving.core.gateway_setup import GatewaySetup
        from tests.certificates import Authority

        ours = Authority(self.folder)
        plane, self.tls = ours.control_plane(), {name: ours.gateway(name) for name in GATEWAYS}
        files = {"CERTIFICATE": plane.certificate, "KEY": plane.key, "CA": plane.authority}
        self._env = {f"SLUICEGATE_XDS_{what}_FILE": file for what, file in files.items()}
        for name in GATEWAYS:
            own, at, tls = self._own(name), self.host(name).address, self.tls[name]
            setup = GatewaySetup(
                name, self.control_planes, self.admin_url(name), f"{at}:{COUNTERS_PORT}", f"unix:{own}/relay.sock",
                tls.certificate, tls.key, tls.authority, 512,
            )  # fmt: skip
            _, told = add_gateway(
                actor=Actor.system("setup"), environment=environment, setup=setup,
                http_url=f"http://{at}:{HTTP_PORT}", grpc_address=f"{at}:{GRPC_PORT}",
            )  # fmt: skip
            (own / "envoy.json").write_text(json.dumps(told))


@contextmanager
def machines(net: Net, folder: Path, *, has_agents: bool = False) -> Iterator[Machines]:
    """The database is up and migrated, and Django of this process reads it; nothing else runs yet."""
    made = Machines(net, folder, has_agents=has_agents)
    try:
        made.make_database()
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        yield made
    finally:
        for host in net.hosts.values():
            host.kill()
        for launch in folder.glob(f"*/servers/*/{server_shim.LAUNCH_FILE}"):  # no shim is left to do it
            server_shim.clear_shared_memory(json.loads(launch.read_text())["shm_prefix"])
        made.postgres.remove()
