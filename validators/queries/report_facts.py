"""Facts of a report on where and with what the gates ran."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from registry.queries import manifest_of
from serving.models import Deployment
from validators.core.telemetry import gpu_facts


def report_facts(deployment: Deployment | None) -> dict[str, Any]:
    """{"hardware", "versions"}; what is not known is said to be unknown."""
    versions: dict[str, Any] = {"python": platform.python_version(), "numpy": np.__version__}
    if deployment is None:
        return {"hardware": {"node": None, "gpu": gpu_facts({})}, "versions": versions}
    node = deployment.node
    image = manifest_of(deployment.release)["runtime"]["image"]
    runtime: dict[str, Any] = next((own for own in node.runtimes if own.get("image") == image), {})
    return {
        "hardware": {"node": node.name, "facts": node.facts, "gpu": gpu_facts(node.facts)},
        "versions": {**versions, **runtime.get("versions", {})},
        "deployment": {"timings": deployment.timings, "recoveries": deployment.recoveries},
    }
