"""What is asked of a GPU under a measurement, and the answer to each: well, whose fault it is, or unknown.

Facts are told of the whole time since the server came up, slowing down and company only of the time in which a gate measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from serving.targets.core.gpu import Gpu, GpuReading, recovery
from validators.core.answered import answered_of

#: Longer than that nobody looked: what is only sampled may have been missed. The agent reads every second.
_MOST_GAP_S: Final = 10.0
#: Source: nvml.h, nvmlClocksEventReason*: hardware slowdown, software thermal, hardware thermal and hardware power brake.
_THROTTLES: Final = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat, by hardware", 0x80: "the power brake"}
#: Source: NVIDIA's advice of a thermal margin below which a GPU is about to slow down; told, not judged.
_LEAST_MARGIN_C: Final = 5.0
_FULL_FRAC: Final = 0.95
_MIB: Final = 2**20


class Finding(StrEnum):
    """The answer of one check."""

    WELL = "well"
    NODE = "node"  # the hardware's, its driver's or its bus's fault
    RELEASE = "release"
    PERF_INVALID = "perf_invalid"  # nobody's fault, but what was measured does not count
    UNKNOWN = "unknown"


#: What is asked of each GPU, in words.
CHECKS: Final = {
    "readings": "read throughout",
    "device": "there, and needs no recovery",
    "xid": "no Xid",
    "ecc": "no uncorrected error of its memory",
    "rows": "no row of its memory is past repair",
    "throttling": "not slowed down",
    "alone": "nobody else computed on it",
    "memory": "within the declared memory",
}


@dataclass(frozen=True)
class GpuCheck:
    name: str  # of CHECKS
    gpu: str  # UUID
    finding: Finding
    sentence: str


@dataclass(frozen=True)
class Window:
    """When a gate measured, in seconds of the Unix epoch."""

    gate: str
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Watch:
    """What the node's agent read since the server `server` came up at `since_s`; `why_not` is why there are no readings.

    `unwatched` are gates that measured, but not this server, or not so that anybody could tell when. `is_read`: the agent reads GPUs
    there, so that there will be a reading where there is none yet.
    """

    server: int
    since_s: float
    windows: Sequence[Window] = ()
    unwatched: Sequence[str] = ()
    readings: Sequence[GpuReading] = ()
    why_not: str = ""
    is_read: bool = False


def window_of(gate: str, evidence: Mapping[str, Any], ended_s: float) -> Window | None:
    """When the gate sent its requests, without the wait for its machine.

    None for one that sent none.
    """
    if (answered := answered_of(evidence)) is not None:
        return Window(gate, answered.began_s, answered.ended_s)
    began_s = evidence.get("began_s")
    return None if began_s is None else Window(gate, float(began_s), ended_s)


def own_gpus(watch: Watch) -> set[str]:
    """The GPUs, by UUID, on which a process of the server was seen; of a slice its GPU."""
    return {
        gpu.parent_uuid or gpu.uuid
        for reading in watch.readings
        for gpu in reading.gpus
        if any(process.server == watch.server for process in gpu.processes or ())
    }


def series_of(readings: Sequence[GpuReading], uuid: str) -> list[tuple[float, Gpu]]:
    return [(reading.at_s, gpu) for reading in readings for gpu in reading.gpus if gpu.uuid == uuid]


def checks_of(watch: Watch, uuid: str, policy: Mapping[str, Any], declared_mib: int | None) -> list[GpuCheck]:
    """Every check of one GPU, in the order of CHECKS."""
    return _Checks(watch, uuid, policy).all(declared_mib)


@dataclass(frozen=True)
class _Checks:
    """The checks of one GPU."""

    watch: Watch
    uuid: str
    policy: Mapping[str, Any]

    def all(self, declared_mib: int | None) -> list[GpuCheck]:
        told = [
            self._readings(),
            self._device(),
            self._xid(),
            self._ecc(),
            self._rows(),
            self._throttling(),
            self._alone(),
        ]
        return [
            GpuCheck(name, self.uuid, finding, sentence)
            for name, (finding, sentence) in zip(CHECKS, [*told, self._memory(declared_mib)], strict=True)
        ]

    @property
    def series(self) -> list[tuple[float, Gpu]]:
        return series_of(self.watch.readings, self.uuid)

    @property
    def measured(self) -> list[Gpu]:
        """As it was while a gate measured."""
        windows = self.watch.windows
        return [gpu for at_s, gpu in self.series if any(one.began_s <= at_s <= one.ended_s for one in windows)]

    def _known(self, name: str, among: Sequence[Gpu] | None = None) -> tuple[list[Any], str]:
        """The answers, and why one is missing; empty where none is."""
        gpus = [gpu for _, gpu in self.series] if among is None else among
        missing = next((gpu for gpu in gpus if getattr(gpu, name) is None), None)
        why = "" if missing is None else missing.unknown.get(name, "it was not told")
        return [getattr(gpu, name) for gpu in gpus if getattr(gpu, name) is not None], why

    def _readings(self) -> tuple[Finding, str]:
        at = [at_s for at_s, _ in self.series]
        for one in self.watch.windows:
            before, after = [x for x in at if x <= one.began_s], [x for x in at if x >= one.ended_s]
            if not before or not after:
                return Finding.UNKNOWN, f"it was not read {'after' if before else 'before'} {one.gate}"
            seen = [before[-1], *[x for x in at if one.began_s < x < one.ended_s], after[0]]
            longest = max(later - earlier for earlier, later in pairwise(seen))
            if longest > _MOST_GAP_S:
                return Finding.UNKNOWN, f"it was not read for {longest:.0f} s while {one.gate} ran"
        return Finding.WELL, f"it was read {len(at)} times"

    def _device(self) -> tuple[Finding, str]:
        lost = next((gpu.lost for _, gpu in self.series if gpu.lost), "")
        if lost:
            return Finding.NODE, f"the driver has lost it: {lost}"
        actions, why = self._known("recovery_action")
        if needed := next(filter(None, actions), None):
            return Finding.NODE, f"it needs {recovery(needed)}"
        if why:
            return Finding.UNKNOWN, f"whether it needs recovery is unknown: {why}"
        return Finding.WELL, "it is there, and needs no recovery"

    def _xid(self) -> tuple[Finding, str]:
        heard = {one for _, gpu in self.series for one in gpu.xids or () if one.at_s >= self.watch.since_s}
        nodes = sorted({one.code for one in heard if not one.is_applications})
        if nodes:
            return Finding.NODE, f"Xid {', '.join(map(str, nodes))}"
        if heard:
            said = f"Xid {', '.join(map(str, sorted({one.code for one in heard})))}, which programs bring about"
            if self._others(gpu for _, gpu in self.series) or not own_gpus(self.watch):
                return (
                    Finding.UNKNOWN,
                    f"{said}; whether it was the release's is unknown, as others may have computed on it",
                )
            return Finding.RELEASE, said
        began_s = self.watch.windows[0].began_s
        if why := self._known("xids")[1]:
            return Finding.UNKNOWN, f"whether there was an Xid is unknown: {why}"
        if any(gpu.xids_since_s is None or gpu.xids_since_s > began_s for _, gpu in self.series):
            return Finding.UNKNOWN, "whether there was an Xid is unknown: nobody listened from the beginning"
        return Finding.WELL, "no Xid"

    def _ecc(self) -> tuple[Finding, str]:
        counts, why = self._known("ecc_uncorrected")
        grown = sum(max(0, later - earlier) for earlier, later in pairwise(counts))
        if grown:
            return Finding.NODE, f"{grown} uncorrected errors of its memory"
        if why or any(later < earlier for earlier, later in pairwise(counts)):
            return Finding.UNKNOWN, f"errors of its memory are unknown: {why or 'its counter began anew'}"
        corrected = self._known("ecc_corrected")[0]
        mended = corrected[-1] - corrected[0] if corrected else 0
        return (
            Finding.WELL,
            f"no uncorrected error of its memory{f', {mended} that were corrected' if mended > 0 else ''}",
        )

    def _rows(self) -> tuple[Finding, str]:
        """Rows on Ampere and newer, retired pages before that."""
        failed, why = self._known("row_remap_failed")
        if any(failed):
            return Finding.NODE, "a row of its memory could not be remapped, so it is to be replaced"
        pages, no_pages = self._known("retired_pages_pending")
        if why and no_pages:
            return Finding.UNKNOWN, f"whether its memory could be mended is unknown: {why}"
        is_pending = any(pages) or any(self._known("row_remap_pending")[0])
        return Finding.WELL, "its memory is mended at the next reset" if is_pending else "its memory needs no mending"

    def _throttling(self) -> tuple[Finding, str]:
        """Samples tell of what for, the counter also of what fell between two of them."""
        reasons, why = self._known("clock_event_reasons", self.measured)
        words = [text for bit, text in _THROTTLES.items() if any(one & bit for one in reasons)]
        slowed_s = self._grown("thermal_throttled_s")
        if words or slowed_s:
            told = f" for {slowed_s:.1f} s" if slowed_s else ""
            return Finding.PERF_INVALID, f"it was slowed down{told} by {' and '.join(words or ['heat'])}"
        capped_frac, most = self._capped_frac(), self.policy["max_power_capped_frac"]
        if capped_frac is not None and most is not None and capped_frac > most:
            return (
                Finding.PERF_INVALID,
                f"its power limit held it back for {capped_frac:.0%} of the time; {most:.0%} are allowed",
            )
        if why or not reasons:
            return Finding.UNKNOWN, f"whether it was slowed down is unknown: {why or 'it was not read meanwhile'}"
        if most is not None and capped_frac is None:
            return Finding.UNKNOWN, "for how long its power limit held it back is unknown"
        held = f", its power limit held it back for {capped_frac:.0%} of the time" if capped_frac else ""
        margins = self._known("temperature_margin_c", self.measured)[0]
        near = margins and min(margins) < _LEAST_MARGIN_C
        return Finding.WELL, f"it was not slowed down{held}{f', {min(margins):g} °C from it' if near else ''}"

    def _grown(self, name: str) -> float | None:
        """By how much a counter grew while gates measured, from the reading before to the one after; None where nobody knows."""
        total = 0.0
        for one in self.watch.windows:
            before = [gpu for at_s, gpu in self.series if at_s <= one.began_s]
            after = [gpu for at_s, gpu in self.series if at_s >= one.ended_s]
            first, last = (getattr(gpus[at], name) if gpus else None for gpus, at in ((before, -1), (after, 0)))
            if first is None or last is None:
                return None
            total += max(0.0, last - first)
        return total

    def _capped_frac(self) -> float | None:
        capped_s, lasted_s = self._grown("power_capped_s"), sum(one.ended_s - one.began_s for one in self.watch.windows)
        return None if capped_s is None or lasted_s <= 0 else min(1.0, capped_s / lasted_s)

    def _parts(self, reading: GpuReading) -> list[Gpu]:
        """Where the server computes: its slices, else the GPU."""
        slices = [gpu for gpu in reading.gpus if gpu.parent_uuid == self.uuid]
        return slices or [gpu for gpu in reading.gpus if gpu.uuid == self.uuid]

    def _mine(self) -> Iterator[Gpu]:
        """The parts on which the server was seen, of every reading while a gate measured."""
        seen = {
            part.uuid
            for reading in self.watch.readings
            for part in self._parts(reading)
            if any(one.server == self.watch.server for one in part.processes or ())
        }
        for reading in self.watch.readings:
            if any(one.began_s <= reading.at_s <= one.ended_s for one in self.watch.windows):
                yield from (part for part in self._parts(reading) if part.uuid in seen or not seen)

    def _others(self, gpus: Any) -> list[int]:
        """Processes of anybody else."""
        return sorted({one.pid for gpu in gpus for one in gpu.processes or () if one.server != self.watch.server})

    def _alone(self) -> tuple[Finding, str]:
        mine = list(self._mine())
        others = self._others(mine)
        if not own_gpus(self.watch):
            return (
                Finding.UNKNOWN,
                "whether the release was alone on it is unknown: none of its processes was seen there",
            )
        if others and self.policy["alone"]:
            return Finding.PERF_INVALID, f"process {', '.join(map(str, others[:4]))} computed on it too"
        if why := self._known("processes", mine)[1] if mine else "it was not read meanwhile":
            return Finding.UNKNOWN, f"whether the release was alone on it is unknown: {why}"
        return (
            Finding.WELL,
            "the release was alone on it" if not others else "others computed on it too, which the policy allows",
        )

    def _memory(self, declared_mib: int | None) -> tuple[Finding, str]:
        """Of the server's own processes; where those do not tell, all that is used, if nobody else is there."""
        held, mine = [], list(self._mine())
        for gpu in mine:
            own = [one.memory_bytes for one in gpu.processes or () if one.server == self.watch.server]
            known = [size for size in own if size is not None]
            is_alone = bool(own_gpus(self.watch)) and not self._others([gpu])
            held.append(sum(known) if own and len(known) == len(own) else gpu.memory_used_bytes if is_alone else None)
        sizes = [size for size in held if size is not None]
        if declared_mib is not None and sizes and max(sizes) > declared_mib * _MIB:
            return (
                Finding.RELEASE,
                f"it held {_mib(max(sizes))} of GPU memory; its envelope declares {declared_mib} MiB",
            )
        if len(sizes) < len(held) or not sizes:
            return Finding.UNKNOWN, "how much GPU memory the release held is unknown"
        full = any(gpu.memory_used_bytes > _FULL_FRAC * gpu.memory_total_bytes for gpu in mine
                   if gpu.memory_used_bytes is not None and gpu.memory_total_bytes)  # fmt: skip
        of = f" of the {declared_mib} MiB declared" if declared_mib is not None else "; nothing is declared"
        return (
            Finding.WELL,
            f"it held at most {_mib(max(sizes))} of GPU memory{of}{'; the GPU was nearly full' if full else ''}",
        )


def _mib(size: float) -> str:
    return f"{size / _MIB:.0f} MiB"
