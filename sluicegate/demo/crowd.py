"""Starts and stops the demo's users, a process of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from sluicegate.demo.releases import GOLDEN_FILE
from sluicegate.stack import Stack, child
from sluicegate.stack.machine import BASE_DIR

RATE_PER_S = 22.0


class Crowd:
    """The users of one model, from the moment at which the gateway first answers for it until `stop`."""

    def __init__(self, stack: Stack, model: str) -> None:
        self.stack, self.model = stack, model
        self.log = stack.state_dir / "traffic.jsonl"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_there(self) -> bool:
        return self.process is not None

    def come(self) -> bool:
        """Lets the users in if the gateway answers for the model now; whether they are in."""
        if self.process is None and self._answers():
            argv = [
                sys.executable,
                "-m",
                "sluicegate.demo.traffic",
                "--http",
                self.stack.gateway_http,
                "--grpc",
                self.stack.gateway_grpc,
                "--model",
                self.model,
                "--golden",
                str(GOLDEN_FILE),
                "--log",
                str(self.log),
                "--rate",
                str(RATE_PER_S),
            ]
            with (self.stack.state_dir / "logs" / "traffic.log").open("wb") as log:
                self.process = child.start(argv, log=log, cwd=BASE_DIR, death_signal=signal.SIGTERM)
        return self.is_there

    def is_well(self) -> bool:
        """Whether the users' own process still runs; a demo without users proves nothing."""
        return self.process is not None and self.process.poll() is None

    def stop(self) -> Path:
        """Ends it after the requests under way, and gives the log."""
        if self.process is not None:
            child.stop(self.process, grace_s=20)
        return self.log

    def _answers(self) -> bool:
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["Is anybody there?"]}]}
        url = f"{self.stack.gateway_http}/v2/models/{self.model}/infer"
        try:
            return httpx.post(url, content=json.dumps(body), timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False
