"""Reads the GPUs of this machine over NVML: each question by itself, so that one without an answer leaves the others.

Two questions are asked otherwise than one would expect. Throttle times come from the violation status: the ids of the newer field
values (269 … 271) meant something else in earlier drivers, which answer them all the same. And each device has an event set of its
own, as a GPU that is lost no longer says which one it is.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pynvml

from serving.targets.core.gpu import Gpu, GpuProcess, GpuReading, Xid

MOST_XIDS: Final = 16
#: Of one device and reading: a storm of errors must not keep the reader.
_MOST_EVENTS: Final = 64
_LOST: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND)
#: Nothing more is told by this open library: it is opened anew.
_CLOSED: Final = (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

_Ask = Callable[[Any, Any], tuple[Any, ...]]


@dataclass
class _Device:
    uuid: str
    handle: Any = None
    name: str | None = None
    lost: str = ""
    events: Any = None
    events_unknown: str = ""
    since_s: float | None = None
    xids: deque[Xid] = field(default_factory=lambda: deque(maxlen=MOST_XIDS))


class GpuReader:
    """
    For one thread. A device that was seen once and is gone is told as lost; slices may come and go.

    Args:
        nvml: the module `pynvml`, or what answers like it.
    """

    def __init__(self, nvml: Any = pynvml, *, now: Callable[[], float] = time.time) -> None:
        self._nvml, self._now = nvml, now
        self._devices: dict[str, _Device] = {}
        self._is_open = False

    def read(self) -> GpuReading:
        """What every GPU says now. Raises nothing: what NVML does not tell is unknown, and why."""
        at_s = self._now()
        try:
            self._open(at_s)
        except pynvml.NVMLError as error:
            if not self._devices:
                return GpuReading(at_s, unknown=str(error))
            for device in self._devices.values():
                device.lost = str(error)
        gpus = [gpu for device in self._devices.values() for gpu in self._read(device, at_s)]
        if any(gpu.lost for gpu in gpus):
            self.close()  # a handle stays lost after a reset
        return GpuReading(at_s, tuple(gpus), unknown="" if gpus else "the driver found no GPU")

    def close(self) -> None:
        """Gives the library back; the next `read` opens it again."""
        if not self._is_open:
            return
        self._is_open = False
        for device in self._devices.values():
            if device.events is not None:
                with contextlib.suppress(pynvml.NVMLError):
                    self._nvml.nvmlEventSetFree(device.events)
            device.handle = device.events = None
        with contextlib.suppress(pynvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _open(self, at_s: float) -> None:
        if self._is_open:
            return
        self._nvml.nvmlInit()
        self._is_open = True
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except pynvml.NVMLError:
            self.close()
            raise
        for device in self._devices.values():
            device.lost = "it is not found any more"
        for index in range(count):
            self._find(index, at_s)

    def _find(self, index: int, at_s: float) -> None:
        """The device is known by its UUID from now on; one that does not say even that, by its index."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as error:
            if not any(device.lost for device in self._devices.values()):
                self._devices[f"index {index}"] = _Device(f"index {index}", lost=str(error))
            return
        self._devices.pop(f"index {index}", None)
        device = self._devices.setdefault(uuid, _Device(uuid))
        device.handle, device.lost = handle, ""
        with contextlib.suppress(pynvml.NVMLError):
            device.name = _text(self._nvml.nvmlDeviceGetName(handle))
        self._listen(device, at_s)

    def _listen(self, device: _Device, at_s: float) -> None:
        """From now on the driver keeps the device's Xids until they are asked for."""
        device.events_unknown = ""
        try:
            device.events = self._nvml.nvmlEventSetCreate()
            wanted = self._nvml.nvmlEventTypeXidCriticalError
            self._nvml.nvmlDeviceRegisterEvents(device.handle, wanted, device.events)
            device.since_s = at_s
        except pynvml.NVMLError as error:
            device.events_unknown = str(error)

    def _read(self, device: _Device, at_s: float) -> Iterator[Gpu]:
        known: dict[str, Any] = {}
        unknown: dict[str, str] = {}
        if device.lost:
            unknown = {name: device.lost for names in _QUESTIONS for name in names}
        else:
            self._hear(device, at_s)
            device.lost = self._ask_all(_QUESTIONS, device.handle, known, unknown) or device.lost
        if device.events_unknown or device.since_s is None:
            unknown["xids"] = device.events_unknown or device.lost
        else:
            known |= {"xids": tuple(device.xids), "xids_since_s": device.since_s}
        yield Gpu(device.uuid, device.name, lost=device.lost, **known, unknown=unknown)
        if known.get("is_sliced"):
            yield from self._slices(device)

    def _slices(self, device: _Device) -> Iterator[Gpu]:
        try:
            most = self._nvml.nvmlDeviceGetMaxMigDeviceCount(device.handle)
        except pynvml.NVMLError:
            most = 0
        for index in range(most):
            try:
                handle = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
                uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
            except pynvml.NVMLError:
                continue  # there may be fewer than the GPU could have
            known: dict[str, Any] = {}
            unknown: dict[str, str] = {}
            lost = self._ask_all(_OF_A_SLICE, handle, known, unknown)
            yield Gpu(uuid, device.name, parent_uuid=device.uuid, lost=lost, **known, unknown=unknown)

    def _ask_all(
        self, questions: dict[tuple[str, ...], _Ask], handle: Any, known: dict[str, Any], unknown: dict[str, str]
    ) -> str:
        """Fills in the answers, and why there is none. Why the device is lost, if it is; empty otherwise."""
        lost = ""
        for names, ask in questions.items():
            try:
                known |= {
                    name: told for name, told in zip(names, ask(self._nvml, handle), strict=True) if told is not None
                }
                unknown |= {name: "the driver gave no value" for name in names if name not in known}
            except pynvml.NVMLError as error:
                unknown |= dict.fromkeys(names, str(error))
                if error.value in (*_LOST, *_CLOSED):
                    lost = str(error)
        return lost

    def _hear(self, device: _Device, at_s: float) -> None:
        """Takes the Xids that have come since the last time, without waiting for one."""
        if device.events_unknown:
            return
        try:
            for _ in range(_MOST_EVENTS):
                event = self._nvml.nvmlEventSetWait_v2(device.events, 0)
                if event.eventType & self._nvml.nvmlEventTypeXidCriticalError:
                    device.xids.append(Xid(int(event.eventData), at_s))
        except pynvml.NVMLError as error:
            if error.value in _LOST:
                device.lost = str(error)
            elif error.value != pynvml.NVML_ERROR_TIMEOUT:
                device.events_unknown = str(error)


def _memory(nvml: Any, handle: Any) -> tuple[Any, ...]:
    """Version 2 tells what the driver reserves apart from what is used."""
    told = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    return told.used, told.total, told.reserved


def _temperature(nvml: Any, handle: Any) -> float:
    """By the newer name, since the older one is announced to go; drivers before it know only that."""
    try:
        return float(nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        return float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))


def _margin(nvml: Any, handle: Any) -> float:
    """Hopper and newer tell it; before, it is the distance from the slowdown's threshold."""
    try:
        return float(nvml.nvmlDeviceGetMarginTemperature(handle))
    except pynvml.NVMLError:
        slows_at = nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        return float(slows_at) - _temperature(nvml, handle)


def _clock_reasons(nvml: Any, handle: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except pynvml.NVMLError_FunctionNotFound:
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _violation_s(policy: str) -> _Ask:
    """Time in which the policy slowed it; NVML counts nanoseconds."""
    return lambda nvml, handle: (nvml.nvmlDeviceGetViolationStatus(handle, getattr(nvml, policy)).violationTime / 1e9,)


def _recovery(nvml: Any, handle: Any) -> tuple[Any, ...]:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if value.nvmlReturn != nvml.NVML_SUCCESS:  # the call succeeds while the field has no value
        raise pynvml.NVMLError(value.nvmlReturn)
    return (int(value.value.uiVal),)


def _rows(nvml: Any, handle: Any) -> tuple[Any, ...]:
    _corrected, _uncorrected, is_pending, has_failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return bool(is_pending), bool(has_failed)


def _processes(nvml: Any, handle: Any) -> tuple[Any, ...]:
    found = nvml.nvmlDeviceGetComputeRunningProcesses_v3(
        handle
    )  # the name without one raises no NVMLError on older drivers
    return (tuple(GpuProcess(int(one.pid), one.usedGpuMemory) for one in found),)


def _ecc(kind: str) -> _Ask:
    return lambda nvml, handle: (nvml.nvmlDeviceGetTotalEccErrors(handle, getattr(nvml, kind), nvml.NVML_VOLATILE_ECC),)


_OF_A_SLICE: Final[dict[tuple[str, ...], _Ask]] = {
    ("memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes"): _memory,
    ("processes",): _processes,
}
#: What is asked, by the fields of `Gpu` that the answer fills.
_QUESTIONS: Final[dict[tuple[str, ...], _Ask]] = {
    ("busy_frac",): lambda nvml, handle: (nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,),
    **_OF_A_SLICE,
    ("temperature_c",): lambda nvml, handle: (_temperature(nvml, handle),),
    ("temperature_margin_c",): lambda nvml, handle: (_margin(nvml, handle),),
    ("power_w",): lambda nvml, handle: (nvml.nvmlDeviceGetPowerUsage(handle) / 1000,),
    ("power_limit_w",): lambda nvml, handle: (nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,),
    ("energy_j",): lambda nvml, handle: (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,),
    ("sm_clock_mhz",): lambda nvml, handle: (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),),
    ("sm_clock_max_mhz",): lambda nvml, handle: (nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),),
    ("clock_event_reasons",): lambda nvml, handle: (_clock_reasons(nvml, handle),),
    ("power_capped_s",): _violation_s("NVML_PERF_POLICY_POWER"),
    ("thermal_throttled_s",): _violation_s("NVML_PERF_POLICY_THERMAL"),
    ("ecc_corrected",): _ecc("NVML_MEMORY_ERROR_TYPE_CORRECTED"),
    ("ecc_uncorrected",): _ecc("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
    ("row_remap_pending", "row_remap_failed"): _rows,
    ("retired_pages_pending",): lambda nvml, handle: (bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)),),
    ("recovery_action",): _recovery,
    ("pcie_width",): lambda nvml, handle: (nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),),
    ("pcie_width_max",): lambda nvml, handle: (nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),),
    ("is_sliced",): lambda nvml, handle: (bool(nvml.nvmlDeviceGetMigMode(handle)[0]),),
}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
