"""Reads this node's GPUs again and again, and gives each process to the server that it belongs to."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from accounts.core.access import Actor
from serving.targets import actions, queries
from serving.targets.agent.gpu_reader import GpuReader
from serving.targets.agent.process_use import families_of
from serving.targets.core.gpu import GpuReading, memory_by_server, with_servers

#: While a gate may measure, and otherwise.
_READ_EVERY_S, _REST_S = 1.0, 5.0
#: What was read is told for so long.
_HOLDS_S = 5.0


class GpuMeter:
    """In a thread of its own: a driver whose GPU fell off the bus may not answer for minutes, and the node's heartbeat goes on.

    `second` is asked where NVML tells nothing, as in a container without the driver's library.
    """

    def __init__(self, *, second: Callable[[], GpuReading] | None = None, now: Callable[[], float] = time.time) -> None:
        self._reader, self._second, self._now = GpuReader(), second, now
        self._last = GpuReading(0.0)
        self._servers: dict[int, int] = {}

    def read(self, *, actor: Actor, node: str) -> float:
        """Reads them once, and writes it down; in how many seconds that is to be done again."""
        servers = dict(queries.current_servers().filter(replica__node=node).values_list("pid", "pk"))
        reading = self._read()
        has_processes = any(gpu.processes for gpu in reading.gpus)
        roots = families_of(servers) if servers and has_processes else {}
        is_new = reading.at_s > self._last.at_s
        self._last = with_servers(reading, {pid: servers[root] for pid, root in roots.items()})
        self._servers = servers
        is_kept = is_new and bool(reading.gpus) and queries.measured_servers(node).exists()
        actions.record_gpus(actor=actor, node=node, reading=self._last, is_kept=is_kept)
        return _READ_EVERY_S if is_kept else _REST_S

    def _read(self) -> GpuReading:
        reading = self._reader.read()
        if not reading.unknown or self._second is None:
            return reading
        other = self._second()
        return other if other.gpus else replace(reading, unknown=f"{reading.unknown}; {other.unknown}")

    def memory(self, pids: Collection[int]) -> Mapping[int, int]:
        """`serving.targets.agent.meter.GpuMemory`, of the last reading; nothing once that is old. For any thread."""
        if self._now() - self._last.at_s > _HOLDS_S:
            return {}
        held = memory_by_server(self._last)
        return {pid: held[self._servers[pid]] for pid in pids if self._servers.get(pid) in held}
