"""The page of counters: what the fake shows is read as Envoy's is, one that stands still is dated back, one that drips given up."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from serving.ports import GatewayError
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.core.request_limits import Limits
from tests.support.fakes.gateway import FakeGateway, envoy_page
from tests.support.rigs.gateway_rig import MODEL, Rig

STABLE, CANDIDATE = Rig.STABLE, Rig.CANDIDATE
LIMITS = Limits(timeout_s=6.0, attempt_timeout_s=0.75)


@contextmanager
def served(page: Callable[[], str]) -> Iterator[str]:
    """The URL of an admin page that is served here."""

    class Face(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            dump = {"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump", "last_updated": "start-1"}
            is_dump = self.path.startswith("/config_dump")
            body = (json.dumps({"configs": [dump]}) if is_dump else page()).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Face)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_fakes_page_says_what_the_fake_counted() -> None:
    fake = FakeGateway()
    for model in ("one", "two"):
        fake.set_route(model, stable=STABLE, candidate=CANDIDATE, candidate_bp=3000, limits=LIMITS)
        fake.set_arm(CANDIDATE, error_frac=0.5, shed_frac=0.1)
        fake.set_arm(STABLE, hang_frac=0.1, shed_frac=0.1)
        fake.traffic(100, model)
    fake.count("one", STABLE, attempts=50, errors=5, slow=7)
    truth = fake.read(gateway="g", admin_url="", timeout_s=1.0)
    with served(lambda: envoy_page(truth, uptime_s=5)) as url:
        found = EnvoyCounters().read(gateway="g", admin_url=url, timeout_s=1.0)
    assert set(found) == {"one", "two"}
    for model, counters in found.items():
        same = replace(truth[model], epoch=counters.epoch, read_at=counters.read_at)
        assert counters == same
    slow = found["one"].by_release[STABLE]
    assert slow.timed - slow.latency_us[1_000_000] == 7


def test_a_page_that_is_no_longer_brought_up_to_date_is_dated_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("serving.traffic.adapters.envoy_counters.time.monotonic", lambda: clock[0])
    uptime = [7]
    began = datetime(2030, 1, 1, tzinfo=UTC)
    counters = EnvoyCounters(now=lambda: began + timedelta(seconds=clock[0] - 1000))

    def read_after(seconds: float) -> float:
        clock[0] += seconds
        read = counters.read(gateway="g", admin_url=url, models=[MODEL], timeout_s=5.0)
        return (read[MODEL].read_at - began).total_seconds()

    with served(lambda: envoy_page({}, uptime_s=uptime[0])) as url:
        assert read_after(0) == 0
        assert read_after(0.9) == pytest.approx(0.9)  # whole seconds: nobody can tell yet
        assert [read_after(5), read_after(5), read_after(30)] == pytest.approx([1, 1, 1])
        uptime[0] += 1
        assert read_after(1) == pytest.approx(41.9)


def test_a_gateway_that_drips_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def drip() -> None:
            line, _ = server.accept()
            with line, suppress(OSError):
                line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n")
                while not stop.wait(0.05):
                    line.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(GatewayError) as caught:
            EnvoyCounters().read(gateway="g", admin_url=url, models=[MODEL], timeout_s=0.4)
        assert caught.value.reason == "timeout" and time.monotonic() - began < 20  # it drips for minutes
        stop.set()
        thread.join()
