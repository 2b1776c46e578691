"""The files of a release on their way in, under their alias's name, and as Triton's model repository."""

from __future__ import annotations

from typing import Any

import pytest

from registry.core.alias import RESERVED, name_problems
from registry.core.file_rules import MOST_FILES
from registry.core.files import bare_sha256, read_files
from registry.core.triton_tree import tree_of

A, B = "a" * 64, "b" * 64
MOST = 1000
TENSOR = {"name": "x", "data_type": "FP32", "dims": [1]}


def file(path: str, sha256: str = A, size_bytes: Any = 1) -> dict[str, Any]:
    return {"path": path, "sha256": sha256, "size_bytes": size_bytes}


MODEL = file("artifact/model.onnx")


def fields(files: list[Any], backend: str | None = "sluicegate-onnx") -> dict[str, str]:
    _, problems = read_files(files, backend, MOST)
    return {one.field: f"{one.message} {one.fix}" for one in problems}


def test_announced_files_come_back_by_path_with_bare_digests() -> None:
    vocab = file("tokenizer/vocab.txt", f"sha256:{B}", 0)
    read, problems = read_files([vocab, MODEL], "sluicegate-onnx", MOST)
    assert problems == [] and read == [MODEL, {**vocab, "sha256": B}]
    assert bare_sha256(A) == bare_sha256(f"sha256:{A}") == A


def test_a_file_is_as_large_as_the_installation_takes_and_no_larger() -> None:
    assert fields([{**MODEL, "size_bytes": MOST}]) == {}
    found = fields([file("artifact/a.json"), {**MODEL, "size_bytes": MOST + 1}])
    assert (
        list(found) == ["files[1].size_bytes"] and "1001 bytes are more than the 1000" in found["files[1].size_bytes"]
    )
    assert "SLUICEGATE_MAX_UPLOAD_BYTES" in found["files[1].size_bytes"]


@pytest.mark.parametrize(
    ("spoilt", "field"),
    [
        (file("artifact/model.onnx", "A" * 64), "files[0].sha256"),
        (file("artifact/model.onnx", "a" * 63), "files[0].sha256"),
        (file("artifact/model.onnx", f"sha256:{A}0"), "files[0].sha256"),
        (file("artifact/model.onnx", size_bytes=-1), "files[0].size_bytes"),
        ({"path": "artifact/model.onnx", "sha256": A}, "files[0].size_bytes"),
        (file("p" * 10_001), "files[0].path"),
        (file("../x"), "files[0].path"),
        ("artifact/model.onnx", "files[0]"),
    ],
)
def test_each_mistake_has_its_field(spoilt: Any, field: str) -> None:
    assert field in fields([spoilt])
    assert read_files([spoilt], None, MOST)[0] == [] or field == "files[0].path"


def test_the_backends_file_must_be_there_where_the_backend_is_known() -> None:
    other = [file("artifact/model.pt")]
    assert list(fields(other)) == ["files"] and "sluicegate-onnx loads artifact/model.onnx" in fields(other)["files"]
    assert fields(other, None) == {}
    assert list(fields([])) == ["files"] and read_files([], None, MOST) == ([], [])


def test_ten_thousand_files_are_announced_at_most() -> None:
    many = [file(f"artifact/{i}.json") for i in range(MOST_FILES - 1)]
    assert MOST_FILES == 10_000
    assert fields([MODEL, *many]) == {}
    assert (
        "the release has 10001 files, and 10000 are the most"
        in fields([MODEL, *many, file("artifact/one.json")])["files"]
    )


# --- names of aliases


@pytest.mark.parametrize("name", ["a", "ab", "champion", "r", "r1a", "v2", "a-b-1", "a" * 40, "rc-1"])
def test_names_that_an_alias_may_have(name: str) -> None:
    assert name_problems(name) == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("r14", "would read as a release"), ("r0", "would read as a release"),
        ("", "is no name of an alias"), ("a" * 41, "is no name of an alias"), ("-a", "is no name of an alias"),
        ("a-", "is no name of an alias"), ("1a", "is no name of an alias"), ("A", "is no name of an alias"),
        ("a_b", "is no name of an alias"), ("a\n", "is no name of an alias"),
        *((name, f"{name} is reserved: {why}") for name, why in RESERVED.items()),
    ],
)  # fmt: skip
def test_names_that_it_may_not_have(name: str, says: str) -> None:
    (problem,) = name_problems(name)
    assert problem.field == "name" and says in problem.message and "champion" in problem.fix


def test_a_long_name_is_shown_short() -> None:
    (problem,) = name_problems("x" * 200)
    assert problem.message == "'" + "x" * 59 + " is no name of an alias."


# --- Triton's model repository


def manifest(*paths: str) -> dict[str, Any]:
    serving = {"max_batch_size": 4, "inputs": [TENSOR], "outputs": [TENSOR], "dynamic_batching": None}
    runtime = {"backend": "sluicegate-onnx"}
    return {"model": "m", "files": [{"path": path} for path in paths], "serving": serving, "runtime": runtime}


def test_files_lie_in_the_directory_of_their_release() -> None:
    placed, texts = tree_of(
        manifest("artifact/model.onnx", "config.pbtxt", "artifact/config.pbtxt", "tokenizer/v.txt"), 7
    )
    assert placed == {"m/7/model.onnx": "artifact/model.onnx", "m/7/tokenizer/v.txt": "tokenizer/v.txt"}
    assert list(texts) == ["m/config.pbtxt"]
    assert texts["m/config.pbtxt"].splitlines()[:3] == ['name: "m"', 'backend: "onnxruntime"', "max_batch_size: 4"]


def test_two_files_that_would_be_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tokenizer/v.txt and artifact/tokenizer/v.txt would be the same file"):
        tree_of(manifest("artifact/tokenizer/v.txt", "tokenizer/v.txt"), 1)
