"""The parts of the dry check that need no server: places in YAML, first bytes, whole judgements."""

from __future__ import annotations

import io
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters.json_yaml import LONGEST_TEXT, MOST_PATH_CHARS, MOST_VALUES, _Loader, read_text, write_text
from registry.core.formats import inspect
from registry.core.formats.heads import inspect_head
from registry.core.located import TextPlace, in_document, place_of
from registry.core.release_check import Candidate, ModelTerms, check
from registry.core.schema import Problem
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import CONTRACT, ONNX, release_yaml, sha256

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5))
def test_what_is_written_as_yaml_reads_as_itself(document: dict[str, object]) -> None:
    read = read_text(write_text(document))
    assert (read.document, read.mistakes) == (document, ()) or any(
        "cannot stand" in one.message for one in read.mistakes
    )


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    read = read_text(text)
    assert all(one.message for one in read.mistakes)
    assert (
        read.mistakes
        or read.document == yaml.load(text, yaml.CSafeLoader)
        or isinstance(read.document, (str, dict, list))
    )


def test_each_field_has_its_place() -> None:
    text = "a:\n  b: [1, {c: x}]\n  'd e': y\n"
    places = read_text(text).places
    assert (
        places["a"] == TextPlace(1, 1)
        and places["a.b[1].c"] == TextPlace(2, 14)
        and places["a.d e"] == TextPlace(3, 10)
    )


@pytest.mark.parametrize(
    ("field", "place"),
    [("a.b[1].c", (2, 14)), ("a.b[1].z", (2, 10)), ("a.b[7]", (2, 3)), ("a.z.y", (1, 1)), ("q", (1, 1)), ("", (1, 1))],
)
def test_what_is_missing_stands_where_it_is_missing_from(field: str, place: tuple[int, int]) -> None:
    places = read_text("a:\n  b: [1, {c: x}]\n").places
    assert place_of(field, places) == TextPlace(*place)
    [found] = in_document([Problem(field, "m", "f")], "release.yaml", places)
    assert (found.as_json()["line"], found.as_json()["file"]) == (place[0], "release.yaml")


def test_many_mistakes_of_one_text_are_told_together() -> None:
    read = read_text("a: .nan\nb: !!binary eA==\na: 1\n3: x\nc: 99999999999999999999\n")
    assert [one.place.line for one in read.mistakes if one.place] == [3, 4, 1, 2, 5]
    assert (
        read_text("".join(f"k{i}: .nan\n" for i in range(200))).mistakes[-1].message.startswith("it has more than 100")
    )


def test_anchors_repeat_no_more_text_than_anybody_writes() -> None:
    bomb = f"a: &a {'x' * 10_000}\nmodel: [{', '.join(['*a'] * 4_000)}]\n"
    for text in (bomb, bomb.replace("*a", "{*a : 1}")):
        read = read_text(text)
        assert read.document is None and "anchors" in read.mistakes[-1].message
    read = read_text(f"? &a {'x' * 10_000}\n: 1\n" + "? *a\n: 1\n" * 50)
    assert read.mistakes and sum(len(one.message) for one in read.mistakes) < 100_000


def test_a_long_text_is_refused_unread_and_a_full_one_before_its_tree_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    real = _Loader.compose_scalar_node

    def counted(self: _Loader, anchor: Any) -> Any:
        built.append(1)
        return real(self, anchor)

    monkeypatch.setattr(_Loader, "compose_scalar_node", counted)
    read = read_text("a" * (LONGEST_TEXT + 1))
    assert str(LONGEST_TEXT) in read.mistakes[0].message and read.document is None and not built
    read = read_text(f"[{'1,' * (MOST_VALUES + 5_000)}]")
    assert "names and values" in read.mistakes[0].message and len(built) <= MOST_VALUES


def test_all_paths_together_are_bounded() -> None:
    read = read_text(f"{'k' * 980}: [{'1,' * 19_000}]\n")
    assert not read.mistakes and len(next(iter(read.document.values()))) == 19_000
    assert sum(map(len, read.places)) <= MOST_PATH_CHARS


def test_another_models_name_is_quoted_in_part() -> None:
    said = check(
        Candidate({"model": ["x" * 10_000] * 100}, []), ModelTerms("sentiment", CONTRACT, {}, 1 << 30)
    ).problems
    assert all(len(one.problem.message) < 1_000 for one in said)


def test_first_bytes_tell_what_they_reach() -> None:
    whole = inspect_head("artifact/model.onnx", ONNX, len(ONNX))
    assert whole is not None and whole.facts["inputs"]
    assert inspect_head("artifact/model.onnx", ONNX[:10], len(ONNX)) is None
    assert inspect_head("artifact/model.onnx", ONNX, len(ONNX) - 1) is None  # more than there is
    wrong = inspect_head("artifact/x.json", b"\x7fELF", 4)
    assert wrong is not None and "a program" in wrong.problems[0].message


@pytest.mark.parametrize(
    ("name", "needed"),
    [("helper.py", ("code",)), ("w.pt", ("code",)), ("w.bin", ()), ("w.data", ()), ("config.pbtxt", ())],
)
def test_the_check_tells_the_waivers_that_the_seal_will_ask_for(name: str, needed: tuple[str, ...]) -> None:
    graph, data = onnx_file(weights=[("w", "FP32", [10])], external={"location": name}), b"1" * 40
    files = {"artifact/model.onnx": graph, f"artifact/{name}": data}
    listed = [{"path": path, "size_bytes": len(one)} for path, one in files.items()]
    findings = {path: inspect(path, io.BytesIO(one), len(one)) for path, one in files.items()}
    assert check(Candidate(release_yaml(), listed, findings), ModelTerms("sentiment")).waivers == needed


def test_the_whole_is_judged() -> None:
    files = [{"path": "artifact/model.onnx", "size_bytes": len(ONNX), "sha256": sha256(ONNX)}]
    good = check(Candidate(release_yaml(), files), ModelTerms("sentiment", CONTRACT, {}, 1 << 40))
    assert good.problems == () and good.digest is not None and good.waivers == ()
    bad = check(Candidate(release_yaml({"model": "other"}), []), ModelTerms("sentiment", CONTRACT, {}, 1 << 40))
    assert [(one.file, one.problem.field) for one in bad.problems] == [
        ("release.yaml", "model"), ("", "files"), ("", "files"),
    ]  # fmt: skip
    large = check(Candidate(release_yaml(), files), ModelTerms("sentiment", CONTRACT, {}, 10))
    assert [(one.file, one.problem.field) for one in large.problems] == [("artifact/model.onnx", "size_bytes")]
    assert check(Candidate("text", files), ModelTerms("sentiment", CONTRACT, {}, 10)).document is None
