"""A web server with a certificate of a private CA, and a proxy that alone knows the names of a company's network."""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from serving.environments.core.addresses import TlsFiles


class _Running:
    """A server in a thread, on a loopback port of its own."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], tls: TlsFiles | None = None) -> None:
        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(
                self, *_: Any
            ) -> None:  # a handshake that the client breaks off is what some tests are about
                pass

        self._server = Server(("127.0.0.1", 0), handler)
        self.port = self._server.server_address[1]
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class SecureServer(_Running):
    """Answers `answer` as JSON to everything, over https if it has a certificate; `asked` has (method, path) of each request."""

    def __init__(self, tls: TlsFiles | None, answer: Any) -> None:
        self.asked: list[tuple[str, str]] = []
        running = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                running.asked.append((self.command, self.path))
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = _serve

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(Handler, tls)


class Proxy(_Running):
    """Speaks CONNECT and forwards plain requests. `names` are the hosts that it alone resolves, each with its loopback port.

    `asked` has the targets: `CONNECT host:port` or `GET http://host/…`. `password`: "user:password" that it demands, in base64.
    """

    def __init__(self, names: dict[str, int], password: str = "") -> None:
        self.asked: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                host = self.path.partition(":")[0]
                if not self._is_let_in(f"CONNECT {self.path}", host):
                    return
                with socket.create_connection(("127.0.0.1", names[host])) as line:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.flush()
                    _both_ways(self.connection, line)
                self.close_connection = True

            def _forward(self) -> None:
                parts = urlsplit(self.path)
                host = parts.hostname or ""
                if not self._is_let_in(f"{self.command} {self.path}", host):
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                head = f"{self.command} {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
                head += f"Content-Length: {len(body)}\r\n\r\n"
                with socket.create_connection(("127.0.0.1", names[host])) as line:
                    line.sendall(head.encode() + body)
                    while piece := line.recv(65536):
                        self.wfile.write(piece)
                self.close_connection = True

            do_GET = do_POST = do_PUT = _forward

            def _is_let_in(self, asked: str, host: str) -> bool:
                proxy.asked.append(asked)
                if password and self.headers.get("Proxy-Authorization") != f"Basic {password}":
                    self.send_error(407)
                    return False
                if host not in names:
                    self.send_error(502)
                    return False
                return True

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(Handler)
        self.url = f"http://127.0.0.1:{self.port}"


def _both_ways(one: socket.socket, other: socket.socket) -> None:
    """Carries bytes until one side ends."""
    while True:
        ready, _, _ = select.select([one, other], [], [], 30)
        if not ready:
            return
        for sock in ready:
            piece = sock.recv(65536)
            if not piece:
                return
            (other if sock is one else one).sendall(piece)
