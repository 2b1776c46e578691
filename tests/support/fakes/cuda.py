"""A CUDA driver whose device memory is this machine's, called through the same C calls as NVIDIA's library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int
from typing import Any

from serving.adapters.cuda import _ARGUMENTS

STREAM, CONTEXT = 0x7F00_0000_0010, 0x7F00_0000_0020
_OUT_OF_MEMORY, _INVALID_VALUE = 2, 1


class FakeCudaLibrary:
    """`allocated`: what is held, by address. `room`: bytes that the device has. `broken`: a function's name → what it returns."""

    def __init__(self, *, room: int = 1 << 30) -> None:
        self.allocated: dict[int, Any] = {}
        self.held: list[str] = []
        self.room = room
        self.broken: dict[str, int] = {}
        self._kept = {name: self._exported(name) for name in _ARGUMENTS}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_kept"][name]
        except KeyError:
            raise AttributeError(name) from None

    def _exported(self, name: str) -> Any:
        own: Callable[..., int] = getattr(self, f"_{name}")
        return CFUNCTYPE(c_int, *_ARGUMENTS[name])(lambda *given: self.broken.get(name) or own(*given) or 0)

    def _cuInit(self, flags: int) -> int:
        return 0 if flags == 0 else _INVALID_VALUE

    def _cuGetErrorString(self, result: int, to: Any) -> None:
        to[0] = b"out of memory" if result == _OUT_OF_MEMORY else b"a failure that a test asked for"

    def _cuDeviceGet(self, to: Any, ordinal: int) -> None:
        to[0] = ordinal

    def _cuDeviceGetName(self, to: int, size: int, device: int) -> None:
        name = b"NVIDIA L4\0"
        ctypes.memmove(to, name, min(size, len(name)))

    def _cuDeviceGetAttribute(self, to: Any, which: int, device: int) -> None:
        to[0] = {75: 8, 76: 9}[which]

    def _cuDevicePrimaryCtxRetain(self, to: Any, device: int) -> None:
        to[0] = CONTEXT
        self.held.append("context")

    def _cuDevicePrimaryCtxRelease_v2(self, device: int) -> None:
        self.held.remove("context")

    def _cuCtxSetCurrent(self, context: int) -> int:
        return 0 if context == CONTEXT else _INVALID_VALUE

    def _cuStreamCreate(self, to: Any, flags: int) -> int:
        if flags != 0:  # it would not wait for copies
            return _INVALID_VALUE
        to[0] = STREAM
        self.held.append("stream")
        return 0

    def _cuStreamSynchronize(self, stream: int) -> int:
        return 0 if stream == STREAM else _INVALID_VALUE

    def _cuStreamDestroy_v2(self, stream: int) -> None:
        self.held.remove("stream")

    def _cuMemAlloc_v2(self, to: Any, size: int) -> int:
        if size == 0:
            return _INVALID_VALUE
        if size + sum(map(len, self.allocated.values())) > self.room:
            return _OUT_OF_MEMORY
        memory = ctypes.create_string_buffer(size)
        to[0] = ctypes.addressof(memory)
        self.allocated[to[0]] = memory
        return 0

    def _cuMemFree_v2(self, address: int) -> None:
        del self.allocated[address]

    def _cuMemcpyHtoD_v2(self, to: int, source: int, size: int) -> int:
        return self._copied(to, source, size, on_device=to)

    def _cuMemcpyDtoH_v2(self, to: int, source: int, size: int) -> int:
        return self._copied(to, source, size, on_device=source)

    def _copied(self, to: int, source: int, size: int, *, on_device: int) -> int:
        if on_device not in self.allocated or size > len(self.allocated[on_device]):
            return _INVALID_VALUE
        ctypes.memmove(to, source, size)
        return 0
