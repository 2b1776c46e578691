"""The semantic diff of two manifests with their files' headers, and of two tokenizers."""

from __future__ import annotations

import io
import json
import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.core.coupling import changed_parts, warning
from registry.core.diff import MOST_EXAMPLES, Diff, compare, differing, fields, showable
from registry.core.file_rules import role_of
from registry.core.formats import inspect
from registry.core.formats.tokenizers import read
from registry.core.manifest import File, build
from registry.core.spec import parse_spec
from registry.core.tokenizer import difference, is_same
from tests.support.worlds.model_files import gguf_file, onnx_file, safetensors_file, tokenizer_file
from tests.support.worlds.registry_samples import release_yaml, sha256


def manifest(files: dict[str, bytes], changes: dict[str, Any] | None = None) -> dict[str, Any]:
    listed = [File(path, role_of(path), sha256(data), len(data)) for path, data in files.items()]
    return build(parse_spec(release_yaml(changes)), listed)


def facts(files: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    found = {path: inspect(path, io.BytesIO(data), len(data)) for path, data in files.items()}
    return {path: {"kind": one.kind, **one.facts} for path, one in found.items()}


def between(old: dict[str, bytes], new: dict[str, bytes], before: Any = None, after: Any = None) -> Diff:
    a, b = manifest(old, before), manifest(new, after)
    only_a, only_b = differing(a, b)
    return compare(
        a,
        b,
        names=("r1", "r2"),
        old_facts=facts({path: old[path] for path in only_a}),
        new_facts=facts({path: new[path] for path in only_b}),
    )


def rows(diff: Diff) -> list[tuple[str, str, str]]:
    return [(change.part, change.field, change.kind) for change in diff.changes]


ONE = {"artifact/model.onnx": onnx_file("one"), "tokenizer/vocab.txt": b"a\nb\n"}


def test_equal_manifests_have_no_difference() -> None:
    diff = between(ONE, ONE)
    assert diff.is_same and diff == Diff(()) and json.dumps(diff.as_json())


def test_files_are_told_by_digest_and_renames_are_found() -> None:
    old = {**ONE, "artifact/a.data": b"1", "artifact/b.data": b"2", "artifact/gone.txt": b"x"}
    new = {**ONE, "artifact/moved.data": b"1", "artifact/b.data": b"3", "artifact/new.json": b"{}"}
    diff = between(old, new)
    assert rows(diff) == [
        ("files", "artifact/b.data", "changed"),
        ("files", "artifact/gone.txt", "removed"),
        ("files", "artifact/moved.data", "renamed"),
        ("files", "artifact/new.json", "added"),
    ]
    assert diff.changes[2].old["path"] == "artifact/a.data" and diff.changes[2].new["size_bytes"] == 1
    assert diff.unread == {} and diff.coupled == ()


def test_equal_files_that_move_are_paired_one_to_one() -> None:
    old = {**ONE, "artifact/a.txt": b"", "artifact/b.txt": b""}
    new = {**ONE, "artifact/c.txt": b"", "artifact/d.txt": b"", "artifact/e.txt": b""}
    assert [kind for _, _, kind in rows(between(old, new))] == ["renamed", "renamed", "added"]


def test_configuration_is_told_by_field_and_lists_by_name() -> None:
    changes = {
        "serving.max_batch_size": 8,
        "envelope.limits.max_batch_size": 8,
        "serving.inputs.0.dims": [2],
        "serving.outputs": [{"name": "score", "data_type": "FP32", "dims": [1]}, *release_yaml()["serving"]["outputs"]],
        "provenance.labels": {"precision": "int8"},
    }
    diff = between(ONE, ONE, after=changes)
    assert rows(diff) == [
        ("serving", "inputs[text].dims", "changed"),
        ("serving", "max_batch_size", "changed"),
        ("serving", "outputs[score]", "added"),
        ("envelope", "limits.max_batch_size", "changed"),
        ("provenance", "labels", "added"),
    ]
    assert (diff.changes[0].old, diff.changes[0].new) == ([1], [2])


def test_a_member_that_appears_and_one_that_becomes_null() -> None:
    old, new = {"a": None, "b": 1, "c": True}, {"a": {"x": 1}, "b": None, "c": 1}
    assert [(c.field, c.kind) for c in fields("p", old, new)] == [("a", "added"), ("b", "removed"), ("c", "changed")]


def test_members_of_lists_without_names_are_told_by_position() -> None:
    old, new = [{"v": 1}, {"v": 2}], [{"v": 1}, {"v": 3}, {"v": 4}]
    assert [(c.field, c.kind) for c in fields("p", old, new)] == [("[1].v", "changed"), ("[2]", "added")]
    shapes = [{"hardware": "L4", "workload": "w", "n": 1}], [{"hardware": "L4", "workload": "w", "n": 2}]
    assert [c.field for c in fields("p", *shapes)] == ["[L4, w].n"]


def test_tensors_are_told_by_header_whatever_file_they_lie_in() -> None:
    old = {
        **ONE,
        "artifact/w.safetensors": safetensors_file([("a", "F32", [2, 3]), ("b", "F32", [4]), ("c", "I8", [1])]),
    }
    new = {
        **ONE,
        "artifact/w-1.safetensors": safetensors_file([("a", "F16", [2, 3])]),
        "artifact/w-2.safetensors": safetensors_file([("c", "I8", [1]), ("d", "I8", [9])]),
    }
    (tensors,) = between(old, new).tensors
    assert (tensors.format, tensors.same, tensors.added, tensors.removed, tensors.changed) == (
        "safetensors",
        1,
        1,
        1,
        1,
    )
    assert [(c.field, c.kind) for c in tensors.examples] == [("a", "changed"), ("d", "added"), ("b", "removed")]
    assert tensors.examples[0].old == {"data_type": "F32", "shape": [2, 3]}


def test_examples_of_tensors_are_of_every_kind() -> None:
    old = {**ONE, "artifact/w.safetensors": safetensors_file([(f"old{i:03}", "I8", [1]) for i in range(200)])}
    new = {**ONE, "artifact/w.safetensors": safetensors_file([(f"new{i:03}", "I8", [1]) for i in range(10)])}
    (found,) = between(old, new).tensors
    kinds = Counter(change.kind for change in found.examples)
    assert (found.added, found.removed, dict(kinds)) == (10, 200, {"added": 10, "removed": MOST_EXAMPLES - 10})


def test_a_graph_is_told_by_its_own_inputs_and_outputs() -> None:
    new = {**ONE, "artifact/model.onnx": onnx_file("two", outputs=[("probabilities", "FP16", [-1, 2])])}
    diff = between(ONE, new)
    headers = [change for change in diff.changes if change.part == "headers"]
    assert [(c.field, c.old, c.new) for c in headers] == [
        ("artifact/model.onnx.outputs.probabilities.data_type", "FP32", "FP16")
    ]


def test_the_memory_of_a_run_follows_from_the_graph_and_is_no_change_of_its_own() -> None:
    new = {**ONE, "artifact/model.onnx": onnx_file("two", inputs=[("text", "FP32", [-1, 1])])}
    headers = [change.field for change in between(ONE, new).changes if change.part == "headers"]
    assert headers == ["artifact/model.onnx.inputs.text.data_type"]


def test_gguf_metadata_is_told() -> None:
    old, new = (
        {**ONE, "artifact/m.gguf": gguf_file([("t", kind, [32])], {"general.file_type": kind})} for kind in (0, 1)
    )
    diff = between(old, new)
    assert ("headers", "artifact/m.gguf.metadata.general.file_type", "changed") in rows(diff)
    assert diff.tensors[0].changed == 1


def test_a_file_whose_header_is_not_known_says_so() -> None:
    old, new = manifest(ONE), manifest({**ONE, "artifact/model.onnx": onnx_file("two")})
    diff = compare(old, new, names=("r1", "r2"), old_facts={}, new_facts={})
    assert diff.unread == {"artifact/model.onnx": "its header was not read"} and len(diff.changes) == 1


def test_more_than_one_part_at_once_is_a_warning() -> None:
    new = {**ONE, "artifact/model.onnx": onnx_file("two")}
    image = "triton-local@sha256:" + "b" * 64
    diff = between(ONE, new, after={"runtime.image": image, "envelope.driver.cuda_min": "12.4"})
    assert diff.coupled == ("artifact", "runtime image", "driver needs")
    assert diff.warning.startswith("r2 changes artifact, runtime image and driver needs at once against r1.")
    assert between(ONE, new).warning == "" and between(ONE, new).coupled == ()


@pytest.mark.parametrize(
    ("files", "changes", "part"),
    [
        ({"artifact/model.onnx": onnx_file("2")}, {}, "artifact"),
        ({"artifact/model.py": b"#"}, {}, "artifact"),
        ({"tokenizer/vocab.txt": b"c"}, {}, "tokenizer"),
        ({}, {"runtime.image": "triton-local@sha256:" + "b" * 64}, "runtime image"),
        ({}, {"envelope.driver.driver_min": "550"}, "driver needs"),
        ({}, {"serving.parameters.max_tokens": "64"}, "serving config"),
        ({"artifact/README.md": b"# read me"}, {}, None),
        ({}, {"provenance.notes": "other", "envelope.host.memory_mib_min": 600}, None),
    ],
)
def test_each_part_of_a_coupled_change(files: dict[str, bytes], changes: dict[str, Any], part: str | None) -> None:
    assert changed_parts(manifest(ONE), manifest({**ONE, **files}, changes)) == ((part,) if part else ())


def test_one_part_is_no_warning() -> None:
    assert warning([], "r2", "r1") == warning(["artifact"], "r2", "r1") == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["name", "kind", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "kind", "a"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(JSON, JSON)
def test_fields_differ_exactly_where_the_values_do(old: Any, new: Any) -> None:
    found = list(fields("p", old, new))
    if found:
        assert json.dumps(old) != json.dumps(new) or old is None or new is None
    same_as_sets = json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)
    assert not (same_as_sets and found)


# --- tokenizers

WORDS = {"[UNK]": 0, "good": 1, "bad": 2}


def tokens(vocabulary: dict[str, int] = WORDS, **changes: Any) -> Any:
    found = read("tokenizer/tokenizer.json", tokenizer_file(vocabulary, **changes))
    assert found is not None
    return found


def test_tokens_that_came_went_and_changed() -> None:
    found = difference(tokens(), tokens({"[UNK]": 0, "good": 2, "fine": 1, "new\n": 3}))
    assert found["vocabulary"] == {"old": 3, "new": 4, "added": 2, "removed": 1, "changed": 1}
    assert found["tokens"] == {
        "added": [{"token": "fine", "new": {"id": 1}}, {"token": "new\\n", "new": {"id": 3}}],
        "removed": [{"token": "bad", "old": {"id": 2}}],
        "changed": [{"token": "good", "old": {"id": 1}, "new": {"id": 2}}],
    }
    assert not is_same(found) and is_same(difference(tokens(), tokens()))


def test_steps_around_the_vocabulary() -> None:
    cased = tokens(normalizer={"type": "BertNormalizer", "lowercase": False}, post_processor={"type": "BertProcessing"})
    (normalizer, post) = difference(tokens(), cased)["fields"]
    assert normalizer["field"] == "normalizer" and normalizer["new"]["lowercase"] is False
    assert (post["field"], post["old"]) == ("post_processor", None)


def test_added_tokens_scores_merges_and_model_settings() -> None:
    special = [{"id": 0, "content": "[UNK]", "special": True}]
    found = difference(tokens(), tokens(added_tokens=special))
    assert found["tokens"]["changed"] == [{"token": "[UNK]", "old": {"id": 0}, "new": {"id": 0, "special": True}}]
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.5]]}
    other = {**unigram, "vocab": [["<unk>", 0.0], ["a", -2.5]]}
    found = difference(tokens(model=unigram), tokens(model=other))
    assert found["tokens"]["changed"] == [
        {"token": "a", "old": {"id": 1, "score": -1.5}, "new": {"id": 1, "score": -2.5}}
    ]
    bpe = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "dropout": None}
    found = difference(tokens(model=bpe), tokens(model={**bpe, "merges": [["b", "a"]], "dropout": 0.1}))
    assert [one["field"] for one in found["fields"]] == ["model.dropout", "merges"]
    assert difference(tokens(), tokens(model=bpe))["fields"][0] == {"field": "model", "old": "WordPiece", "new": "BPE"}


def test_other_files_that_hold_a_vocabulary() -> None:
    plain = read("tokenizer/vocab.txt", b"[UNK]\r\ngood\n")
    table = read("tokenizer/vocab.json", b'{"[UNK]": 0, "good": 1}')
    assert plain is not None and table is not None and plain.vocabulary == table.vocabulary
    assert read("tokenizer/tokenizer.json", b"{}") is None and read("tokenizer/tokenizer.json", b"{") is None
    assert read("tokenizer/special_tokens_map.json", b"{}") is None


def pieces(*tokens: tuple[str, float, int], prefix: bool = True) -> bytes:
    """A SentencePiece model."""

    def message(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    found = b"".join(
        message(1, message(1, token.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))
        for token, score, kind in tokens
    )
    return found + message(2, b"\x18\x02") + message(3, message(1, b"nmt_nfkc") + bytes([0x18, prefix]))


def test_a_sentencepiece_model() -> None:
    old = read("tokenizer/tokenizer.model", pieces(("<unk>", 0.0, 2), ("a", -1.0, 1), ("b", -2.0, 1)))
    new = read("tokenizer/tokenizer.model", pieces(("<unk>", 0.0, 2), ("a", -1.5, 1), ("c", -2.0, 4), prefix=False))
    assert old is not None and new is not None and old.model == "BPE"
    found = difference(old, new)
    assert found["vocabulary"] == {"old": 3, "new": 3, "added": 1, "removed": 1, "changed": 1}
    assert found["tokens"]["added"] == [{"token": "c", "new": {"id": 2, "score": -2.0, "type": "user_defined"}}]
    (normalizer,) = found["fields"]
    assert normalizer["new"]["add_dummy_prefix"] is False and normalizer["old"]["name"] == "nmt_nfkc"
    assert read("artifact/x.model", b"\xff" * 20) is None and read("artifact/x.model", b"") is None


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_tokenizer_or_none(data: bytes) -> None:
    for path in ("tokenizer/tokenizer.json", "tokenizer/vocab.json", "tokenizer/vocab.txt", "tokenizer/spiece.model"):
        found = read(path, data)
        if found is not None:
            assert is_same(difference(found, found))


# --- limits


def test_two_parts_at_once_are_a_warning_of_both() -> None:
    assert warning(["artifact", "tokenizer"], "r2", "r1").startswith(
        "r2 changes artifact and tokenizer at once against r1."
    )


def test_values_are_shown_as_json_can_hold_them() -> None:
    assert showable({"a": [1, 1.5, "é", None, True], 5: "\ud800"}) == {"a": [1, 1.5, "é", None, True], "5": "\\ud800"}
    assert [showable(value) for value in (float("nan"), float("inf"), 2.5, 7)] == ["nan", "inf", 2.5, 7]
    assert showable({"\udfff": (1, 2)}) == {"\\udfff": [1, 2]} and showable("\ud7ff\ue000") == "\ud7ff\ue000"


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: (inner,)])
def test_values_are_shown_twenty_levels_deep(wrap: Any) -> None:
    def nested(depth: int) -> Any:
        value: Any = 7
        for _ in range(depth):
            value = wrap(value)
        return value

    assert json.dumps(showable(nested(20))).count("7") == 1
    assert "7" not in json.dumps(showable(nested(21))) and json.dumps(showable(nested(21))).count("\\u2026") == 1


def test_five_thousand_changes_are_told_and_the_rest_counted() -> None:
    def labelled(count: int) -> dict[str, Any]:
        return {"files": [], "provenance": {str(i): i for i in range(count)}}

    for count, left_off in ((5000, 0), (5001, 1), (5100, 100)):
        diff = compare(labelled(0), labelled(count), names=("r1", "r2"), old_facts={}, new_facts={})
        assert (len(diff.changes), diff.left_off, diff.as_json()["changes_left_off"]) == (
            min(count, 5000),
            left_off,
            left_off,
        )


def test_members_of_one_name_are_told_by_position() -> None:
    old, new = [{"name": "a", "v": 1}], [{"name": "a", "v": 1}, {"name": "a", "v": 2}]
    assert [(c.field, c.kind) for c in fields("p", old, new)] == [("[1]", "added")]
    assert [c.field for c in fields("p", [{"kind": "cpu", "n": 1}], [{"kind": "cpu", "n": 2}])] == ["[cpu].n"]
    mixed = [{"name": "a", "v": 1}, {"kind": "b", "v": 1}], [{"name": "a", "v": 2}, {"kind": "b", "v": 1}]
    assert [c.field for c in fields("p", *mixed)] == ["[0].v"]
    assert [(c.field, c.old) for c in fields("p", [1, {"name": "a"}], [{"name": "a"}])] == [("", [1, {"name": "a"}])]


def test_fifty_examples_of_tensors_are_shared_among_the_kinds() -> None:
    def tensors(**names: int) -> dict[str, Any]:
        listed = [[f"{name}{i:03}", "F32", [size]] for name, size in names.items() for i in range(60)]
        return {"m": {"kind": "onnx", "tensors": listed}}

    bare = {"files": []}
    diff = compare(bare, bare, names=("r1", "r2"), old_facts=tensors(gone=1, both=1), new_facts=tensors(new=1, both=2))
    (found,) = diff.tensors
    assert (found.same, found.added, found.removed, found.changed) == (0, 60, 60, 60)
    assert Counter(one.kind for one in found.examples) == {"added": 17, "changed": 17, "removed": 16}
    assert [one.field for one in found.examples[:2]] == ["both000", "both001"] and len(found.examples) == 50
