"""The database and the processes of `benchmarks.fleet_scale`: models, routes, gateways, and one control plane between them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENVIRONMENT = "production"
SEED = 20_261_124
#: The whole table, for the first time, to every gateway on this machine's cores.
SETTLES_WITHIN_S = 240.0


class World:
    """`models` with a stable release each, the first `rollouts` with a candidate too; every release has two replicas."""

    def __init__(self) -> None:
        from accounts.core.access import Actor
        from tests.support.worlds.factories import make_environment

        self.actor = Actor.system("engine")
        self.environment = make_environment(ENVIRONMENT, needs_passed_report=False)
        self.split: list[tuple[Any, Any, Any]] = []  # (model, stable, candidate) of each rollout
        self.servers: list[Any] = []
        self.models = 0

    def grow(self, models: int, rollouts: int) -> None:
        from django.db import transaction

        from tests.support.worlds.factories import make_model, make_release

        with transaction.atomic():
            while self.models < models:
                model = make_model(f"model-{self.models:04d}")
                stable = make_release(model)
                candidate = make_release(model) if self.models < rollouts else None
                for release in (stable, candidate) if candidate else (stable,):
                    self._serve(release)
                if candidate:
                    self.split.append((model, stable, candidate))
                self._route(model, stable, candidate, 500 if candidate else 0)
                self.models += 1

    def _serve(self, release: Any) -> None:
        from tests.support.worlds.factories import make_replica, make_server

        for ordinal in range(2):
            port = 20_000 + 2 * len(self.servers)
            replica = make_replica(release, self.environment, state="ready", ordinal=ordinal)
            self.servers.append(make_server(replica, http_port=port, grpc_port=port + 1))

    def _route(self, model: Any, stable: Any, candidate: Any, bp: int) -> Any:
        from serving.traffic.actions.routes import set_route

        return set_route(
            actor=self.actor,
            environment=self.environment,
            model=model,
            stable=stable,
            candidate=candidate,
            candidate_bp=bp,
            reason="The benchmark says so.",
        )

    def change(self, number: int, bp: int) -> Any:
        """The weight of one rollout, by the action that the engine calls."""
        return self._route(*self.split[number], bp)

    def register(self, name: str, port: int) -> None:
        """One that was seen just now: a gateway more about changes the bound of every cluster, which is not what is measured."""
        from django.utils import timezone

        from serving.models import Gateway

        Gateway.objects.get_or_create(
            environment=self.environment,
            name=name,
            admin_url="",
            http_url=f"http://127.0.0.1:{port}",
            grpc_address=f"127.0.0.1:{port}",
            defaults={"seen_at": timezone.now()},
        )

    def acknowledged(self, route: Any) -> tuple[int, float]:
        """How many gateways are written down to have taken this generation of a route, and when the last did."""
        from django.db.models import Count, Max

        from serving.models import RouteAck

        found = RouteAck.objects.filter(route_id=route.pk, generation=route.generation, error="")
        told = found.aggregate(Count("pk"), Max("acked_at"))
        return told["pk__count"], told["acked_at__max"].timestamp() if told["acked_at__max"] else 0.0

    def words(self, route: Any) -> list[tuple[int, str, int]]:
        """What gateways say of a route: (generation, error, how many of them)."""
        from django.db.models import Count

        from serving.models import RouteAck

        found = RouteAck.objects.filter(route_id=route.pk).values_list("generation", "error")
        return list(found.annotate(Count("pk")).order_by("generation"))

    def settled(self) -> int:
        """How many words of gateways are about the newest generation of a route."""
        from django.db.models import F

        from serving.models import RouteAck

        return RouteAck.objects.filter(generation=F("route__generation"), error="").count()


@contextlib.contextmanager
def replicas_come_and_go(world: World, per_s: float) -> Iterator[list[float]]:
    """By the action that agents call, at this pace, or as fast as the database allows; yields when each was done."""
    from django.db import connection

    from serving.targets.actions.lifecycle import mark_serving

    stop, done, draw = threading.Event(), list[float](), random.Random(SEED)

    def run() -> None:
        away: dict[int, Any] = {}
        due = time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + 1 / per_s, time.monotonic() - 0.5)
            ordinal = draw.randrange(len(world.servers) // 2)
            server = away.pop(ordinal, None)
            if server is None:
                away[ordinal] = server = world.servers[2 * ordinal]
                mark_serving(actor=world.actor, server=server, is_serving=False, reason="The benchmark says so.")
            else:
                mark_serving(actor=world.actor, server=server, is_serving=True, reason="The benchmark says so.")
            done.append(time.time())
        for server in away.values():
            mark_serving(actor=world.actor, server=server, is_serving=True, reason="The benchmark says so.")
        connection.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


class Processes:
    """One control plane, its gateways, and what each has used of the processors."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"unix:{folder}/xds.sock"
        self._out = {name: folder / f"{name}.json" for name in ("control plane", "stub gateways")}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._logs = contextlib.ExitStack()

    def start(self, stubs: list[str]) -> None:
        plane = [sys.executable, "-m", "benchmarks.timed_control_plane", self.address]
        self.spawn("control plane", [*plane, str(self._out["control plane"])])
        if stubs:
            argv = [sys.executable, "-m", "benchmarks.stub_gateways", self.address, str(self._out["stub gateways"])]
            self.spawn("stub gateways", [*argv, *stubs])

    def spawn(self, name: str, argv: list[str]) -> None:
        log = self._logs.enter_context((self.folder / f"{name}.log").open("ab"))
        self._running[name] = subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": "."})

    def spawn_envoy(self, name: str, *, is_relayed: bool) -> None:
        """A real gateway, with its relay or without."""
        from django.conf import settings

        from serving.traffic.adapters.envoy_bootstrap import bootstrap

        relay = f"unix:{self.folder}/{name}.sock" if is_relayed else ""
        if relay:
            argv = [sys.executable, "-m", "serving.traffic.control_plane.relay", name, f"--listen={relay}"]
            argv += [f"--file={self.folder / name}.snapshot", f"--control-planes={self.address}"]
            self.spawn(f"relay of {name}", argv)
        config = self.folder / f"{name}.json"
        config.write_text(json.dumps(bootstrap(name, self.address, f"unix:{self.folder}/{name}.admin", relay=relay)))
        argv = [str(settings.ENVOY_BINARY), "-c", str(config), "--disable-hot-restart", "--concurrency", "1"]
        self.spawn(name, [*argv, "-l", "warning"])

    def cpu_s(self) -> dict[str, float]:
        """By process; raises RuntimeError where one has ended."""
        found, ticks = {}, os.sysconf("SC_CLK_TCK")
        for name, process in self._running.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended: {(self.folder / f'{name}.log').read_text()[-2000:]}")
            used = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            found[name] = sum(map(int, used)) / ticks
        return found

    def stop(self) -> dict[str, Any]:
        """What the control plane and the stub gateways noted."""
        for process in reversed(self._running.values()):
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            process.wait(30)
        self._running = {}
        self._logs.close()
        return {name: json.loads(out.read_text()) for name, out in self._out.items() if out.exists()}

    def kill(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait(30)
        self._logs.close()
