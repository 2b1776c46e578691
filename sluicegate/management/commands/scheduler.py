"""`manage.py scheduler`: sends due jobs and wakes the dispatcher, in the foreground."""

from __future__ import annotations

import logging
import signal
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from prometheus_client import REGISTRY

from insights.collector import InstallationCollector
from ledger.queries.clock import DatabaseClock
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from sluicegate.scheduler import Scheduler


class Command(BaseCommand):
    requires_system_checks: list[str] = []  # they judge the code, and load every page: `make test` asks them
    help = "Hands due jobs to the workers. Several may run: one leads. SIGTERM ends this one and hands leadership over at once."

    def handle(self, *args: Any, **options: Any) -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        scheduler = Scheduler()
        counters = EnvoyCounters(now=DatabaseClock().now, tls=settings.XDS_TLS)
        REGISTRY.register(InstallationCollector(counters, leads=lambda: scheduler.lead.token is not None))

        def on_signal(number: int, frame: FrameType | None) -> None:
            scheduler.stop()

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
        self.stdout.write(f"scheduler {scheduler.lead.owner}: a look every {scheduler.every_s:g} s")
        scheduler.run()
