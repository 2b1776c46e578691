"""What the launcher refuses before a server starts: bytes and configurations that are not what was sealed, and another runtime."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.ports import LaunchError
from serving.targets.agent import model_repository, runtime_image
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.launcher import LocalLauncher
from tests.contracts import serving_models as made
from tests.contracts.serving_models import VENV, MemoryBlobs, launch_spec
from tests.support.rigs.triton_rig import local_launcher, refusal

pytestmark = pytest.mark.real("triton")


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def launcher(tmp_path: Path, blobs: MemoryBlobs) -> Iterator[LocalLauncher]:
    with local_launcher(tmp_path, blobs) as made_launcher:
        yield made_launcher


def test_a_wrong_byte_is_refused_before_the_server_sees_it(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    manifest = made.doubling(blobs)
    sha256 = manifest["files"][0]["sha256"]
    blobs.data[sha256] = blobs.data[sha256][:-1] + b"!"
    error = refusal(launcher, manifest)
    assert error.reason == "digest_mismatch"
    assert "artifact/model.onnx" in error.message and sha256 in error.message


def test_a_manifest_that_is_not_the_sealed_one_is_refused(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    manifest = made.doubling(blobs)
    spec = launch_spec(manifest, launcher.folder_for(1, "doubling", "r1"))
    manifest["serving"]["max_batch_size"] = 4
    with pytest.raises(LaunchError) as caught:
        launcher.start(spec)
    assert caught.value.reason == "digest_mismatch"


def test_a_blob_that_is_gone_is_named(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    manifest = made.doubling(blobs)
    blobs.data.clear()
    error = refusal(launcher, manifest)
    assert error.reason == "fetch_failed" and "artifact/model.onnx" in error.message


def test_another_runtime_is_refused(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    other = f"local/triton-onnx@sha256:{'0' * 64}"
    manifest = made.manifest(
        blobs, "doubling", {"artifact/model.onnx": made.doubling_graph()}, made.serving(), image=other
    )
    error = refusal(launcher, manifest)
    assert error.reason == "runtime_mismatch"
    assert other in error.message and launcher.runtimes()[0]["image"] in error.message


def test_a_node_without_a_serving_environment_says_how_to_get_one(tmp_path: Path, blobs: MemoryBlobs) -> None:
    launcher = LocalLauncher(
        servers=tmp_path / "servers", venv=tmp_path / "nothing", blobs=BlobCache(tmp_path / "cache", blobs)
    )
    assert launcher.runtimes() == []
    error = refusal(launcher, made.doubling(blobs))
    assert error.reason == "runtime_mismatch" and "make setup" in error.message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_us": 0}},
            "preferred batch sizes [8]",
        ),
        ({"inputs": [{"name": "x", "data_type": "FLOAT99", "dims": [4]}]}, "FLOAT99"),
        ({"max_batch_size": "many"}, "many"),
    ],
    ids=["preferred", "data type", "not a number"],
)
def test_a_wrong_configuration_is_refused_with_its_reason(
    launcher: LocalLauncher, blobs: MemoryBlobs, changes: dict[str, Any], says: str
) -> None:
    error = refusal(launcher, made.doubling(blobs, **changes))
    assert error.reason == "bad_config"
    assert says in error.message


@pytest.mark.parametrize("path", ["artifact/../../x", "/etc/x", "artifact/model.py", "artifact/sluicegate.json"])
def test_a_file_that_would_lie_elsewhere_or_on_a_file_of_ours_is_refused(
    launcher: LocalLauncher, blobs: MemoryBlobs, path: str
) -> None:
    manifest = made.doubling(blobs)
    manifest["files"].append({"path": path, "role": "artifact", "sha256": blobs.put(b"x"), "size_bytes": 1})
    assert refusal(launcher, manifest).reason == "bad_config"


def test_a_release_without_its_entry_file_is_refused(launcher: LocalLauncher, blobs: MemoryBlobs) -> None:
    manifest = made.manifest(blobs, "doubling", {"artifact/weights.bin": b"x"}, made.serving())
    assert "artifact/model.onnx" in refusal(launcher, manifest).message


def test_files_are_checked_while_they_are_written(tmp_path: Path, blobs: MemoryBlobs) -> None:
    """A store that changes the bytes after it was asked once is caught all the same."""

    class Lying(MemoryBlobs):
        def reader_of(self, sha256: str) -> Any:
            return lambda start, length: b"other bytes"[start : start + length]

    spec = launch_spec(made.doubling(blobs), tmp_path / "server")
    with pytest.raises(LaunchError) as caught:
        model_repository.write(spec, BlobCache(tmp_path / "cache", Lying()), tmp_path / "repository")
    assert caught.value.reason == "digest_mismatch"
    assert not (tmp_path / "repository" / "doubling" / "1" / "model.onnx").exists()


NO_CSV, NO_TEXT = b"xllamacpp/x.so,sha256=", b"\xff"


@pytest.mark.parametrize("record", [None, NO_CSV, NO_TEXT])
def test_a_damaged_environment_of_one_kind_takes_no_other_kind_away(
    tmp_path: Path, blobs: MemoryBlobs, record: bytes | None
) -> None:
    venv, other = tmp_path / "venv", tmp_path / "venv-llamacpp"
    venv.symlink_to(VENV)
    site = other / "lib" / "python3.11" / "site-packages"
    for path in ("xllamacpp/xllamacpp.x.so", "xllamacpp-1.dist-info/RECORD"):
        (site / path).parent.mkdir(parents=True)
        if "RECORD" not in path or record is not None:
            (site / path).write_bytes(record or b"")
    launcher = LocalLauncher(servers=tmp_path / "servers", venv=venv, blobs=BlobCache(tmp_path / "cache", blobs))
    assert [one["server"] for one in launcher.runtimes()] == ["triton"]
    assert str(other) in launcher.missing()

    manifest = made.doubling(blobs)
    for server, says in (
        ("llamacpp", launcher.missing()),
        ("another", "no server kind another"),
        ("vllm", "Its owner runs it"),
    ):
        manifest["runtime"]["server"] = server
        error = refusal(launcher, manifest)
        assert error.reason == "runtime_mismatch" and says in error.message

    venv.unlink()
    venv.mkdir()
    assert launcher.runtimes() == [] and f"at {venv}" in launcher.missing() and str(other) in launcher.missing()


# the runtime's digest


def test_the_runtime_is_the_same_each_time_and_knows_its_versions() -> None:
    first, second = runtime_image.describe(VENV), runtime_image.describe(VENV)
    assert first == second
    assert first["image"].startswith("local/triton-onnx@sha256:") and first["versions"]["numpy"].startswith("1.")


def test_a_change_of_the_runner_is_another_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = runtime_image.describe(VENV)["image"]
    shutil.copytree(runtime_image.RUNNER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "onnx_runner.py").write_text("# changed")
    monkeypatch.setattr(runtime_image, "RUNNER", tmp_path)
    assert runtime_image.describe(VENV)["image"] != before
