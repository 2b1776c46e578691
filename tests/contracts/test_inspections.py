"""Headers read from every blob store: the same facts, and of a large file only its header moves."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest

from ledger.core.errors import NotFound
from registry.core.formats import inspect
from registry.queries.file_headers import RangedReader
from registry.storage import BlobStore, FolderStore
from tests.contracts.blob_store_parts import s3_store
from tests.support.worlds.model_files import gguf_file, onnx_file, safetensors_file

LARGEST = 64 << 20
MANY = [(f"layers.{i}.weight", "FP32", [1024, 256]) for i in range(24)]
FILES = {
    "artifact/model.onnx": onnx_file(weights=MANY),
    "artifact/w.safetensors": safetensors_file([(name, "F32", shape) for name, _, shape in MANY]),
    "artifact/w.gguf": gguf_file([(name, 0, shape) for name, _, shape in MANY]),
}


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.real("s3"))])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "blobs", max_bytes=LARGEST)
    return s3_store(request.getfixturevalue("seaweed"), tmp_path / "copies", max_bytes=LARGEST)


@pytest.mark.parametrize("path", FILES)
def test_a_header_is_read_by_ranges(blobs: BlobStore, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = FILES[path]
    key, size = blobs.put_stream(io.BytesIO(data), hashlib.sha256(data).hexdigest())
    real, taken = blobs.read_range, list[int]()

    def counted(key: str, start: int, length: int) -> bytes:
        found = real(key, start, length)
        taken.append(len(found))
        return found

    monkeypatch.setattr(blobs, "read_range", counted)
    found = inspect(path, RangedReader(blobs, key), size)
    assert found == inspect(path, io.BytesIO(data), size) and len(found.facts["tensors"]) == len(MANY)
    assert size > 24 << 20 and sum(taken) < 3 << 20 and len(taken) < 40


def test_a_file_that_is_shorter_than_it_is_said_to_be(blobs: BlobStore) -> None:
    data = FILES["artifact/w.safetensors"][:1000]
    key, _ = blobs.put_stream(io.BytesIO(data))
    (problem,) = inspect("artifact/w.safetensors", RangedReader(blobs, key), 5000).problems
    assert "its size was given as 5000" in problem.message


def test_bytes_that_are_not_there(blobs: BlobStore) -> None:
    with pytest.raises(NotFound):
        inspect("artifact/w.safetensors", RangedReader(blobs, "0" * 64), 5000)
