"""Whether a node can hold several releases at once, by their envelopes and the node's facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def shortage(facts: Mapping[str, Any], needs: Mapping[str, Mapping[str, Any]]) -> str:
    """Half a sentence when a node cannot hold all of these releases at once, as far as both sides are known; else empty.

    `facts`: the node's, with `memory_bytes` and `gpus` (names, None if unknown). `needs`: envelopes by name.
    """
    memory = {name: int(envelope.get("host", {}).get("memory_mib_min", 0)) for name, envelope in needs.items()}
    has_mib = facts.get("memory_bytes")
    if has_mib is not None and sum(memory.values()) > has_mib // 2**20:
        return f"{_listed(memory)} declare {sum(memory.values())} MiB of memory together, and it has {has_mib // 2**20} MiB"
    devices = {name: _own_devices(envelope) for name, envelope in needs.items()}
    gpus = facts.get("gpus")
    if gpus is not None and sum(devices.values()) > len(gpus):
        return f"{_listed(devices)} want {sum(devices.values())} GPUs of their own, and it has {len(gpus)}"
    return ""


def _own_devices(envelope: Mapping[str, Any]) -> int:
    """GPUs that the release uses alone."""
    accelerator = envelope.get("accelerator", {})
    return int(accelerator.get("count", 1)) if accelerator.get("exclusive") else 0


def _listed(needs: Mapping[str, int]) -> str:
    return ", ".join(name for name, amount in needs.items() if amount)
