"""`manage.py agent`: this machine's agent, in the foreground, with an agent for each server that environments list."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from serving import wiring
from serving.agent.gpu_meter import GpuMeter
from serving.agent.launcher import FOUND_OUT_S
from serving.agent.listed_servers import ListedServers
from serving.agent.node_agent import Agent
from serving.core.static_servers import NOTHING
from serving.models import ListedServer


class Command(BaseCommand):
    requires_system_checks: list[str] = []  # they judge the code, and load every page: `make test` asks them
    help = (
        "Runs the node agent: starts, watches and ends this machine's inference servers, and gives releases to the servers that "
        "environments list. SIGTERM ends the agent alone."
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

        def stop(number: int, frame: FrameType | None) -> None:
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
        agent.run()
        tending.join()


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
