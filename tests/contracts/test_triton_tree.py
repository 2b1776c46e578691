"""The tree that `release export --triton` writes, loaded by a real tritonserver as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from registry.core.triton_tree import tree_of
from serving.servers.adapters.triton import TritonServer
from serving.targets.agent import model_repository
from serving.targets.core.kubernetes import Place, objects_of
from tests.contracts.serving_models import MemoryBlobs, launch_spec, manifest, serving
from tests.support.rigs.triton_rig import local_launcher

CODE = b"""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", (3 * x).astype(np.float32))]) for x in found]
"""


@pytest.mark.real("triton")
def test_a_real_tritonserver_loads_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = MemoryBlobs()
    made = manifest(blobs, "tripling", {"artifact/model.py": CODE}, serving(), backend="python")

    def exported(spec: Any, _blobs: Any, repository: Path) -> None:
        """What the command line writes, in the place of what the node's agent writes."""
        placed, texts = tree_of(spec.manifest, 7)
        by_path = {file["path"]: file["sha256"] for file in spec.manifest["files"]}
        for target, path in placed.items():
            (repository / target).parent.mkdir(parents=True, exist_ok=True)
            with blobs.open(by_path[path]) as source:
                (repository / target).write_bytes(source.read())
        for target, text in texts.items():
            (repository / target).write_text(text)

    monkeypatch.setattr(model_repository, "write", exported)
    with local_launcher(tmp_path, blobs) as launcher:
        running = launcher.start(launch_spec(made, launcher.folder_for(1, "tripling", "r7")))
        launcher.await_loaded(running, "tripling", timeout_s=60)
        client = TritonServer(running.host, running.http_port, running.grpc_port)
        ready = httpx.get(f"http://{running.host}:{running.http_port}{readiness_path(made, 7)}")
        answer = client.infer("tripling", {"x": np.ones((2, 4), np.float32)}, timeout_s=20)
        client.close()
    assert (answer.outputs["y"] == 3).all()
    assert ready.status_code == 200


def readiness_path(made: dict[str, Any], number: int) -> str:
    """What a cluster's kubelet asks."""
    in_registry = {**made, "runtime": {**made["runtime"], "image": "triton@sha256:" + "2" * 64}}
    place = Place(environment="production", namespace="n", url="https://s", cli_image="c@sha256:" + "3" * 64)
    [deployment, *_] = objects_of(in_registry, number=number, digest="sha256:" + "1" * 64, place=place)
    [triton] = deployment["spec"]["template"]["spec"]["containers"]
    return str(triton["readinessProbe"]["httpGet"]["path"])
