"""An admin page as large as that of an Envoy with many models, whose counters grow steadily, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from serving.traffic.core.routes import SLOTS

#: Of every model: requests a second, and the share of them that its stable release gets.
RATE_PER_S, STABLE_SHARE = 20, 0.95


@contextmanager
def page_server() -> Iterator[str]:
    """The URL of an admin page like Envoy's for ever more models, in a process of its own. Models are told by `tell`."""
    from ledger.adapters.linux_processes import die_with_parent

    ours, theirs = os.pipe()
    tie = die_with_parent(signal.SIGKILL)
    child = os.fork()
    if not child:
        tie()
        os.close(ours)
        _serve_pages(theirs)
    os.close(theirs)
    with os.fdopen(ours) as told:
        port = int(told.readline())
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def tell(url: str, arms: dict[str, tuple[str, str]]) -> None:
    """From now on the page is about these models."""
    urllib.request.urlopen(f"{url}/models", data=json.dumps(arms).encode()).read()


def _serve_pages(pipe: int) -> None:
    traffic = Traffic()

    class Face(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            traffic.arms = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._say(b"")

        def do_GET(self) -> None:
            dump = {"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump", "last_updated": "start-1"}
            is_dump = self.path.startswith("/config_dump")
            self._say((json.dumps({"configs": [dump]}) if is_dump else traffic.page()).encode())

        def _say(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Face)
    os.write(pipe, f"{server.server_port}\n".encode())
    server.serve_forever()


class Traffic:
    """Steady traffic on every model: what an Envoy would have counted by now."""

    def __init__(self) -> None:
        self.arms: dict[str, tuple[str, str]] = {}
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def page(self) -> str:
        with self._lock:
            passed_s = time.monotonic() - self._began
            lines = [f"server.uptime: {int(passed_s)}"]
            for model, digests in self.arms.items():
                for digest, share in zip(digests, (STABLE_SHARE, 1 - STABLE_SHARE), strict=True):
                    lines += _lines(model, digest, int(passed_s * RATE_PER_S * share))
            return "\n".join([*lines, ""])


def _lines(model: str, digest: str, count: int) -> list[str]:
    """What Envoy shows of one release: two protocols, a failure in a thousand, nearly all answers within 20 ms.

    Under every label that a weight may have, since a gateway never forgets one, and all alike: the engine reads one of them.
    """
    name = f"model.{model}.digest.{digest}.entry.split"
    failed, half = count // 1000, count // 2
    outcomes = [
        ("", "code.200.grpc..flags.-", half),
        ("_grpc", "code.200.grpc.0.flags.-", count - half - failed),
        ("", "code.503.grpc..flags.UF", failed),
    ]
    latency = " ".join([f"B{ms}(1,{int(count * share)})" for ms, share in _LATENCY])
    lines = []
    for slot in range(SLOTS):
        by = f"slot.{slot}.by.{digest}.tries.1"
        for protocol, outcome, value in outcomes:
            sizes = " ".join([f"B{size}(1,{int(value * share)})" for size, share in _SIZES])
            lines.append(f"sli.request.{name}{protocol}.{by}.{outcome}: {sizes} B1e+15(1,{value})")
        lines.append(f"sli.latency.{name}.try.1.slot.{slot}.code.200.grpc..flags.-: {latency}")
    return lines


_MS = (
    1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 250, 300, 400, 500, 750, 1000, 1500, 2000, 3000, 5000, 10000,
)  # fmt: skip
_LATENCY = [(ms, 0.12 * i if ms <= 20 else 0.999 if ms < 200 else 1.0) for i, ms in enumerate(_MS, 1)]
_SIZES = [(size, min(1.0, 0.2 * i)) for i, size in enumerate((256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304))]
