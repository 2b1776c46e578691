"""Real load balancers in front of a gateway: nginx and HAProxy with their own defaults."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.rigs.gateway_rig import wait_until
from tests.support.rigs.parts import system_program
from tests.support.servers.stub_server import free_port

_NGINX = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  {http}
  server {{
    listen 127.0.0.1:{port}{listen};
    {server}
  }}
}}
"""
_HAPROXY = """
global
  stats socket {control}
defaults
  mode {mode}
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  {defaults}
frontend front
  bind 127.0.0.1:{port}{bind}
  default_backend gateways
backend gateways
  {backend}
  server gateway 127.0.0.1:{gateway} check inter 200ms {server}
"""


@contextlib.contextmanager
def _running(argv: list[str], folder: Path, port: int) -> Iterator[None]:
    log = folder / "output.log"
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        wait_until(lambda: _is_open(port) or process.poll() is not None, f"{argv[0]} listens")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(60)


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


@contextlib.contextmanager
def nginx(folder: Path, server: str, *, http: str = "", listen: str = "") -> Iterator[int]:
    """The port of an nginx. `server` and `http` are lines of those blocks, `listen` the port's protocols."""
    folder.mkdir()
    port, user = free_port(), "user root;" if os.geteuid() == 0 else ""
    file = folder / "nginx.conf"
    file.write_text(_NGINX.format(folder=folder, port=port, http=http, listen=listen, server=server, user=user))
    argv = [str(system_program("nginx")), "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log")]
    with _running(argv, folder, port):
        yield port


class HAProxy:
    """A HAProxy, and its view of the gateway behind it."""

    def __init__(self, port: int, control: Path) -> None:
        self.port, self._control = port, control

    def check(self) -> tuple[str, str]:
        """The gateway's state and its last health check, such as (UP, L7OK)."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self._control))
            line.sendall(b"show stat\n")
            said = b"".join(iter(lambda: line.recv(65536), b"")).decode()
        rows = csv.DictReader(io.StringIO(said.removeprefix("# ")))
        found = next(row for row in rows if row["svname"] == "gateway")
        return found["status"], found["check_status"].removeprefix("* ")  # the star: another check is under way

    def await_check(self, *expected: tuple[str, str]) -> None:
        def is_so() -> bool:
            with contextlib.suppress(ConnectionError, FileNotFoundError):  # it has only just begun
                return self.check() in expected
            return False

        wait_until(is_so, f"the health check is one of {expected}")


@contextlib.contextmanager
def haproxy(
    folder: Path,
    gateway: int,
    *,
    mode: str = "http",
    defaults: str = "",
    backend: str = "",
    server: str = "",
    bind: str = "",
) -> Iterator[HAProxy]:
    """In front of the gateway at this port. The rest are lines of the configuration, none by default."""
    folder.mkdir()
    port, file = free_port(), folder / "haproxy.cfg"
    control = Path(tempfile.mkdtemp(prefix="sg-", dir="/tmp")) / "haproxy.sock"  # a socket's path has at most 107 bytes
    file.write_text(
        _HAPROXY.format(
            control=control, port=port, gateway=gateway, mode=mode, defaults=defaults, backend=backend, server=server, bind=bind
        )
    )  # fmt: skip
    with _running([str(system_program("haproxy")), "-db", "-f", str(file)], folder, port):
        yield HAProxy(port, control)
    shutil.rmtree(control.parent)
