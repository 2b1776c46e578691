"""One GPU's memory, by the driver's own library: what running an engine plan takes, without another package.

The primary context is the one that TensorRT and ONNX Runtime use too. Source: CUDA driver API (cuda.h), where the functions
that end in `_v2` are those that its header has meant since CUDA 3.2 and 4.0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # the command line runs without numpy until arrays are at hand
    import numpy.typing as npt

#: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_MAJOR, _MINOR = 75, 76
#: CU_STREAM_DEFAULT: such a stream waits for copies, which may go on after they returned and are on the default stream.
_WAITS_FOR_COPIES = 0
_LONGEST_NAME = 256
_DRIVER_VERSION: Final = Path("/sys/module/nvidia/version")
#: Without these, ctypes would cut an address to 32 bits.
_ARGUMENTS: Final[dict[str, list[Any]]] = {
    "cuInit": [c_uint],
    "cuGetErrorString": [c_int, POINTER(c_char_p)],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetName": [c_void_p, c_int, c_int],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuDevicePrimaryCtxRelease_v2": [c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuStreamCreate": [POINTER(c_void_p), c_uint],
    "cuStreamSynchronize": [c_void_p],
    "cuStreamDestroy_v2": [c_void_p],
    "cuMemAlloc_v2": [POINTER(c_uint64), c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemcpyHtoD_v2": [c_uint64, c_void_p, c_size_t],
    "cuMemcpyDtoH_v2": [c_void_p, c_uint64, c_size_t],
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
    """The first GPU that the process sees, with one stream. Use it as a context manager: it gives back what it took."""

    def __init__(self) -> None:
        self._library = load_library()
        for name, arguments in _ARGUMENTS.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, c_int
        self._call("cuInit", 0)
        device, context, stream = c_int(), c_void_p(), c_void_p()
        self._call("cuDeviceGet", byref(device), 0)
        self._device = device.value
        self.name = self._name()
        self.compute_capability = f"{self._attribute(_MAJOR)}.{self._attribute(_MINOR)}"
        self._call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuStreamCreate", byref(stream), _WAITS_FOR_COPIES)
        self.stream = int(stream.value or 0)

    def __enter__(self) -> Cuda:
        return self

    def __exit__(self, *_: object) -> None:
        """Does not raise: after a fault on the device every call fails, and the fault has been told."""
        self._library.cuStreamDestroy_v2(self.stream)
        self._library.cuDevicePrimaryCtxRelease_v2(self._device)

    @property
    def driver(self) -> str | None:
        """The driver's version, such as 550.54.15; None where the kernel does not tell it."""
        try:
            return _DRIVER_VERSION.read_text(encoding="ascii").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    @contextmanager
    def memory(self, size_bytes: int) -> Iterator[int]:
        """The address of so many bytes on the device, of one at least, for the length of a with-block. Raises CudaError."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), max(1, size_bytes))
        try:
            yield address.value
        finally:
            self._library.cuMemFree_v2(address.value)

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copies the array's bytes, in the order of C, to the device. Raises CudaError."""
        import numpy as np

        whole = np.ascontiguousarray(array)
        if whole.nbytes:
            self._call("cuMemcpyHtoD_v2", address, whole.ctypes.data, whole.nbytes)

    def download(self, address: int, shape: tuple[int, ...], kind: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of this shape from the device. Raises CudaError."""
        import numpy as np

        array = np.empty(shape, kind)
        if array.nbytes:
            self._call("cuMemcpyDtoH_v2", array.ctypes.data, address, array.nbytes)
        return array

    def synchronize(self) -> None:
        """Waits for what was started on the stream. Raises CudaError, also for what failed there."""
        self._call("cuStreamSynchronize", self.stream)

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
