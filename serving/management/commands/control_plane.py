"""`manage.py control_plane`: serves routes and clusters to the gateways, from the database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from serving.control_plane import change_listener
from serving.control_plane.plane import ControlPlane


class Command(BaseCommand):
    help = "Serves routes and clusters to the gateways (xDS). While it is away, gateways keep the last ones."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--address", default=settings.XDS_ADDRESS, help="host:port to listen on (default: %(default)s)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._serve(options["address"]))

    async def _serve(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        plane = ControlPlane()
        change_listener.listen(lambda: loop.call_soon_threadsafe(plane.notice.set))
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        await plane.run(address, on_open=lambda port: self.stdout.write(f"control plane listens on port {port}"))
