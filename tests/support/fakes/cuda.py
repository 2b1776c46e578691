"""A CUDA driver that names a GPU, called through the same C calls as NVIDIA's library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int
from typing import Any

from serving.targets.adapters.cuda import _ARGUMENTS

_OUT_OF_MEMORY, _INVALID_VALUE = 2, 1


class FakeCudaLibrary:
    """`broken`: a function's name → what it returns."""

    def __init__(self) -> None:
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
