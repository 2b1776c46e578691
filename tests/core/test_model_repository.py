"""Where a release's files lie in a model repository."""

from __future__ import annotations

from pathlib import PurePosixPath

from serving.targets.agent.model_repository import placed


def test_a_config_that_came_along_is_not_placed_beside_the_one_that_is_written() -> None:
    paths = ["artifact/model.onnx", "artifact/config.pbtxt", "config.pbtxt", "tokenizer/vocab.txt"]
    assert set(placed([{"path": path} for path in paths], "sluicegate-onnx")) == {
        PurePosixPath("model.onnx"),
        PurePosixPath("tokenizer/vocab.txt"),
    }
