"""Nodes with real copies of blobs, and releases whose files they are: servers are fakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from accounts.core.access import Actor
from registry.models import Release
from serving.agent import model_repository
from serving.agent.blob_cache import BlobCache
from serving.agent.prefetcher import Prefetcher
from serving.agent.reconciler import DeploymentReconciler
from serving.core.prefetch import FilesStanding
from serving.models import Deployment, Node, Prefetch
from serving.ports import LaunchSpec, RunningServer
from serving.queries.prefetch import files_on_nodes
from tests.actions.test_blob_cache import Source
from tests.contracts import serving_models as made
from tests.deployment_setup import QUICK
from tests.factories import (
    RUNTIME,
    make_deployment,
    make_model,
    make_node,
    make_release,
    resealed,
)
from tests.fakes.ports import FakeLauncher, FakeModel
from tests.rollout_setup import production

ROOMY = 2**40


def sealed_with(source: Source, *contents: bytes, **manifest: Any) -> Release:
    """A release of a model of its own, with these files, which the source has."""
    release = make_release(make_model())
    files = []
    for number, content in enumerate(contents):
        sha256, size = source.put(content)
        path = "artifact/model.onnx" if number == 0 else f"artifact/weights-{number}.bin"
        files.append({"path": path, "role": "artifact", "sha256": sha256, "size_bytes": size})
    return resealed(release, files=files, serving=made.serving(), **manifest)


class Machine(FakeLauncher):
    """A node with a real cache of its own: servers are fakes, their files are not."""

    def __init__(self, name: str, folder: Path, source: Source, *, max_bytes: int = ROOMY, pace: float = 1e12) -> None:
        super().__init__(
            [{"image": RUNTIME, "server": "triton", "backends": ["onnxruntime"], "versions": {}}], self._model
        )
        self.name, self.folder, self.actor = name, folder, Actor.system(f"agent:{name}")
        self.cache = BlobCache(folder / "cache", source, max_bytes=max_bytes)
        self.prefetcher = Prefetcher(self.cache, bytes_per_s=pace)
        make_node(name, facts={"fetches_ahead": True})

    def _model(self, spec: LaunchSpec) -> FakeModel:
        return FakeModel(spec.manifest["serving"], lambda arrays: {"y": arrays["x"]})

    def folder_for(self, deployment_id: int, model: str, release_name: str) -> Path:
        return self.folder / f"{model}-{deployment_id}-{next(self._pids)}"

    def start(self, spec: LaunchSpec) -> RunningServer:
        model_repository.write(spec, self.cache, spec.folder)
        return super().start(spec)

    def look(self, wait: Callable[[float], bool] = lambda seconds: False) -> float:
        return self.prefetcher.look(actor=self.actor, node=self.name, wait=wait)

    def settle(self, most: int = 50) -> None:
        """Looks until nothing is to be done at once."""
        for _ in range(most):
            if self.look():
                return
        raise AssertionError("it fetches without an end")

    def bring_up(self) -> None:
        """Every deployment of this node is brought up."""
        for one in Deployment.objects.filter(node=self.name, is_wanted=True).exclude(state="ready"):
            reconciler = DeploymentReconciler(one.pk, actor=self.actor, launcher=self, connect=self.connect, pace=QUICK)
            while one.state != "ready":
                reconciler.step()
                one.refresh_from_db()
                assert one.state != "failed", one.reason

    def told(self) -> dict[UUID, str]:
        return dict(Prefetch.objects.filter(node=self.name).values_list("release", "standing"))


def standings(release: Release) -> dict[str, FilesStanding | None]:
    return {one.node: one.standing for one in files_on_nodes(release)}


def make_deployment_on(node: str, release: Release, **over: Any) -> Deployment:
    made_one = make_deployment(release, production(), **over)
    Deployment.objects.filter(pk=made_one.pk).update(node=node)
    Node.objects.filter(name="local").delete()  # the factory's
    made_one.refresh_from_db()
    return made_one
