"""`manage.py engine`: the rollout loop, in the foreground."""

from __future__ import annotations

import logging
import signal
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand

from rollouts.engine import Engine
from serving.envoy import EnvoyCounters
from serving.xds import notices


class Command(BaseCommand):
    help = "Runs the rollout engine. Two may run: one leads. SIGTERM ends this one and hands leadership over at once."

    def handle(self, *args: Any, **options: Any) -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        engine = Engine(EnvoyCounters())

        def on_signal(number: int, frame: FrameType | None) -> None:
            engine.stop()

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
        notices.listen(engine.wake)
        self.stdout.write(f"engine {engine.owner}: a tick every {engine.tick_s:g} s, lease {engine.lease_s:g} s")
        engine.run()
