"""The five release folders of the demo, built by examples/sentiment."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError
from sluicegate.cli.output import Output
from sluicegate.client import Client
from sluicegate.stack.machine import BASE_DIR

EXAMPLE = BASE_DIR / "examples" / "sentiment"
MODEL_FILE, GOLDEN_FILE = EXAMPLE / "model.yaml", EXAMPLE / "golden.jsonl"
NAMES = ("r1", "r2", "r3", "r4", "r5")


def runtime_of(client: Client, *, within_s: float = 30.0) -> dict[str, Any]:
    """A runtime that serves ONNX graphs, once a node has reported one. Raises CommandError (exit 2)."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for runtime in client.pages("/runtimes"):
            if "sluicegate-onnx" in runtime["backends"]:
                return runtime
        time.sleep(0.3)
    raise CommandError(
        f"No node offered a runtime for ONNX within {within_s:g} s.",
        exit_code=exits.INFRASTRUCTURE,
        next_step="Look at the agent's log; `make setup` installs the serving environment.",
    )


def build(runtime_image: str, output: Output, *, out: Path = BASE_DIR / ".build" / "sentiment") -> dict[str, Path]:
    """{"r1": folder, …}. Weights are fetched and converted on the first run only. Raises CommandError (exit 2)."""
    argv = [sys.executable, str(EXAMPLE / "build.py"), "--runtime", runtime_image, "--out", str(out)]
    done = subprocess.run(argv, capture_output=True, text=True)
    for line in done.stdout.splitlines()[:-1]:
        output.say(f"  {line}")
    if done.returncode != 0:
        raise CommandError(
            f"The example releases could not be built: {done.stderr.strip()[-600:]}",
            exit_code=exits.INFRASTRUCTURE,
            next_step=f"Run {' '.join(argv)} to see why.",
        )
    return {name: out / name for name in NAMES}
