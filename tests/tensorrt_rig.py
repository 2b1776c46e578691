"""TensorRT and a GPU that are not here, by fakes that stand where the real ones would."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.adapters import cuda, tensorrt
from tests.fakes.cuda import FakeCudaLibrary


@contextmanager
def fake_tensorrt(patch: pytest.MonkeyPatch, device: Path) -> Iterator[FakeCudaLibrary]:
    """`device` is any file that is there, in the place of NVIDIA's. At the end everything on the device was given back."""
    from tests.fakes import tensorrt as fake

    library = FakeCudaLibrary()
    patch.setitem(sys.modules, "tensorrt", fake)
    patch.setattr(tensorrt, "_DEVICE", device)
    patch.setattr(cuda, "load_library", lambda: library)
    patch.setattr(fake, "refuses_to", set())
    patch.setattr(fake, "fault", fake.fault)
    yield library
    assert (library.allocated, library.held) == ({}, []), "what was taken of the device was not given back"
