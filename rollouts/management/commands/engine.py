"""`manage.py engine`: the rollout loop, in the foreground."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import connection

from ledger.queries.clock import DatabaseClock
from rollouts.engine.loop import Engine
from rollouts.engine.prometheus_reader import PrometheusReader
from rollouts.engine.stable_traffic import StableTraffic
from rollouts.engine.timings import EngineTimings
from rollouts.watch.stable_watch import StableWatch
from serving.traffic.actions.recorder import Recorder
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.adapters.envoy_hosts import EnvoyHosts
from serving.traffic.control_plane import change_listener
from serving.wiring import external_metrics


class Command(BaseCommand):
    requires_system_checks: list[str] = []  # they judge the code, and load every page: `make test` asks them
    timings = EngineTimings()
    help = "Runs the rollout engine. Two may run: one leads. SIGTERM ends this one and hands leadership over at once."

    def handle(self, *args: Any, **options: Any) -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        _resign_when_frozen(settings.ENGINE_LEASE_S)
        clock = DatabaseClock()
        engine = Engine(
            EnvoyCounters(now=clock.now, tls=settings.XDS_TLS),
            hosts=EnvoyHosts(tls=settings.XDS_TLS),
            clock=clock,
            external=PrometheusReader(external_metrics()),
            timings=self.timings,
        )

        stopping = threading.Event()

        traffic = StableTraffic(EnvoyCounters(now=clock.now, tls=settings.XDS_TLS), engine.lead)
        watch = StableWatch(
            EnvoyCounters(now=clock.now, tls=settings.XDS_TLS), engine.lead, clock.now, Recorder(engine.lead)
        )
        for name, run in (("stable-traffic", traffic.run), ("stable-watch", watch.run)):
            threading.Thread(target=run, args=(stopping,), name=name, daemon=True).start()

        def on_signal(number: int, frame: FrameType | None) -> None:
            stopping.set()
            engine.stop()

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
        change_listener.listen(engine.wake)
        self.stdout.write(f"engine {engine.owner}: a tick every {engine.tick_s:g} s, lease {engine.lease_s:g} s")
        engine.run()


def _resign_when_frozen(lease_s: float) -> None:
    """The database ends a transaction of this process that stands still for a whole lease: another engine leads by then,
    and must not wait for what a frozen one holds locked."""
    options = connection.settings_dict["OPTIONS"]
    options["options"] = f"{options.get('options', '')} -c idle_in_transaction_session_timeout={lease_s * 1000:.0f}"
