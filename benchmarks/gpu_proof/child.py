"""One stage in a process of its own: `python -m benchmarks.gpu_proof.child`. Its standard input has the configuration and the steps'
names; its standard output has one JSON line for each outcome."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace

from benchmarks.gpu_proof.outcome import attempt
from benchmarks.gpu_proof.scene import Config, Scene
from benchmarks.gpu_proof.steps import PARTS


def main() -> int:
    given = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no outcome
    steps = {step.name: step for step in PARTS[given["part"]]}
    scene = Scene(Config.of(given["config"]))
    try:
        for name in given["steps"]:
            began = time.monotonic()
            outcome = attempt(steps[name], scene)
            scene.config.earlier[name] = dict(outcome.numbers)
            outcome = replace(outcome, seconds=round(time.monotonic() - began, 2))
            out.write(json.dumps({"name": name, **outcome.as_json()}, default=_plain) + "\n")
    finally:
        scene.close()
    return 0


def _plain(value: object) -> object:
    """Numbers of numpy as Python's, and anything else as text."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


if __name__ == "__main__":
    sys.exit(main())
