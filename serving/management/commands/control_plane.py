"""`manage.py control_plane`: serves routes and clusters to the gateways, from the database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from serving.environments.core.addresses import Address
from serving.traffic.control_plane import change_listener
from serving.traffic.control_plane.plane import ControlPlane


class Command(BaseCommand):
    requires_system_checks: list[str] = []  # they judge the code, and load every page: `make test` asks them
    help = "Serves routes and clusters to the gateways (xDS). While it is away, gateways keep the last ones."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--address",
            default=settings.XDS_ADDRESS,
            help="host:port or unix:/path to listen on (default: %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        try:
            address = Address.at(options["address"])
        except ValueError as error:
            raise CommandError(f"The control plane cannot listen: {error}.") from None
        if not address.is_of_this_machine and settings.XDS_TLS is None:
            raise CommandError(
                f"The control plane listens on {options['address']}, where other machines reach it, and would believe any of them. Set "
                "SLUICEGATE_XDS_CERTIFICATE_FILE, SLUICEGATE_XDS_KEY_FILE and SLUICEGATE_XDS_CA_FILE, or listen on this machine alone."
            )
        if not address.path and settings.XDS_TLS is None:
            self.stderr.write(
                f"Every user of this machine can say on {options['address']} that it is a gateway; unix:/path is closed."
            )
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
        await plane.run(
            address, settings.XDS_TLS, on_open=lambda port: self.stdout.write(f"control plane listens on {address}")
        )
