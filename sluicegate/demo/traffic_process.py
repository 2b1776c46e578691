"""Starts and stops the demo's users, a process of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError
from sluicegate.demo.capacity import MEASURE_S, Capacity
from sluicegate.demo.releases import GOLDEN_FILE
from sluicegate.demo.traffic import PROTOCOLS
from sluicegate.stack import Stack, child
from sluicegate.stack.machine import BASE_DIR

#: A measurement that is not over by then found no server.
_MEASURED_WITHIN_S = 60.0


class TrafficProcess:
    """The users of one model, from the moment at which the gateway first answers for it until `stop`."""

    def __init__(self, stack: Stack, model: str) -> None:
        self.stack, self.model = stack, model
        self.log = stack.state_dir / "traffic.jsonl"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_there(self) -> bool:
        return self.process is not None

    def is_answered(self) -> bool:
        """Whether the gateway answers for the model now."""
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["Is anybody there?"]}]}
        url = f"{self.stack.gateway_http}/v2/models/{self.model}/infer"
        try:
            return httpx.post(url, content=json.dumps(body), timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def measure(self) -> Capacity:
        """What is answered to users who wait for their answers, in a process as theirs.

        Raises CommandError: exit 2 where it could not be measured, exit 1 where a request failed, which is no matter of size.
        """
        try:
            said = child.run(self._argv("--measure", str(MEASURE_S)), timeout_s=_MEASURED_WITHIN_S, cwd=BASE_DIR)
        except child.ChildFailed as error:
            raise CommandError(
                f"What this machine can serve could not be measured: {error}",
                exit_code=exits.INFRASTRUCTURE,
                next_step="Run the demo again.",
            ) from error
        found = json.loads(said)
        if found["failed"]:
            raise CommandError(
                f"{found['failed']} requests failed while the gateway's capacity was measured, and {found['answered']} were "
                f"answered. The first failed {found['error']}.",
                exit_code=exits.FAILED,
                next_step=f"Look into {self.stack.state_dir / 'logs'} for what the gateway and the model's server say.",
            )
        return Capacity(float(found["per_s"]), at_once=len(PROTOCOLS), seconds=MEASURE_S)

    def begin(self, rate_per_s: float) -> None:
        """Starts the users' traffic, once, at this many requests a second, until `stop`."""
        if self.process is None:
            with (self.stack.state_dir / "logs" / "traffic.log").open("wb") as log:
                self.process = child.start(
                    self._argv("--rate", str(rate_per_s)), log=log, cwd=BASE_DIR, death_signal=signal.SIGTERM
                )

    def _argv(self, *more: str) -> list[str]:
        return [
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
            *more,
        ]

    def is_well(self) -> bool:
        """Whether the users' own process still runs; a demo without users proves nothing."""
        return self.process is not None and self.process.poll() is None

    def stop(self) -> Path:
        """Ends it after the requests under way, and gives the log."""
        if self.process is not None:
            child.stop(self.process, grace_s=20)
        return self.log
