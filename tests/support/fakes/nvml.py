"""A recorded NVML: what the driver's library answered, put under the real `pynvml`, which so runs as on a machine with GPUs.

A recording is JSON. `frames` follow each other in time; each states what is new to the one before: by device (`"0"`, a MIG slice
`"0/1"`), by the library's own function with its arguments, what it writes: `"nvmlDeviceGetClockInfo(1)": 1980`. Structures are
objects, several results a list, an error `{"error": 3}`. `xids` come once, in their frame. `base` names the recording to begin with.

`python -m tests.support.fakes.nvml FILE [SECONDS]` writes such a recording of this machine's GPUs, a frame a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml

RECORDINGS = Path(__file__).resolve().parents[2] / "recordings" / "nvml"
_SUCCESS, _INSUFFICIENT_SIZE = 0, 7
#: The union member that a field value's type means.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def recording(name: str) -> list[dict[str, Any]]:
    """The recording's frames: {device: {call: answer}} with "" for what is asked of no device; each is whole but for `xids`."""
    told = json.loads((RECORDINGS / f"{name}.json").read_text())
    so_far = recording(told["base"])[0] if "base" in told else {}
    frames = []
    for frame in told["frames"]:
        so_far = {
            device: {**{call: was for call, was in so_far.get(device, {}).items() if call != "xids"}, **frame.get(device, {})}
            for device in {**so_far, **frame}
        }  # fmt: skip
        frames.append(so_far)
    return frames


class RecordedLibrary:
    """In the place of libnvidia-ml.so.1. `at` is the frame that answers; a function that no frame names is not in this library."""

    def __init__(self, frames: list[dict[str, Any]]) -> None:
        self.frames, self.at, self.opened = frames, 0, 0
        self._told: set[tuple[int, str]] = set()  # frames and devices whose Xids were taken
        self._sets: dict[int, str] = {}  # event sets, and the device registered with each

    def __getattr__(self, name: str) -> Any:
        calls = {call.partition("(")[0] for frame in self.frames for own in frame.values() for call in own}
        if name.startswith("_") or (name not in _OWN and name not in calls):
            raise AttributeError(name)
        found = getattr(self, f"_{name}") if name in _OWN else lambda *arguments: self._answer(name, *arguments)
        return _Function(found)

    def _nvmlInitWithFlags(self, flags: int) -> int:
        answer = self._of("").get("nvmlInitWithFlags", 0)
        self.opened += not answer
        return answer["error"] if answer else _SUCCESS

    def _nvmlShutdown(self) -> int:
        self.opened -= 1
        if not self.opened:  # others may have it open too: the driver counts them
            self._sets.clear()
        return _SUCCESS

    def _nvmlErrorString(self, code: int) -> bytes:
        return f"error {code}".encode()

    def _nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len({device for device in self.frames[0] if device.isdigit()})
        return _SUCCESS

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        return self._point(handle, str(index.value), "nvmlDeviceGetHandleByIndex_v2")

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, parent: Any, index: Any, handle: Any) -> int:
        return self._point(handle, f"{_device(parent)}/{index.value}", "nvmlDeviceGetMigDeviceHandleByIndex")

    def _point(self, handle: Any, device: str, call: str) -> int:
        if device not in self.frames[self.at]:
            return pynvml.NVML_ERROR_NOT_FOUND
        ctypes.c_void_p.from_buffer(handle._obj).value = _address(device)
        answer = self._of(device).get(call)
        return answer["error"] if answer else _SUCCESS

    def _nvmlEventSetCreate(self, events: Any) -> int:
        number = len(self._sets) + 1
        self._sets[number] = ""
        ctypes.c_void_p.from_buffer(events._obj).value = number
        return _SUCCESS

    def _nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> int:
        answer = self._of(_device(handle)).get("nvmlDeviceRegisterEvents")
        self._sets[_number(events)] = _device(handle)
        return answer["error"] if answer else _SUCCESS

    def _nvmlEventSetWait_v2(self, events: Any, event: Any, timeout_ms: Any) -> int:
        assert timeout_ms.value == 0, "the reader waits for nothing"
        device = self._sets[_number(events)]
        left = self._of(device).get("xids", []) if (self.at, device) not in self._told else []
        if not left:
            self._told.add((self.at, device))
            return pynvml.NVML_ERROR_TIMEOUT
        event._obj.eventType, event._obj.eventData = pynvml.nvmlEventTypeXidCriticalError, left.pop(0)
        return _SUCCESS

    def _nvmlEventSetFree(self, events: Any) -> int:
        return _SUCCESS if self._sets.pop(_number(events), None) is not None else pynvml.NVML_ERROR_INVALID_ARGUMENT

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> int:
        answers = self._of(_device(handle))["nvmlDeviceGetFieldValues"]
        for one in values._obj[: count.value]:
            answer = answers.get(str(one.fieldId), {"error": pynvml.NVML_ERROR_NOT_SUPPORTED})
            one.nvmlReturn = answer["error"] if isinstance(answer, dict) else _SUCCESS
            one.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
            one.value.uiVal = 0 if isinstance(answer, dict) else answer
        return _SUCCESS

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, array: Any) -> int:
        answer = self._of(_device(handle))["nvmlDeviceGetComputeRunningProcesses_v3"]
        if isinstance(answer, dict):
            return answer["error"]
        room, count._obj.value = count._obj.value, len(answer)
        if room < len(answer):
            return _INSUFFICIENT_SIZE
        for at, one in enumerate(answer):
            unavailable = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
            array[at].pid, used = one["pid"], one["usedGpuMemory"]
            array[at].usedGpuMemory = unavailable if used is None else used
        return _SUCCESS

    def _answer(self, name: str, handle: Any, *arguments: Any) -> int:
        """Of every other function: what goes in is part of its name, and what comes out is written where it asks for it."""
        call, outputs = _call_of(name, arguments)
        answer = self._of(_device(handle))[call]
        if isinstance(answer, dict) and "error" in answer:
            return answer["error"]
        for output, value in zip(outputs, answer if isinstance(answer, list) else [answer], strict=True):
            _write(output, value)
        return _SUCCESS

    def _of(self, device: str) -> dict[str, Any]:
        return self.frames[self.at].get(device, {})


#: What the library does not just read off a frame.
_OWN = {name[1:] for name in vars(RecordedLibrary) if name.startswith("_nvml")}


class _Function:
    """Takes a `restype`, as a function of a C library does."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


@contextlib.contextmanager
def replayed(name: str) -> Iterator[RecordedLibrary]:
    """Puts the recording under `pynvml`."""
    library = RecordedLibrary(recording(name))
    with _under_pynvml(library):
        yield library


@contextlib.contextmanager
def _under_pynvml(library: Any) -> Iterator[None]:
    was, known = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield
    finally:
        pynvml.nvmlLib = was
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(known)


def _address(device: str) -> int:
    index, _, part = device.partition("/")
    return (int(index) + 1) << 16 | (int(part) + 1 if part else 0)


def _device(handle: Any) -> str:
    address = _number(handle)
    return f"{(address >> 16) - 1}" + (f"/{(address & 0xFFFF) - 1}" if address & 0xFFFF else "")


def _number(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _call_of(name: str, arguments: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """The call as recordings name it, and where its results go. A buffer's size says nothing."""
    outputs = [one for one in arguments if hasattr(one, "_obj") or isinstance(one, ctypes.Array)]
    is_text = any(isinstance(one, ctypes.Array) for one in outputs)
    inputs = [] if is_text else [one.value for one in arguments if not any(one is other for other in outputs)]
    return f"{name}({','.join(map(str, inputs))})" if inputs else name, outputs


def _write(output: Any, value: Any) -> None:
    if isinstance(output, ctypes.Array):
        output.value = value.encode()
    elif isinstance(output._obj, ctypes.Structure):
        known = {name for name, *_ in output._obj._fields_}
        for name, told in value.items():
            assert name in known, f"{type(output._obj).__name__} has no {name}"
            setattr(output._obj, name, told)
    else:
        output._obj.value = value


class RecordingLibrary:
    """Hands every call to a library, and keeps what it answered in the last of `frames`."""

    def __init__(self, library: Any) -> None:
        self._library, self.frames = library, [{}]
        self._devices: dict[int, str] = {}
        self._sets: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        function = getattr(self._library, name)
        if name in ("nvmlErrorString", "nvmlShutdown", "nvmlInitWithFlags", "nvmlEventSetCreate", "nvmlEventSetFree"):
            return function
        return _Function(lambda *arguments: self._heard(name, arguments, function(*arguments)))

    def _heard(self, name: str, arguments: tuple[Any, ...], code: int) -> int:
        if name == "nvmlDeviceGetCount_v2":
            return code
        if "HandleByIndex" in name:
            parent = f"{self._devices[_number(arguments[0])]}/" if len(arguments) == 3 else ""
            if code == _SUCCESS:
                self._devices[_number(arguments[-1]._obj)] = f"{parent}{arguments[-2].value}"
            return code
        if name == "nvmlEventSetWait_v2":
            if code == _SUCCESS:
                self._own(self._sets[_number(arguments[0])]).setdefault("xids", []).append(arguments[1]._obj.eventData)
            return code
        device = self._devices[_number(arguments[0])]
        if name == "nvmlDeviceRegisterEvents":
            self._sets[_number(arguments[2])] = device
            if code != _SUCCESS:
                self._own(device)[name] = {"error": code}
        elif name == "nvmlDeviceGetFieldValues":
            values = {str(one.fieldId): _field_value(one) for one in arguments[2]._obj}
            self._own(device)[name] = values if code == _SUCCESS else {"error": code}
        elif name == "nvmlDeviceGetComputeRunningProcesses_v3":
            if code != _INSUFFICIENT_SIZE:
                found = arguments[2][: arguments[1]._obj.value] if arguments[2] is not None else []
                listed = [{"pid": one.pid, "usedGpuMemory": one.usedGpuMemory} for one in found]
                self._own(device)[name] = listed if code == _SUCCESS else {"error": code}
        else:
            call, outputs = _call_of(name, arguments[1:])
            values = [_read(output) for output in outputs]
            self._own(device)[call] = (
                (values[0] if len(values) == 1 else values) if code == _SUCCESS else {"error": code}
            )
        return code

    def _own(self, device: str) -> dict[str, Any]:
        return self.frames[-1].setdefault(device, {})


def _field_value(one: Any) -> Any:
    return getattr(one.value, _MEMBERS[one.valueType]) if one.nvmlReturn == _SUCCESS else {"error": one.nvmlReturn}


def _read(output: Any) -> Any:
    if isinstance(output, ctypes.Array):
        return output.value.decode()
    told = output._obj
    if isinstance(told, ctypes.Structure):
        return {name: getattr(told, name) for name, *_ in told._fields_ if name != "version"}
    return told.value


def record(seconds: int, library: Any = None) -> list[dict[str, Any]]:
    """The frames of so many seconds, as `GpuReader` asks; of `library`, else of this machine's driver. Raises NVMLError without one."""
    from serving.targets.agent.gpu_reader import GpuReader

    if library is None:
        pynvml.nvmlInit()
        library = pynvml.nvmlLib
    recorder = RecordingLibrary(library)
    with _under_pynvml(recorder):
        reader = GpuReader()
        for second in range(seconds):
            if second:
                recorder.frames.append({})
                time.sleep(1)
            reader.read()
        reader.close()
    return recorder.frames


if __name__ == "__main__":
    lasts_s = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    try:
        recorded = record(lasts_s)
    except pynvml.NVMLError as error:
        sys.exit(f"There is no GPU to record: {error}")
    Path(sys.argv[1]).write_text(json.dumps({"says": "Recorded on a real GPU.", "frames": recorded}, indent=1) + "\n")
