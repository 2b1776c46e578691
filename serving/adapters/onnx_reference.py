"""An ONNX graph on ONNX Runtime's processor kernels: what an engine plan's answers are held against.

Not on the device: there it would share TF32, cuDNN and their faults with the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line runs without numpy until arrays are at hand
    import numpy.typing as npt


class GraphError(Exception):
    """ONNX Runtime is not installed, or cannot load or run the graph."""


class OnnxReference:
    """A graph that is loaded, to be run request by request."""

    def __init__(self, onnx: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            said = "not available here: ONNX Runtime is not installed; install sluicegate[gpu]"
            raise GraphError(said) from error
        self.version = str(onnxruntime.__version__)
        try:
            self._session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has many kinds, and none in common
            raise GraphError(f"ONNX Runtime {self.version} cannot load {onnx.name}: {_line(error)}") from error

    def run(self, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """These outputs by name. Raises GraphError."""
        try:
            return dict(zip(outputs, self._session.run(list(outputs), dict(inputs)), strict=True))
        except Exception as error:  # as above
            raise GraphError(f"ONNX Runtime {self.version} cannot run it: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
