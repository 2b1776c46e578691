"""The gateway of a run: the fake gateway behind the admin page of an Envoy, in a process that outlives its engines.

Each reading of its counters first brings some users' requests, so that a tick of the engine always sees fresh traffic,
whenever it comes. It follows routes as soon as they are written, and remembers every split that it ever followed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from django.db import connections

from serving.models import Route, RouteAck
from serving.ports import GatewayCounters
from serving.traffic.control_plane import change_listener
from tests.kills.process import Child, fork
from tests.support.fakes.gateway import FakeGateway, envoy_page

NAME = "gateway-1"
BEAT_S = 1.0


class Gate:
    """What the process holds. `follows`: `routes` themselves, with acknowledgements of its own, or what is `acknowledged` already."""

    def __init__(self, *, rate: int, follows: str) -> None:
        self.fake = FakeGateway(NAME, seed=5)
        self.rate, self.follows, self.is_deaf = rate, follows, False
        self.splits: list[tuple[str, str | None, int]] = []  # (stable, candidate, candidate_bp), each change once
        self.model = ""
        self.lock = threading.Lock()

    def told(self, news: dict[str, Any]) -> None:
        """Changes the rate of users, what a release does, or whether routes are followed."""
        with self.lock:
            self.rate, self.is_deaf = news.get("rate", self.rate), news.get("is_deaf", self.is_deaf)
            for digest, how in news.get("arms", {}).items():
                self.fake.set_arm(digest, **how)
        self.obey()

    def obey(self) -> None:
        with self.lock:
            route = Route.objects.select_related("model", "stable", "candidate").first()
            if route is None or self.is_deaf or not self._took(route):
                return
            self.model = route.model.slug
            candidate = route.candidate.digest if route.candidate else None
            split = (str(route.stable.digest), candidate, route.candidate_bp)
            if self.splits[-1:] != [split]:
                self.splits.append(split)

    def _took(self, route: Route) -> bool:
        if self.follows == "routes":
            self.fake.obey()
            return True
        if not RouteAck.objects.filter(route=route, generation__gte=route.generation, error="").exists():
            return False
        candidate = route.candidate.digest if route.candidate else None
        self.fake.set_route(
            route.model.slug,
            stable=str(route.stable.digest),
            candidate=candidate,
            candidate_bp=route.candidate_bp,
            slot=route.slot,
        )
        return True

    def page(self, is_awaited: Callable[[], bool]) -> str:
        """Envoy's statistics, after some more traffic; without it where nobody waits for the page any more."""
        self.obey()  # a gateway that says that it follows a route does so already
        with self.lock:
            if self.model and is_awaited():
                self.fake.traffic(self.rate, self.model)
            return envoy_page(self.counters(), uptime_s=int(time.monotonic()))

    def beat(self) -> None:
        """Shows the control plane's tables now and then that this gateway is about, as a stream does."""
        while True:
            time.sleep(BEAT_S)
            self.obey()

    def counters(self) -> dict[str, GatewayCounters]:
        return self.fake.read(gateway=NAME, admin_url="", timeout_s=1)

    def truth(self) -> dict[str, Any]:
        """What really happened here, beside what the engine believes."""
        with self.lock:
            counted = list(self.counters().values())
        return {
            "splits": self.splits,
            "user_requests": sum(one.user_requests for one in counted),
            "user_errors": sum(one.user_errors for one in counted),
        }


class _Face(BaseHTTPRequestHandler):
    gate: Gate
    protocol_version = "HTTP/1.1"  # connections are kept, as Envoy keeps them

    def do_GET(self) -> None:
        page = self.path.partition("?")[0]
        if page == "/config_dump":
            dump = {"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump", "last_updated": "start-1"}
            self._say(json.dumps({"configs": [dump]}))
        else:
            self._say(self.gate.page(self._is_awaited) if page.startswith("/stats") else json.dumps(self.gate.truth()))

    def do_POST(self) -> None:
        self.gate.told(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self._say("{}")

    def _is_awaited(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        return True

    def finish(self) -> None:
        super().finish()
        connections.close_all()

    def _say(self, text: str) -> None:
        body = text.encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class RunningGateway:
    """A handle on the process, for whoever plays the rest of the run."""

    def __init__(self, process: Child, port: int) -> None:
        self.process, self.port = process, port
        self.admin_url = f"http://127.0.0.1:{port}"

    def told(self, **news: Any) -> None:
        self._ask("POST", "/told", json.dumps(news))

    def truth(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._ask("GET", "/truth"))
        return found

    def _ask(self, method: str, path: str, body: str | None = None) -> str:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            line.request(method, path, body)
            return line.getresponse().read().decode()
        finally:
            line.close()


def start(
    log: Path, *, rate: int, follows: str = "routes", beside: Callable[[], object] = lambda: None
) -> RunningGateway:
    """A gateway process on a port of its own. `beside` is done in it once, before it answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Face, bind_and_activate=False)
    server.server_bind()

    def work() -> None:
        _Face.gate = Gate(rate=rate, follows=follows)
        beside()
        change_listener.listen(_Face.gate.obey)
        threading.Thread(target=_Face.gate.beat, daemon=True).start()
        server.server_activate()
        server.serve_forever(poll_interval=0.05)

    server.server_activate()
    process = fork("gateway", work, log)
    port = int(server.server_address[1])
    server.socket.close()
    os.sched_yield()
    return RunningGateway(process, port)
