"""The manifest: one digest for one content, whatever the order it came in."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry.core import coupling, manifest
from registry.core.diff import compare
from registry.core.file_rules import role_of
from registry.core.kinds import backend_of, runtime_of
from registry.core.manifest import File
from registry.core.spec import parse_spec
from tests.support.worlds.registry_samples import release_yaml, sha256

PATHS = [
    "artifact/model.onnx",
    "artifact/labels.json",
    "tokenizer/tokenizer.json",
    "tokenizer/Ünicode.txt",
    "artifact/deep/a.data",
]
FILES = [File(path, role_of(path), sha256(path.encode()), len(path)) for path in PATHS]


def shuffled(value: Any, draw: Any) -> Any:
    """The same JSON with its members in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], draw) for key in draw(st.permutations(list(value)))}
    return [shuffled(item, draw) for item in value] if isinstance(value, list) else value


@given(st.data())
def test_order_does_not_matter(data: st.DataObject) -> None:
    document = shuffled(release_yaml(), data.draw)
    files = data.draw(st.permutations(FILES))
    assert manifest.text_and_digest(parse_spec(document), files) == manifest.text_and_digest(
        parse_spec(release_yaml()), FILES
    )


@given(st.sampled_from(range(len(FILES))), st.sampled_from(["path", "sha256", "size_bytes", "gone"]))
def test_every_file_matters(i: int, what: str) -> None:
    file = FILES[i]
    other = {
        "path": [File(file.path + ".txt", file.role, file.sha256, file.size_bytes)],
        "sha256": [File(file.path, file.role, sha256(b"other"), file.size_bytes)],
        "size_bytes": [File(file.path, file.role, file.sha256, file.size_bytes + 1)],
        "gone": [],
    }[what]
    spec = parse_spec(release_yaml())
    assert (
        manifest.text_and_digest(spec, [*FILES[:i], *other, *FILES[i + 1 :]])[1]
        != manifest.text_and_digest(spec, FILES)[1]
    )


@given(st.sampled_from(["runtime.image", "serving.max_batch_size", "serving.parameters.max_tokens", "envelope.host.memory_mib_min",
                        "provenance.notes"]))  # fmt: skip
def test_every_part_of_the_spec_matters(path: str) -> None:
    value = {
        "runtime.image": "triton-local@sha256:" + "b" * 64,
        "serving.max_batch_size": 32,
        "envelope.host.memory_mib_min": 513,
    }.get(path, "other")
    changed = parse_spec(release_yaml({path: value, "envelope.limits": {}}))
    assert (
        manifest.text_and_digest(changed, FILES)[1]
        != manifest.text_and_digest(parse_spec(release_yaml({"envelope.limits": {}})), FILES)[1]
    )


def test_the_digest_is_the_sha256_of_the_text_and_the_text_holds_everything() -> None:
    text, digest = manifest.text_and_digest(parse_spec(release_yaml()), FILES)
    assert digest == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    read = json.loads(text)
    assert read["schema"] == "sluicegate/manifest/v2" and read["model"] == "sentiment"
    assert [file["path"] for file in read["files"]] == sorted(PATHS)
    assert read["files"][0] == {
        "path": "artifact/deep/a.data",
        "role": "artifact",
        "sha256": sha256(b"artifact/deep/a.data"),
        "size_bytes": 20,
    }
    assert set(read) == {"schema", "model", "files", "runtime", "serving", "envelope", "provenance"}


def test_a_known_manifest_keeps_its_digest() -> None:
    """A change of this digest is a change of every release's identity: it needs a new schema name."""
    _, digest = manifest.text_and_digest(parse_spec(release_yaml()), FILES)
    assert digest == "sha256:e9a4caf0fc6ed21c912480b12f374a5acdda844cd3b9df1b72e2c65b81366992"


def test_a_manifest_of_the_first_schema_keeps_the_meaning_of_its_backend() -> None:
    v1 = {"schema": "sluicegate/manifest/v1", "runtime": {"image": "one", "backend": "onnxruntime"}}
    assert (backend_of(v1), runtime_of(v1)["backend"]) == ("sluicegate-onnx", "sluicegate-onnx")
    assert backend_of({**v1, "schema": manifest.SCHEMA}) == "onnxruntime"
    assert backend_of({**v1, "runtime": {"backend": "python"}}) == "python" and backend_of({}) == ""


def test_a_backend_that_was_renamed_is_no_change() -> None:
    spec = parse_spec(release_yaml())
    after = manifest.build(spec, FILES)
    before = {**after, "schema": "sluicegate/manifest/v1", "runtime": {**spec.runtime, "backend": "onnxruntime"}}
    assert coupling.changed_parts(before, after) == ()
    assert compare(before, after, names=("r1", "r2"), old_facts={}, new_facts={}).changes == ()
