"""Paths and formats of a release's files."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core.file_rules import (
    BACKEND_FILES,
    backend_problems,
    code_files,
    collision_key,
    collisions,
    path_problems,
    role_of,
    set_problems,
    waivers_needed,
)
from registry.core.lifecycle import FileRole


@pytest.mark.parametrize(
    "path",
    ["artifact/model.onnx", "artifact/deep/er/weights.safetensors", "tokenizer/tokenizer.json", "tokenizer/vocab.txt", "config.pbtxt",
     "artifact/config.pbtxt", "artifact/ünïcode.json", "artifact/.hidden.json", "artifact/MODEL.ONNX", "artifact/model.py",
     "artifact/model.pkl", "artifact/pytorch_model.bin"],
)  # fmt: skip
def test_good_paths(path: str) -> None:
    assert path_problems(path) == path_problems(path, beside=[]) == []


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "empty"), ("artifact/" + "x" * 300 + ".json", "too long"), ("artifact/" + "ü" * 140 + ".json", "255 bytes"),
        ("/etc/passwd.json", "absolute"), ("C:/model.onnx", "absolute"), ("artifact/../../etc/x.json", "leaves its folder"),
        ("..", "leaves its folder"), ("artifact/./model.onnx", "points at itself"), ("artifact//model.onnx", "empty part"),
        ("artifact/", "empty part"), ("artifact/ model.onnx", "space"), ("artifact\\model.onnx", "backslash"),
        ("artifact/a\x00.json", "control"), ("artifact/a\n.json", "control"), ("artifact/a\u202egpj.json", "invisible"),
        ("artifact/\ud800.json", "control"), ("model.onnx", "neither under"), ("release.yaml", "neither under"),
        ("other/model.onnx", "neither under"), ("Artifact/model.onnx", "neither under"), ("tokenizer", "neither under"),
        ("artifact/weights.npy", "can run code"), ("artifact/weights.NPZ", "can run code"), ("artifact/model.h5", "can run code"),
        ("artifact/run.sh", "a program"), ("artifact/lib.so", "a program"), ("artifact/model", "no ending"),
        ("artifact/\ufffd.onnx", "not UTF-8"),
        ("artifact/.onnx", "no ending"),
    ],
)  # fmt: skip
def test_bad_paths_say_why_and_what_to_do(path: str, says: str) -> None:
    (problem,) = path_problems(path, beside=[])
    assert problem.field == "path" and says in problem.message + problem.fix and problem.fix


_ANY = st.text(max_size=40) | st.from_regex(r"(artifact|tokenizer|\.\.|/|\\|\x00|a|\.json|\.onnx){1,8}", fullmatch=True)


@given(_ANY)
def test_an_accepted_path_stays_in_its_folder(path: str) -> None:
    if not path_problems(path):
        assert posixpath.normpath(path) == path and not path.startswith(("/", "../"))
        assert path.split("/")[0] in {"artifact", "tokenizer", "config.pbtxt"}
        assert path.encode("utf-8") and path.isprintable() and "\\" not in path


@given(
    st.lists(
        st.sampled_from(["a", "A", "b", "é", "e\u0301", "ß", "ss"]).map(lambda n: f"artifact/{n}.json"), max_size=6
    )
)
def test_accepted_lists_have_no_two_names_for_one_file(paths: list[str]) -> None:
    if not set_problems(paths):
        assert len({collision_key(path) for path in paths}) == len(paths)
    else:
        assert len({collision_key(path) for path in paths}) < len(paths)


def test_collisions_of_case_composition_and_folder() -> None:
    assert collisions("artifact/Model.onnx", ["artifact/model.onnx"])
    assert collisions("artifact/caf\u00e9.json", ["artifact/cafe\u0301.json"])
    assert collisions("artifact/a.json", ["artifact/a.json/b.json"]) and collisions(
        "artifact/a.json/b.json", ["artifact/a.json"]
    )
    assert not collisions("artifact/a.json", ["artifact/b.json", "tokenizer/a.json"])
    assert [
        p.field for p in set_problems(["artifact/a.json/b.json", "artifact/A.json", "../x", "artifact/c.json"])
    ] == ["files[1].path", "files[2].path"]


def test_ten_thousand_paths_are_checked_quickly() -> None:
    assert set_problems([f"artifact/{i // 100}/{i}.json" for i in range(10_000)]) == []


def test_roles_and_code() -> None:
    assert role_of("artifact/model.onnx") is FileRole.ARTIFACT
    assert role_of("tokenizer/vocab.txt") is FileRole.TOKENIZER
    assert role_of("tokenizer/tricks.py") is role_of("artifact/model.pt") is FileRole.CODE
    assert role_of("artifact/model.pkl") is FileRole.CODE
    assert role_of("config.pbtxt") is role_of("artifact/config.pbtxt") is FileRole.CONFIG
    assert role_of("artifact/README.md") is FileRole.DOC
    assert role_of("artifact/LICENSE") is FileRole.DOC
    assert role_of("artifact/w.bin", is_data=True) is role_of("artifact/w_data", is_data=True) is FileRole.ARTIFACT
    assert role_of("artifact/w.py", is_data=True) is role_of("artifact/w.pt", is_data=True) is FileRole.CODE
    sealed = [("w.bin", "artifact"), ("w.pkl", "code"), ("model.py", "artifact"), ("model.onnx", "artifact")]
    assert code_files({"path": f"artifact/{name}", "role": role} for name, role in sealed) == [
        "artifact/w.pkl",
        "artifact/model.py",
    ]


def test_beside_a_graph_any_name_may_be_its_data_until_the_graph_is_read() -> None:
    names = ["artifact/a/model.onnx", "artifact/a/model.onnx_data", "artifact/a/deep/onnx__MatMul_1"]
    assert set_problems(names) == []
    refused = set_problems([*names, "artifact/model_data", "tokenizer/x.weights"])
    assert [one.field for one in refused] == ["files[3].path", "files[4].path"]
    assert path_problems("artifact/w_data", beside=["artifact/model.onnx"]) == []
    assert path_problems("artifact/w_data", beside=["artifact/model.py"])


def test_each_kind_of_code_needs_a_waiver_of_its_kind() -> None:
    assert waivers_needed(["artifact/model.onnx", "config.pbtxt"]) == frozenset()
    assert waivers_needed(["artifact/model.pt"]) == waivers_needed(["artifact/model.py"]) == {"code"}
    assert waivers_needed(["artifact/model.onnx", "artifact/head.PKL"]) == {"pickle"}
    assert waivers_needed(["artifact/model.py", "artifact/head.bin"]) == {"code", "pickle"}


@pytest.mark.parametrize("backend", sorted(BACKEND_FILES))
def test_a_backend_needs_its_file(backend: str) -> None:
    assert backend_problems(backend, [BACKEND_FILES[backend]]) == []
    (problem,) = backend_problems(backend, ["tokenizer/tokenizer.json"])
    assert problem.field == BACKEND_FILES[backend] and "Add" in problem.fix


def test_another_backends_file_is_a_hint() -> None:
    (problem,) = backend_problems("sluicegate-onnx", ["artifact/model.plan"])
    assert "tensorrt" in problem.fix


def test_long_paths_are_shown_short() -> None:
    (plain,), (cut,) = path_problems("x" * 118), path_problems("x" * 119)
    assert plain.message.startswith("'" + "x" * 118 + "' ") and cut.message.startswith("'" + "x" * 116 + "...' ")


def test_names_have_300_characters_and_255_bytes_between_slashes() -> None:
    def path(*lengths: int) -> str:
        return "artifact/" + "/".join("x" * length for length in lengths) + ".json"

    assert path_problems(path(250)) == [] and "too long" in path_problems(path(251))[0].message
    assert len(path(140, 145)) == 300 and path_problems(path(140, 145)) == []
    assert "too long" in path_problems(path(140, 146))[0].message
