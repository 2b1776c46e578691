"""A real Prometheus for tests, and an exporter that it scrapes several times a second."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import math
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.rigs.gateway_rig import free_port, wait_until
from tests.support.rigs.parts import prometheus

SCRAPE_S = 0.1


class Exporter:
    """Exposes what it is told to, as `/metrics`. `is_down` makes scrapes fail."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.is_down = False
        self.scrapes = 0
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.scrapes += 1
                body = owner.page().encode()
                self.send_response(500 if owner.is_down else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def page(self) -> str:
        lines = []
        for (metric, labels), value in list(self.values.items()):
            said = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(value))
            named = ",".join(f'{name}="{text}"' for name, text in labels)
            lines.append(f"{metric}{{{named}}} {said}\n")
        return "".join(lines)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class PrometheusProcess:
    """Prometheus with its data in `folder`; it may be stopped and started again on the same port and data.

    `job` is what it scrapes, `rules` are files of rules, evaluated after each scrape.
    """

    def __init__(
        self, folder: Path, job: Mapping[str, Any], every_s: float = SCRAPE_S, rules: Sequence[Path] = ()
    ) -> None:
        self.folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        interval = f"{every_s * 1000:.0f}ms"
        told = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [str(file) for file in rules],
            "scrape_configs": [{"job_name": "signals", **job}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(told))

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        argv = [
            str(prometheus()),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        with (self.folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        wait_until(lambda: self._get("/-/ready") == 200, "Prometheus to be ready")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def has(self, query: str) -> bool:
        return bool(self.ask(query))

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that a query gives: {metric: labels, value: [time, text]}. Raises KeyError for a query that is refused."""
        found: list[dict[str, Any]] = self.read(f"query?query={quote(query)}")["result"]
        return found

    def read(self, path: str) -> dict[str, Any]:
        """`data` of an answer of /api/v1/. Raises KeyError for what is refused."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(line):
            line.request("GET", f"/api/v1/{path}")
            found: dict[str, Any] = json.load(line.getresponse())["data"]
            return found

    def _get(self, path: str) -> int:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(line), contextlib.suppress(OSError):
            line.request("GET", path)
            return line.getresponse().status
        return 0


class ScrapedExporter(PrometheusProcess):
    """A Prometheus that scrapes an `Exporter`."""

    def __init__(self, folder: Path, exporter: Exporter) -> None:
        self.exporter = exporter
        super().__init__(folder, {"static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]})

    def scraped(self) -> None:
        """Waits until what the exporter says now has been read, and can be asked for."""
        seen = self.exporter.scrapes
        wait_until(lambda: self.exporter.scrapes >= seen + 2, "the first is written once the second begins")


@contextlib.contextmanager
def prometheus_process(folder: Path) -> Iterator[ScrapedExporter]:
    exporter = Exporter()
    process = ScrapedExporter(folder, exporter)
    try:
        process.start()
        yield process
    finally:
        process.stop()
        exporter.close()
