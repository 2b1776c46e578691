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
from serving.environments.core.addresses import Address
from serving.targets.adapters.listening import bound
from serving.traffic.adapters.mirror_secret import mirror_secret

#: Where it listens when no setting says so: golden items are asked in any case.
DEFAULT_ADDRESS = "127.0.0.1:18010"


class Command(BaseCommand):
    requires_system_checks: list[str] = []  # they judge the code, and load every page: `make test` asks them
    help = "Compares the releases of live rollouts on mirrored requests and golden items. Two may run: one leads."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--address",
            default=settings.PROBER_ADDRESS or DEFAULT_ADDRESS,
            help="host:port or unix:/path to listen on for mirrored requests (default: %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        try:
            listening = bound(Address.at(options["address"]))
        except (ValueError, OSError) as error:
            raise CommandError(f"The prober cannot listen: {error}.") from None
        prober = Prober()
        config = uvicorn.Config(
            MirrorEndpoint(prober, mirror_secret()),
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
        self.stdout.write(f"prober {prober.owner} listens on {options['address']}")
        prober.start()
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            prober.stop()
