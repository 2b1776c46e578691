"""Facts about the hardware under a gate run. What was not measured is `unknown`, which is never `ok`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Knowledge(StrEnum):
    KNOWN = "known"
    NONE = "none"  # somebody looked, and there is no GPU
    UNKNOWN = "unknown"


def gpu_facts(node_facts: Mapping[str, Any]) -> dict[str, Any]:
    """{"state", "gpus", "why"} from what a node's agent reported. `gpus` is a list, or None where it was not or could not be determined."""
    gpus = node_facts.get("gpus")
    if not isinstance(gpus, list):
        why = str(node_facts.get("gpus_unknown") or "the node's agent reported nothing about GPUs")
        return {"state": Knowledge.UNKNOWN.value, "gpus": None, "why": why}
    if not gpus:
        return {"state": Knowledge.NONE.value, "gpus": [], "why": "the node's agent found no GPU"}
    return {"state": Knowledge.KNOWN.value, "gpus": list(gpus), "why": ""}
