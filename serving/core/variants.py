"""Another batching for a release, which is tried beside its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Batching:
    """How many items share a run at most (0: the model has no batch axis), and how many µs the first waits for others.

    `max_queue_delay_us` None: no batcher, each request runs by itself.
    """

    max_batch_size: int
    max_queue_delay_us: int | None

    @classmethod
    def of(cls, serving: Mapping[str, Any]) -> Batching:
        """That of a manifest's `serving`."""
        batcher = serving.get("dynamic_batching")
        delay_us = None if batcher is None else int(batcher.get("max_queue_delay_us") or 0)
        return cls(int(serving["max_batch_size"]), delay_us)

    def within(self, serving: Mapping[str, Any]) -> dict[str, Any]:
        """The manifest's `serving` with this batching; preferred batch sizes and warm-up requests go where they are larger."""
        found = {**serving, "max_batch_size": self.max_batch_size}
        if "warmup" in serving:
            found["warmup"] = [
                one for one in serving["warmup"] if one.get("batch_size", 1) <= max(1, self.max_batch_size)
            ]
        if self.max_queue_delay_us is None:
            return found
        batcher = serving.get("dynamic_batching") or {}
        preferred = [size for size in batcher.get("preferred_batch_size") or () if size <= self.max_batch_size]
        batching = {**batcher, "preferred_batch_size": preferred, "max_queue_delay_us": self.max_queue_delay_us}
        return {**found, "dynamic_batching": batching}
