"""Facts of a report on where and with what the gates ran."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from serving.targets.port import Trial
from validators.core.telemetry import gpu_facts


def report_facts(trial: Trial | None) -> dict[str, Any]:
    """{"hardware", "versions", "deployment"}; a fact that is not known is stated as unknown."""
    versions: dict[str, Any] = {"python": platform.python_version(), "numpy": np.__version__}
    if trial is None:
        return {"hardware": {"node": None, "gpu": gpu_facts({})}, "versions": versions}
    machine = trial.machine
    return {
        "hardware": {"node": machine.name, "facts": machine.facts, "gpu": gpu_facts(machine.facts)},
        "versions": {**versions, **trial.versions},
        "deployment": {"timings": trial.timings, "recoveries": trial.recoveries},
    }
