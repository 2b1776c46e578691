"""The management address of a process: /livez, /readyz and /metrics, for probes and Prometheus. It asks for no sign-in.

`SLUICEGATE_MANAGEMENT_ADDRESS` is host:port; port 0 takes a free one. Without it there is none. The process tells the database every
15 s where it answers, so that Prometheus finds it (`insights.api.targets`).
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from prometheus_client import disable_created_metrics, make_wsgi_app

from ledger.actions.processes import note_process

log = structlog.get_logger(__name__)
TOLD_EVERY_S: Final = 15.0
#: Addresses that listen on every interface.
_EVERY: Final = frozenset({"0.0.0.0", "[::]", "::"})  # noqa: S104
#: Callers that are answered at a time.
MOST_AT_ONCE: Final = 8
#: A caller that sends nothing for so long is cut off.
SILENCE_S: Final = 10.0
_Start = Callable[[str, list[tuple[str, str]]], Any]


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a probe each second would fill the log."""


class ManagementServer(socketserver.ThreadingMixIn, WSGIServer):
    """Answers on `address` (host:port) until `close`. Raises OSError if it cannot listen there, ImproperlyConfigured for no address."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: str, name: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            said = f"SLUICEGATE_MANAGEMENT_ADDRESS={address!r} is no host:port; write one such as 127.0.0.1:9090, or 127.0.0.1:0."
            raise ImproperlyConfigured(said)
        super().__init__((host, int(port)), _Handler)
        disable_created_metrics()
        self.name = name
        reached = socket.gethostname() if host in _EVERY else host  # a container's name is how others reach it
        self.address = f"{reached}:{self.server_address[1]}"
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._metrics, self._closing = make_wsgi_app(), threading.Event()
        self.set_app(self._answer)
        for run, what in ((self.serve_forever, "management"), (self._tell, "management-told")):
            threading.Thread(target=run, name=what, daemon=True).start()

    def server_bind(self) -> None:
        """Without the look for a host's name, which may ask a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, of MOST_AT_ONCE; who comes beside these is cut off."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except Exception:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def close(self) -> None:
        self._closing.set()
        self.shutdown()
        self.server_close()

    def _answer(self, environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return self._metrics(environ, start)
        if path == "/livez":
            return _plain(start, "200 OK", f"{self.name} runs")
        if path == "/readyz":
            why = _why_not_ready()
            return _plain(start, "503 Service Unavailable" if why else "200 OK", why or f"{self.name} is ready")
        return _plain(start, "404 Not Found", "/livez, /readyz and /metrics are here")

    def _tell(self) -> None:
        while not self._closing.is_set():
            try:
                note_process(self.address, self.name)
            except Exception as error:  # the database may be away; the next turn retries
                log.info("management_address_not_told", address=self.address, error=str(error))
            finally:
                connection.close()
            self._closing.wait(TOLD_EVERY_S)


def _why_not_ready() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Exception as error:
        return f"The database does not answer: {type(error).__name__}."
    finally:
        connection.close()
    return ""


def _plain(start: _Start, status: str, said: str) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])  # a list of its own: the server adds to it
    return [f"{said}\n".encode()]


def serve_as_configured() -> None:
    """Begins to answer if an address is configured. Once for a process; logs the address."""
    if not settings.MANAGEMENT_ADDRESS or _served:
        return
    try:
        _served.append(ManagementServer(settings.MANAGEMENT_ADDRESS, settings.PROCESS_NAME))
    except OSError as error:  # a command beside a service may have its environment
        log.error("management_address_taken", address=settings.MANAGEMENT_ADDRESS, error=str(error))
        return
    log.info("management_address", address=_served[0].address, process=settings.PROCESS_NAME)


_served: list[ManagementServer] = []
