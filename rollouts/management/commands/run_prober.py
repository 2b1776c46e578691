"""`manage.py run_prober [--address HOST:PORT]`: the prober, in the foreground."""

from __future__ import annotations

import logging
import signal
from argparse import ArgumentParser
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from rollouts.prober.endpoint import MirrorEndpoint
from rollouts.prober.prober import Prober
from serving.core.routes import Prober as Address

#: Where it listens when no setting says so: golden items are asked in any case.
DEFAULT_ADDRESS = "127.0.0.1:18010"


class Command(BaseCommand):
    help = "Compares the releases of live rollouts on mirrored requests and golden items. Two may run: one leads."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--address",
            default=settings.PROBER_ADDRESS or DEFAULT_ADDRESS,
            help="host:port to listen on for mirrored requests (default: %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        try:
            address = Address.at(options["address"])
        except ValueError as error:
            raise CommandError(f"{error}; give --address as host:port") from None
        if address is None:
            raise CommandError("give --address as host:port")
        prober = Prober()
        config = uvicorn.Config(
            MirrorEndpoint(prober),
            host=address.host,
            port=address.port,
            loop="uvloop",
            http="httptools",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        # The server ends on these and raises them again when it has ended; without handlers that would end the process.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: None)
        self.stdout.write(f"prober {prober.owner} listens on {address.host}:{address.port}")
        prober.start()
        try:
            uvicorn.Server(config).run()
        finally:
            prober.stop()
