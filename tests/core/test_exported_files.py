"""The default files of exporters and tokenizers: taken, taken under a waiver, or refused with the next step."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import pytest

from registry.core.file_rules import code_files, format_problems, path_problems, role_of, set_problems
from registry.core.formats import inspect
from registry.core.lifecycle import FileRole
from tests.support.worlds.model_files import gguf_file, onnx_file, plan_file, safetensors_file, tokenizer_file

DOC = Path(__file__).parents[2] / "docs" / "release-folder.md"
JSON, TEXT, PIECES = b'{"a": 1}', "<s> 年 0.5\n{% if x %}".encode(), b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02"

#: File → its first bytes.
TAKEN: dict[str, bytes] = {
    "model.onnx": onnx_file(), "model_quantized.onnx": onnx_file(), "model.safetensors": safetensors_file([("w", "F32", [2])]),
    "model.safetensors.index.json": JSON, "model.gguf": gguf_file([("w", 0, [2])]), "model.plan": plan_file(),
    "openvino_model.xml": b"<?xml version='1.0'?><net/>", "config.json": JSON, "ort_config.json": JSON,
    "generation_config.json": JSON, "preprocessor_config.json": JSON, "quantize_config.json": JSON, "modules.json": b"[]",
    "sentence_bert_config.json": JSON, "config_sentence_transformers.json": JSON, "1_Pooling/config.json": JSON,
    "tokenizer.json": tokenizer_file({"[UNK]": 0}), "tokenizer_config.json": JSON, "special_tokens_map.json": JSON,
    "added_tokens.json": b"{}", "vocab.json": JSON, "vocab.txt": TEXT, "merges.txt": b"#version: 0.2\n\xc4\xa0 t\n",
    "spiece.model": PIECES, "sentencepiece.bpe.model": PIECES, "tokenizer.model": PIECES, "source.spm": PIECES,
    "bpe.codes": TEXT, "qwen.tiktoken": b"IQ== 0\n", "chat_template.jinja": TEXT, "labels.txt": TEXT, "labels.csv": b"0,cat\n",
    "id2label.tsv": b"0\tcat\n", "README.md": TEXT, "LICENSE": TEXT, "NOTICE": TEXT, "requirements.txt": TEXT, "hparams.yaml": TEXT,
    "pyproject.toml": TEXT, "variables/variables.index": b"\x00\x00\x04", "variables/variables.data-00000-of-00001": bytes(8),
    "tf_serving_warmup_requests": bytes(8),
}  # fmt: skip
#: File → its kind of waiver.
WAIVED = {
    "model.pt": "code", "model.py": "code", "pytorch_model.bin": "pickle", "model.pkl": "pickle", "pipeline.joblib": "pickle",
    "last.ckpt": "pickle", "openvino_model.bin": "pickle", "saved_model.pb": "code", "model.mar": "code",
    "model.keras": "code", "model.pt2": "code",
}  # fmt: skip
#: File → a word of its fix.
REFUSED = {
    "tf_model.h5": "Convert", "flax_model.msgpack": "Convert", "rust_model.ot": "Convert",
    "weights.npz": "Convert", "model.tflite": "tf2onnx",
    "model.mlmodel": "push the ONNX graph", "inference.pdmodel": "paddle2onnx", "model.ort": "Push the .onnx file",
    "model.engine": "artifact/model.plan", "model.trt": "artifact/model.plan",
    "model.tar.gz": "Unpack", "libops.so": "runtime image", "train.ipynb": "runtime image",
    "curve.png": "Leave it out", "model.weights": "Leave it out, or give it the ending",
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_taken_as_data(name: str) -> None:
    for folder in ("artifact", "tokenizer"):
        path = f"{folder}/{name}"
        assert path_problems(path, beside=[]) == set_problems([path]) == []
        assert inspect(path, io.BytesIO(TAKEN[name]), len(TAKEN[name])).problems == ()
        assert role_of(path) is not FileRole.CODE


@pytest.mark.parametrize("name", WAIVED)
def test_it_is_taken_under_a_waiver(name: str) -> None:
    path = f"artifact/{name}"
    assert path_problems(path, beside=[]) == [] and role_of(path) is FileRole.CODE
    assert code_files([{"path": path, "role": FileRole.CODE}]) == [path]


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_what_to_do(name: str) -> None:
    (problem,) = format_problems(f"artifact/{name}")
    assert REFUSED[name] in problem.fix and name in problem.message


@pytest.mark.parametrize("name", ["model.mar", "model.keras", "model.pt2"])
def test_an_archive_shows_what_its_pickles_import(name: str) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", "{}")
        archive.writestr("data.pkl", b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    found = inspect(f"artifact/{name}", packed, len(packed.getvalue()))
    assert found.problems == () and found.facts == {"members": 2, "imports": ["os.system"]}
    (problem,) = inspect(f"artifact/{name}", io.BytesIO(b"no archive"), 10).problems
    assert "cannot be a zip archive" in problem.message


def test_a_pickle_hides_under_no_name_of_data() -> None:
    for name in TAKEN:
        data = b"\x80\x04cos\nsystem\n(S'true'\ntR."
        found = inspect(f"artifact/{name}", io.BytesIO(data), len(data))
        assert found.problems, name


def test_the_documents_name_each_of_them() -> None:
    table = DOC.read_text().split("## What exporters write")[1].split("\n## ")[0]
    rows = {"taken": TAKEN, "taken under a waiver": WAIVED, "refused": REFUSED}
    for decision, names in rows.items():
        lines = " ".join(line for line in table.splitlines() if line.startswith(f"| {decision} |"))
        assert set(re.findall(r"`([^`]+)`", lines.rpartition("|")[0])) >= set(names), decision
