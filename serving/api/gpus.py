"""How a node's GPUs are told over REST: as they were read last."""

from __future__ import annotations

from datetime import datetime

from accounts.api.shapes import Shape, described


class XidOut(Shape):
    code: int
    at: datetime = described("when the agent heard of it")


class GpuOut(Shape):
    """A GPU or a MIG slice. Null is unknown, and `unknown` says why."""

    uuid: str
    name: str | None
    parent_uuid: str | None = described("of a slice: its GPU")
    faults: list[str] = described("of the hardware, as far as is known")
    untold: list[str] = described("what faults rest on and nobody told of: there may be one all the same")
    busy_frac: float | None = described("of the time in which some kernel ran")
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_c: float | None
    temperature_margin_c: float | None = described("until it slows itself down")
    power_w: float | None
    power_limit_w: float | None
    sm_clock_mhz: int | None
    sm_clock_max_mhz: int | None
    ecc_corrected: int | None = described("since the driver was loaded")
    ecc_uncorrected: int | None = described("since the driver was loaded")
    recovery_action: int | None = described("as nvml.h has it; 0: none is called for")
    pcie_width: int | None
    pcie_width_max: int | None
    row_remap_pending: bool | None
    row_remap_failed: bool | None
    is_sliced: bool | None = described("in MIG mode")
    processes: int | None = described("how many compute on it", source="process_count", default=None)
    xids: list[XidOut] | None
    unknown: dict[str, str] = described("why, by field")


class GpusOut(Shape):
    """A node's GPUs as its agent read them last."""

    at: datetime | None = described(source="gpus_read_at")
    why_unknown: str = described("nothing is known of their state now; empty: it is", source="gpus_read_why_not")
    gpus = GpuOut(source="gpus_read.gpus", default=(), many=True)
