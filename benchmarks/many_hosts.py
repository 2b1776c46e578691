"""Many hosts on one machine: what a cut link or a dead host costs the users, and how long it is until all is well again.

Run `python -m benchmarks.many_hosts [--only ROW] [--list] [--cut-s 30]` as root. The hosts are network namespaces: a database, two with
control plane and engine, two gateways (Envoy and relay, mTLS), three nodes with stub servers, and the users'. A cut link swallows packets;
it hangs, and refuses nothing. Ends with 1 where a bound is broken, with 2 where namespaces are not permitted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.hosts.network import NETWORK, Network, enter, inside

HOSTS = ["database", "plane-a", "plane-b", "gateway-1", "gateway-2", "node-1", "node-2", "node-3", "users"]
PLANES, GATEWAYS, NODES = HOSTS[1:3], HOSTS[3:5], HOSTS[5:8]
HTTP_PORT, GRPC_PORT, XDS_PORT, COUNTERS_PORT = 8000, 8001, 18000, 9902
#: row → (who is cut from whom, or killed; seconds in which a change must be in force at both gateways; requests that may be lost).
#: Bounds: lease 3 s and a tick; a silent stream is found out after 20 s; a connection of the database after 10 s; a node is set aside
#: after five attempts of a second each in each protocol at each gateway.
ROWS: dict[str, tuple[str, list[str], float, int]] = {
    "cut both control planes from the database": ("database", PLANES, 20, 0),
    "cut control plane A from everybody": ("plane-a", ["database", *GATEWAYS], 30, 0),
    "cut gateway-1 from both control planes": ("gateway-1", PLANES, 30, 0),
    "cut node-1 from both gateways": ("node-1", GATEWAYS, 5, 40),
    "kill node-1": ("node-1", [], 5, 40),
    "kill control plane A": ("plane-a", [], 10, 0),
}


class Site:
    """All of it, running."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.network = folder, Network(folder, HOSTS)
        self.hosts = self.network.hosts

    def start(self) -> None:
        self.network.start()
        self._start_database()
        enter(self.hosts["users"].namespace)
        os.environ.update(self.env)
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", interactive=False, verbosity=0)
        self._seed()
        for name in PLANES:
            self.start_plane(name)
        for name in NODES:
            self.start_node(name)
        for name in GATEWAYS:
            self._start_gateway(name)

    def _start_database(self) -> None:
        from sluicegate.stack.postgres import Postgres

        class Open(Postgres):
            def prepare(self) -> list[str]:
                argv = super().prepare()
                with (self.home / "data" / "pg_hba.conf").open("a") as file:
                    file.write(f"host all all {NETWORK}.0/24 scram-sha-256\n")
                return [*argv, "-c", "listen_addresses=*"]

        self.postgres = Open(self.folder, is_durable=False, is_for_tests=True)
        with inside(self.hosts["database"].namespace):
            self.postgres.start()
        self.env = {
            "DATABASE_URL": self.postgres.owner_url.replace("127.0.0.1", self.hosts["database"].address),
            "DJANGO_SETTINGS_MODULE": "sluicegate.settings",
            "SLUICEGATE_STATE_DIR": str(self.folder),
        }

    def _seed(self) -> None:
        from serving.models import Deployment, Environment, Gateway, Node
        from tests.certificates import Authority
        from tests.factories import make_deployment, make_environment, make_model, make_release, make_server

        make_environment("production", needs_passed_report=False)
        self.model, self.environment = make_model("sentiment"), Environment.objects.get(slug="production")
        self.releases = [make_release(self.model), make_release(self.model)]
        for number, name in enumerate(NODES):
            for release in self.releases:
                node = Node.objects.get_or_create(name=name)[0]
                made = make_deployment(release, self.environment, state="ready", slot=number)
                Deployment.objects.filter(pk=made.pk).update(node=node)
                make_server(made, host=self.hosts[name].address, http_port=HTTP_PORT, grpc_port=GRPC_PORT)
        for name in GATEWAYS:
            at = self.hosts[name].address
            where = {"http_url": f"http://{at}:{HTTP_PORT}", "grpc_address": f"{at}:{GRPC_PORT}"}
            counters = f"https://{at}:{COUNTERS_PORT}"
            Gateway.objects.create(environment=self.environment, name=name, admin_url=counters, **where)
        authority = Authority(self.folder)
        self.tls, self.gateway_tls = authority.control_plane(), {name: authority.gateway(name) for name in GATEWAYS}
        self.stable = 1
        self.flip()

    def flip(self) -> str:
        """The other release takes all traffic; its name."""
        from accounts.core.access import Actor
        from serving.actions.routes import set_route

        self.stable = 1 - self.stable
        release, actor = self.releases[self.stable], Actor.system("benchmark")
        set_route(actor=actor, environment=self.environment, model=self.model, stable=release, reason="A change.")
        return f"r{release.number}"

    def start_plane(self, name: str) -> None:
        host = self.hosts[name]
        files = {"CERTIFICATE": self.tls.certificate, "KEY": self.tls.key, "CA": self.tls.authority}
        env = {**os.environ, **self.env, **{f"SLUICEGATE_XDS_{key}_FILE": file for key, file in files.items()}}
        host.start([sys.executable, "manage.py", "control_plane", "--address", f"{host.address}:{XDS_PORT}"], env)
        host.start([sys.executable, "manage.py", "engine"], env)

    def start_node(self, name: str) -> None:
        told = [name, HTTP_PORT, GRPC_PORT, 0, 0, self.hosts[name].address]
        self.hosts[name].start([sys.executable, "-m", "tests.stub_process", *map(str, told)], dict(os.environ))

    def _start_gateway(self, name: str) -> None:
        from django.conf import settings

        from serving.adapters.envoy_bootstrap import bootstrap

        host, tls, socket = self.hosts[name], self.gateway_tls[name], f"unix:{self.folder / name}.sock"
        planes = ",".join(f"{self.hosts[one].address}:{XDS_PORT}" for one in PLANES)
        relay = [sys.executable, "-m", "serving.control_plane.relay", name, f"--listen={socket}"]
        relay += [f"--file={self.folder / name}.kept", f"--control-planes={planes}", f"--certificate={tls.certificate}"]
        host.start([*relay, f"--key={tls.key}", f"--authority={tls.authority}"], dict(os.environ))
        admin, counters = f"unix:{self.folder / name}-admin.sock", f"{host.address}:{COUNTERS_PORT}"
        told = bootstrap(name, planes, admin, tls, counters, relay=socket)
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(told))
        argv = [
            str(settings.ENVOY_BINARY),
            "-c",
            str(file),
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "-l",
            "error",
        ]
        host.start(argv, dict(os.environ))

    def stop(self) -> None:
        self.network.remove()
        if hasattr(self, "postgres"):
            self.postgres.remove()


def until(is_true: Callable[[], Any], what: str, within_s: float = 90.0) -> float:
    """The seconds that it took. Raises TimeoutError."""
    began = time.monotonic()
    while not is_true():
        if time.monotonic() > began + within_s:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - began


def leader() -> str:
    """The engine that holds the lease now; "" for none."""
    from ledger.actions.leases import holder

    return holder("engine") or ""


def play(site: Site, row: str, cut_s: float) -> dict[str, Any]:
    from benchmarks.hosts.users import Users

    who, others, within_s, may_lose = ROWS[row]
    users = Users([(site.hosts[name].address, HTTP_PORT, GRPC_PORT) for name in GATEWAYS])
    before = leader()
    try:
        began = time.monotonic()
        if others:
            site.network.cut(who, *others)
        else:
            site.hosts[who].kill()
        wanted = site.flip()
        while time.monotonic() < began + cut_s:
            time.sleep(0.1)
        during = [users.answered_by(index, wanted) for index in range(len(GATEWAYS))]
        after = leader()
        if others:
            site.network.heal(who, *others)
        elif who in NODES:
            site.start_node(who)
        else:
            site.start_plane(who)
        if all(during):  # else what is waited for is the change that was made meanwhile
            wanted = site.flip()
        took = until(lambda: all(users.answered_by(index, wanted) for index in range(len(GATEWAYS))), "both follow")
        until(leader, "an engine leads")
    finally:
        asked, lost = users.stop()
    is_kept = sum(lost.values()) <= may_lose and took <= within_s
    return {
        "row": row, "asked": asked, "lost": lost, "may_lose": may_lose, "follow_during": during,
        "well_s": round(took, 1), "bound_s": within_s, "lead_moved": before != after, "is_kept": is_kept,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(ROWS), metavar="ROW")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--cut-s", type=float, default=30.0, help="how long a link is cut, or a host dead")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(ROWS))
        return 0
    with tempfile.TemporaryDirectory(prefix="sluicegate-hosts-") as name:
        Path(name).chmod(0o711)
        site = Site(Path(name))
        try:
            site.start()
            from benchmarks.hosts.users import answers

            where = [(site.hosts[one].address, HTTP_PORT) for one in GATEWAYS]
            until(lambda: all(answers(*one) for one in where) and leader(), "all is well at the start")
            results = []
            for row in [asked.only] if asked.only else ROWS:
                results.append(play(site, row, asked.cut_s))
                print(json.dumps(results[-1]), flush=True)
        except subprocess.CalledProcessError as error:
            print(f"Network namespaces are not permitted here: {error.stderr or error}", file=sys.stderr)
            return 2
        except TimeoutError:
            for host in site.hosts.values():
                print(f"--- {host.name}\n{host.said()[-1500:]}", file=sys.stderr)
            raise
        finally:
            site.stop()
    return int(not all(one["is_kept"] for one in results))


if __name__ == "__main__":
    sys.exit(main())
