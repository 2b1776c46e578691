"""Reads again and again what the servers of this node use, those that no user reaches: gates judge by it, also of one that died."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from accounts.core.access import Actor
from serving.targets import actions, queries
from serving.targets.agent.process_use import use_of
from serving.targets.core.use import Reading

_READ_EVERY_S = 0.25
#: Of one core that reading may take: the kernel walks all pages of a server, and there may be many.
_MOST_SHARE = 0.1

#: Bytes of GPU memory by the process ids of servers; those that it cannot tell of are left out, and unknown.
GpuMemory = Callable[[Collection[int]], Mapping[int, int]]


def gpu_memory_unknown(pids: Collection[int]) -> Mapping[int, int]:
    """Where nothing here reads GPUs."""
    return {}


def read_servers(*, actor: Actor, node: str, gpu_memory: GpuMemory = gpu_memory_unknown) -> float:
    """Reads every server of the node that is up or coming up, once; in how many seconds that is to be done again."""
    began = time.thread_time()
    servers = dict(queries.measured_servers(node).values_list("pid", "pk"))
    uses = use_of(servers) if servers else {}
    if uses:
        on_gpu = gpu_memory(list(uses))
        actions.record_readings(
            actor=actor,
            readings={
                servers[pid]: Reading(time.time(), replace(use, gpu_memory_bytes=on_gpu.get(pid)))
                for pid, use in uses.items()
            },
        )
    return max(_READ_EVERY_S, (time.thread_time() - began) / _MOST_SHARE)
