"""What lies under a server is compared with what was sealed; what differs is said once, and is a breach of a candidate."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from ledger.models import Event
from serving.models import Server
from serving.targets import actions
from serving.targets.agent import model_repository
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.drift import drift_of
from serving.targets.core.drift import Drift
from tests.contracts import serving_models as made
from tests.support.worlds.factories import make_environment, make_model, make_release, make_replica, make_server

SYSTEM = Actor.system("agent:test")
MODEL = "words"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], Path]:
    """A manifest, and the repository that was written of it."""
    blobs = made.MemoryBlobs()
    files = {"artifact/model.py": b"class TritonPythonModel: ...\n", "tokenizer/tokenizer.json": b"{}"}
    manifest = made.manifest(blobs, MODEL, files, made.serving(), backend="python", image=f"local/x@sha256:{'0' * 64}")
    spec = made.launch_spec(manifest, tmp_path / "server")
    model_repository.write(spec, BlobCache(tmp_path / "cache", blobs), tmp_path / "repository")
    return manifest, tmp_path / "repository"


def change(folder: Path) -> None:
    path = folder / "1" / "model.py"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"...", b"pass"))


def link_away(folder: Path) -> None:
    path = folder / "1" / "model.py"
    shutil.copyfile(path, folder.parent / "elsewhere.py")
    path.unlink()
    path.symlink_to(folder.parent / "elsewhere.py")  # the same bytes today


ALL_GONE = [
    f"{path} is gone" for path in ("1/model.py", "1/sluicegate.json", "1/tokenizer/tokenizer.json", "config.pbtxt")
]
SPOILT: list[tuple[Callable[[Path], object], list[str]]] = [
    (lambda folder: None, []),
    (change, ["1/model.py was changed"]),
    (link_away, ["1/model.py was changed"]),
    (lambda folder: (folder / "1" / "model.py").unlink(), ["1/model.py is gone"]),
    (lambda folder: (folder / "config.pbtxt").write_text("name: 'x'"), ["config.pbtxt was changed"]),
    (lambda folder: (folder / "1" / "extra.so").write_bytes(b"\x7fELF"), ["1/extra.so was put there"]),
    (lambda folder: (folder / "2").mkdir() or (folder / "2" / "model.py").write_bytes(b""), ["2/model.py was put there"]),
    (lambda folder: (folder / "1" / "__pycache__").mkdir() or (folder / "1" / "__pycache__" / "a.pyc").touch(), []),
    (lambda folder: shutil.rmtree(folder), ALL_GONE),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), SPOILT)
def test_every_file_that_is_not_as_sealed_is_named(
    served: tuple[dict[str, Any], Path], spoil: Callable[[Path], object], words: list[str]
) -> None:
    manifest, repository = served
    spoil(repository / MODEL)
    assert [one.words for one in drift_of(manifest, MODEL, repository, rest=lambda _: None)] == words


def test_reading_is_held_back_to_a_rate(served: tuple[dict[str, Any], Path]) -> None:
    manifest, repository = served
    rested: list[float] = []
    drift_of(manifest, MODEL, repository, rest=rested.append, per_s=1000)
    size = sum(path.stat().st_size for path in repository.rglob("*") if path.is_file())
    assert sum(rested) == pytest.approx(size / 1000)


@pytest.mark.django_db
def test_drift_is_told_once_and_kept_with_the_server() -> None:
    release = make_release(make_model())
    server = make_server(make_replica(release, make_environment("production"), state="ready"))
    drift = [Drift("1/model.py", "a" * 64, hashlib.sha256(b"x").hexdigest())]
    for found in ([], drift, drift, []):
        actions.record_drift(actor=SYSTEM, server=server, drift=found)
    server.refresh_from_db()
    assert server.drift == [] and server.drift_checked_at and server.drift_checked_at <= timezone.now()
    (event,) = Event.objects.filter(verb="server.drifted")
    assert "1/model.py was changed" in event.reason and event.facts["release"] == release.name
    actions.record_drift(actor=SYSTEM, server=server, drift=drift)
    assert Server.objects.get().drift == [drift[0].as_json()]
    assert Event.objects.filter(verb="server.drifted").count() == 2
