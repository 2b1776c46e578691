"""The control plane's own process for tests, and a wire to its database that can be cut."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from django.conf import settings
from django.db import connection

from tests.support.rigs.gateway_rig import free_port
from tests.support.servers.stub_server import Loop, stop_listening

_NEVER_POLLS = """
import os, sys
import django
from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")
django.setup()
from serving.traffic.control_plane.plane import ControlPlane

ControlPlane.__init__.__kwdefaults__["poll_s"] = 3600.0
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


class Wire:
    """A TCP proxy to the database that can be cut."""

    def __init__(self, loop: Loop, host: str, port: int) -> None:
        self.port, self._loop, self._target = free_port(), loop, (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def join(self) -> None:
        async def start() -> None:
            self._server = await asyncio.start_server(self._pipe, "127.0.0.1", self.port)

        self._loop.run(start())

    def cut(self) -> None:
        async def stop() -> None:
            if self._server is not None:
                await stop_listening(self._server)
            for writer in list(self._writers):
                writer.transport.abort()

        self._loop.run(stop())

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._target[0].startswith("/"):
            path = f"{self._target[0]}/.s.PGSQL.{self._target[1]}"
            there_reader, there = await asyncio.open_unix_connection(path)
        else:
            there_reader, there = await asyncio.open_connection(*self._target)
        self._writers |= {writer, there}
        try:
            await asyncio.gather(_copy(reader, there), _copy(there_reader, writer))
        except asyncio.CancelledError:
            pass
        finally:
            for one in (writer, there):
                self._writers.discard(one)
                one.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()


class ControlPlaneProcess:
    def __init__(self, folder: Path, wire: Wire) -> None:
        self.port, self.log = free_port(), folder / "control_plane.log"
        self._wire = wire
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, polls: bool = True) -> None:
        """Without polls it reads the database again when it is told of a change, and at no other time."""
        values = connection.settings_dict
        secret = f":{values['PASSWORD']}" if values["PASSWORD"] else ""
        url = f"postgresql://{values['USER']}{secret}@127.0.0.1:{self._wire.port}/{values['NAME']}"
        env = {key: value for key, value in os.environ.items() if key != "DATABASE_URL_FILE"}
        begin = ["manage.py"] if polls else ["-c", _NEVER_POLLS]
        argv = [sys.executable, *begin, "control_plane", "--address", f"127.0.0.1:{self.port}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                argv, cwd=settings.BASE_DIR, env={**env, "DATABASE_URL": url}, stdout=log, stderr=log
            )

    def end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait(60)
        self._process = None
        return code

    def is_open(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 0.2).close()
        except OSError:
            return False
        return True

    def says(self, text: str) -> bool:
        return text in self.log.read_text()
