"""Which ONNX Runtime a serving environment has."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.targets.agent.runtime_image import RuntimeMissing, installed_of

ONNX_RUNTIMES = ("onnxruntime", "onnxruntime_gpu")


def test_an_environment_has_the_processors_onnx_runtime_or_the_gpus_and_never_both(tmp_path: Path) -> None:
    assert installed_of(tmp_path, ONNX_RUNTIMES, "runtime.lock") == "onnxruntime"  # which is then said to be missing
    (tmp_path / "onnxruntime_gpu-1.31.1.dist-info").mkdir()
    assert installed_of(tmp_path, ONNX_RUNTIMES, "runtime.lock") == "onnxruntime_gpu"
    (tmp_path / "onnxruntime-1.31.1.dist-info").mkdir()
    with pytest.raises(RuntimeMissing, match="both installed"):
        installed_of(tmp_path, ONNX_RUNTIMES, "runtime.lock")
