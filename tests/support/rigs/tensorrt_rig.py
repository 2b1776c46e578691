"""TensorRT for tests: a fake of it with a fake GPU, and the real TensorRT for RTX, which builds plans without a GPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from registry.core.engine_flavour import RTX
from serving.targets.adapters import cuda, tensorrt
from tests.support.fakes.cuda import FakeCudaLibrary
from tests.support.rigs.parts import TENSORRT_RTX

_RTX_MODULE = tensorrt.PACKAGES[RTX.name].module


@contextmanager
def fake_tensorrt(patch: pytest.MonkeyPatch, device: Path) -> Iterator[FakeCudaLibrary]:
    """`device` is any file that is there, in the place of NVIDIA's."""
    from tests.support.fakes import tensorrt as fake

    library = FakeCudaLibrary()
    patch.setitem(sys.modules, "tensorrt", fake)
    patch.setattr(tensorrt, "_DEVICE", device)
    patch.setattr(cuda, "load_library", lambda: library)
    patch.setattr(fake, "refuses_to", set())
    yield library


def use_rtx(patch: pytest.MonkeyPatch) -> ModuleType:
    """Makes the real TensorRT for RTX importable until the patch is undone. Returns its module."""
    patch.syspath_prepend(str(TENSORRT_RTX))
    module = _rtx()
    patch.setitem(sys.modules, _RTX_MODULE, module)
    return module


@cache
def _rtx() -> ModuleType:
    """The module, imported once: its C++ half cannot be loaded a second time. Other tests do not find it in `sys.modules`."""
    module = importlib.import_module(_RTX_MODULE)
    del sys.modules[_RTX_MODULE]
    return module
