"""The first GPU's name, compute capability and driver, by the driver's own library. Source: CUDA driver API (cuda.h)."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from pathlib import Path
from typing import Any, Final

#: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_MAJOR, _MINOR = 75, 76
_LONGEST_NAME = 256
_DRIVER_VERSION: Final = Path("/sys/module/nvidia/version")
_ARGUMENTS: Final[dict[str, list[Any]]] = {
    "cuInit": [c_uint],
    "cuGetErrorString": [c_int, POINTER(c_char_p)],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetName": [c_void_p, c_int, c_int],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
}


class CudaError(Exception):
    """The driver is not there, or refused; the message says what was asked of it."""


def load_library() -> Any:
    """The driver's library. Raises CudaError where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"the NVIDIA driver's library cannot be loaded: {error}") from error


class Cuda:
    """The first GPU that the process sees. Raises CudaError if there is none."""

    def __init__(self) -> None:
        self._library = load_library()
        for name, arguments in _ARGUMENTS.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, c_int
        self._call("cuInit", 0)
        device = c_int()
        self._call("cuDeviceGet", byref(device), 0)
        self._device = device.value
        self.name = self._name()
        self.compute_capability = f"{self._attribute(_MAJOR)}.{self._attribute(_MINOR)}"

    @property
    def driver(self) -> str | None:
        """The driver's version, such as 550.54.15; None where the kernel does not tell it."""
        try:
            return _DRIVER_VERSION.read_text(encoding="ascii").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def _name(self) -> str:
        name = ctypes.create_string_buffer(_LONGEST_NAME)
        self._call("cuDeviceGetName", name, _LONGEST_NAME, self._device)
        return name.value.decode("utf-8", "replace")

    def _attribute(self, which: int) -> int:
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), which, self._device)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            said = c_char_p()
            self._library.cuGetErrorString(result, byref(said))
            why = (said.value or b"unknown error").decode("utf-8", "replace")
            raise CudaError(f"{name} failed: {why} [{result}]")
