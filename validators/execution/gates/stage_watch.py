"""Where the time went while a gate asked its server, by the server's own counters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from serving.ports import InferenceError
from validators.core.stages import stages_between
from validators.execution.gates.context import GateContext


class StageWatch:
    """Watches from the moment it is made."""

    def __init__(self, context: GateContext) -> None:
        self._context = context
        self._before, self._began = self._statistics(), time.monotonic()

    def split(self) -> dict[str, float] | None:
        """The stages of all requests since then; None where the server does not tell."""
        after, wall_s = self._statistics(), time.monotonic() - self._began
        return stages_between(self._before, after, wall_s=wall_s, instances=self._context.instances)

    def _statistics(self) -> Mapping[str, Any]:
        """The counters; none where the server does not tell them, which is for the requests to judge."""
        try:
            return self._context.server.statistics(self._context.model)
        except InferenceError:
            return {}
