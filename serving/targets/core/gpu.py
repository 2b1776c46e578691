"""What the GPUs of a node say of themselves at one instant, and which of it means that the hardware is at fault.

A question that a device, its driver or the source does not answer is None, with why in `unknown`: never 0, and never "fine".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Final

#: Xids that a program brings about by what it does; every other one is the hardware's, the driver's or the bus's.
#: Source: the list that NVIDIA's k8s-device-plugin does not hold against a device.
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
#: Source: nvml.h, NVML_GPU_RECOVERY_ACTION_*.
_RECOVERY_ACTIONS: Final = {
    1: "a reset of the GPU", 2: "a reboot of the node", 3: "a drain of its peers",
    4: "a drain and a reset", 5: "a recovery of its IMEX domain", 6: "a reset of the bus", 7: "a reboot of the system",
}  # fmt: skip


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU. `server` is the key of the server that it belongs to; None: another's, or not told."""

    pid: int
    memory_bytes: int | None = None
    server: int | None = None


@dataclass(frozen=True)
class Xid:
    """An error that the driver told of, when the reader heard of it: seconds of the Unix epoch."""

    code: int
    at_s: float

    @property
    def is_applications(self) -> bool:
        return self.code in APPLICATION_XIDS

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_s, UTC)


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG slice of the GPU `parent_uuid`: a slice answers for its memory and processes, its GPU for the rest.

    Counters (energy, throttling, ECC) count since the driver was loaded. `lost` is why the driver has lost it; empty if it has not.
    """

    uuid: str
    name: str | None = None
    parent_uuid: str | None = None
    lost: str = ""
    busy_frac: float | None = None  # of the time in which some kernel ran, however small: 1.0 on a hung GPU too
    memory_used_bytes: int | None = None  # without what the driver reserves
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    temperature_c: float | None = None
    temperature_margin_c: float | None = None  # until it slows itself down
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    clock_event_reasons: int | None = None  # bits of nvml.h, nvmlClocksEventReason*
    power_capped_s: float | None = None
    thermal_throttled_s: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    retired_pages_pending: bool | None = None
    recovery_action: int | None = None  # see `recovery`; 0: none is called for
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    is_sliced: bool | None = None  # MIG
    processes: tuple[GpuProcess, ...] | None = None
    xids: tuple[Xid, ...] | None = None  # the latest, oldest first
    xids_since_s: float | None = None  # heard of since then
    unknown: Mapping[str, str] = field(default_factory=dict)  # why, by field

    @property
    def process_count(self) -> int | None:
        return None if self.processes is None else len(self.processes)

    @property
    def faults(self) -> list[str]:
        """Faults of the hardware itself in one reading, as half sentences. If something is unknown, an empty list is not "fine".

        Source: NVIDIA's row remapping guide (a failed remapping calls for replacement, a pending one only for a reset some day), the
        recovery action of nvml.h, and APPLICATION_XIDS for what an Xid says.
        """
        found = [f"the driver has lost it: {self.lost}"] if self.lost else []
        if self.recovery_action:
            found.append(f"it needs {recovery(self.recovery_action)}")
        if self.row_remap_failed:
            found.append("a row of its memory could not be remapped, so it is to be replaced")
        codes = sorted({one.code for one in self.xids or () if not one.is_applications})
        if codes:
            found.append(f"Xid {', '.join(map(str, codes))}")
        return found

    @property
    def untold(self) -> list[str]:
        """Unknown inputs of `faults`, in words. If there are any, a fault may exist that was not seen."""
        asked = {
            "whether it needs recovery": self.recovery_action,
            "rows of its memory": self.retired_pages_pending
            if self.row_remap_failed is None
            else self.row_remap_failed,
            "Xids": self.xids,
        }
        return [] if self.parent_uuid else [words for words, answer in asked.items() if answer is None]


@dataclass(frozen=True)
class GpuReading:
    """All GPUs of a node `at_s`, in seconds of the Unix epoch by its clock. `unknown`: why none could be read; empty otherwise."""

    at_s: float
    gpus: tuple[Gpu, ...] = ()
    unknown: str = ""
    source: str = "nvml"

    def as_json(self) -> dict[str, Any]:
        """What is known, and why the rest is not."""
        return {
            "at_s": round(self.at_s, 3),
            "source": self.source,
            "unknown": self.unknown,
            "gpus": [{name: told for name, told in asdict(gpu).items() if told is not None} for gpu in self.gpus],
        }


def reading_of(told: Mapping[str, Any]) -> GpuReading | None:
    """What `as_json` gave, also by an agent of another version: what only one of the two knows is left out. None for nothing."""
    if "at_s" not in told:
        return None
    gpus = tuple(_gpu(one) for one in told.get("gpus") or ())
    return GpuReading(float(told["at_s"]), gpus, str(told.get("unknown", "")), str(told.get("source", "nvml")))


def with_servers(reading: GpuReading, servers: Mapping[int, int]) -> GpuReading:
    """The reading with each process given to its server, by `servers`: the server's key by process id."""
    gpus = tuple(
        gpu
        if gpu.processes is None
        else replace(gpu, processes=tuple(replace(one, server=servers.get(one.pid)) for one in gpu.processes))
        for gpu in reading.gpus
    )
    return replace(reading, gpus=gpus)


def memory_by_server(reading: GpuReading) -> dict[int, int]:
    """Bytes of GPU memory by server, over all devices; a server is left out where one of its processes does not tell."""
    sliced = {gpu.parent_uuid for gpu in reading.gpus}
    found: dict[int, list[int | None]] = {}
    for gpu in reading.gpus:
        for one in () if gpu.uuid in sliced else gpu.processes or ():  # a GPU lists its slices' processes again
            if one.server is not None:
                found.setdefault(one.server, []).append(one.memory_bytes)
    known = {server: [size for size in sizes if size is not None] for server, sizes in found.items()}
    return {server: sum(sizes) for server, sizes in known.items() if len(sizes) == len(found[server])}


def _gpu(told: Mapping[str, Any]) -> Gpu:
    known = {one.name: told[one.name] for one in fields(Gpu) if one.name in told}
    for name, kind in (("processes", GpuProcess), ("xids", Xid)):
        if name in known:
            known[name] = tuple(kind(**one) for one in known[name])
    return Gpu(**known)


def recovery(action: int) -> str:
    """What NVML calls for, in words."""
    return _RECOVERY_ACTIONS.get(action, f"recovery action {action}")
