"""`manage.py agent`: this machine's agent, in the foreground, with an agent for each server that environments list."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from ledger.actions.leadership import Leadership
from ledger.adapters.process_names import process_name
from ledger.queries.clock import DatabaseClock
from serving import wiring
from serving.models import ListedServer
from serving.targets.agent.gpu_meter import GpuMeter
from serving.targets.agent.launcher import FOUND_OUT_S
from serving.targets.agent.listed_servers import ListedServers
from serving.targets.agent.node_agent import Agent
from serving.targets.agent.sleep_watch import LEASE, LEASE_S, SleepWatch
from serving.targets.core.static_servers import NOTHING
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.adapters.envoy_hosts import EnvoyHosts


class Command(BaseCommand):
    requires_system_checks: list[str] = []  # they judge the code, and load every page: `make test` asks them
    help = (
        "Runs the node agent: starts, watches and ends this machine's inference servers, and gives releases to the servers that "
        "environments list. Puts quiet models to sleep and wakes them. SIGTERM ends the agent alone."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        blobs = wiring.blob_cache()
        launcher = wiring.launcher(blobs)
        agent = Agent(
            node=settings.NODE_NAME,
            servers=launcher.servers,
            launcher=launcher,
            connect=wiring.connect,
            drift_check_every_s=settings.DRIFT_CHECK_EVERY_S,
            gpus=GpuMeter(second=wiring.gpus_by_dcgm()),
            blobs=blobs,
        )

        listed = ListedServers(_agent_of)
        stopping = threading.Event()

        def stop(number: int, frame: FrameType | None) -> None:
            stopping.set()
            listed.stop()
            agent.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        offered = [*(one["image"] for one in launcher.runtimes()), launcher.missing()]
        self.stdout.write(f"agent of node {settings.NODE_NAME}: {' '.join(offered).strip()}")
        contained = launcher.containment(within_s=FOUND_OUT_S)
        self.stdout.write(f"containment {contained['tier']}. {contained['says']}")
        tending = threading.Thread(target=listed.run, name="listed-servers", daemon=True)
        tending.start()
        watching = threading.Thread(target=_sleep_watch().run, args=(stopping,), name="sleep-watch", daemon=True)
        watching.start()
        agent.run()
        tending.join()
        watching.join(timeout=2.0)


def _sleep_watch() -> SleepWatch:
    clock, tls = DatabaseClock(), settings.XDS_TLS
    lead = Leadership(LEASE, process_name(), LEASE_S)
    return SleepWatch(EnvoyCounters(now=clock.now, tls=tls), EnvoyHosts(tls=tls), lead, clock)


def _agent_of(server: ListedServer) -> Agent:
    blobs = wiring.blob_cache(server)
    launcher = wiring.static_launcher(server, blobs)
    return Agent(
        node=server.node_id,
        servers=launcher.servers,
        launcher=launcher,
        connect=wiring.connect,
        blobs=None if server.loads == NOTHING else blobs,
        listed_at=server.listed_at,
    )
