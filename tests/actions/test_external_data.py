"""External data of graphs under any name, from the draft to the seal."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
import pickle

import pytest

from accounts.core.access import Actor
from ledger.core.errors import Invalid
from registry import actions, queries
from registry.models import Release, ServedModel, Upload
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import draft_with, put, release_yaml, sha256
from tests.support.worlds.registry_setup import dev, model  # noqa: F401

pytestmark = pytest.mark.django_db

#: As Optimum, torch.onnx, onnx.save_model and people name it.
NAMES = [
    "model.onnx_data",
    "model_data",
    "0c5ff2f4-89ac-11ef.data",
    "onnx__MatMul_12",
    "encoder.0.weight",
    "weights.bin",
    "w.npy",
    "w.txt",
    "w.json",
    "w.safetensors",
    "w.onnx",
]


def graph(name: str) -> bytes:
    return onnx_file(weights=[("w", "FP32", [10])], external={"location": name})


@pytest.mark.parametrize("name", NAMES)
def test_it_is_sealed_as_data_and_needs_no_waiver(dev: Actor, model: ServedModel, name: str) -> None:
    files = {"artifact/model.onnx": graph(name), f"artifact/{name}": bytes(range(40))}
    listed = [{"path": path, "sha256": sha256(data), "size_bytes": len(data)} for path, data in files.items()]
    release, _ = actions.create_draft(actor=dev, model=model, spec=release_yaml(), files=listed)
    for path, data in reversed(files.items()):  # in any order, since they were announced together
        put(dev, release, path, data)
    assert not Upload.objects.exclude(problem="").exists()
    sealed = actions.seal(actor=dev, release=release)
    roles = {file["path"]: file["role"] for file in json.loads(sealed.manifest)["files"]}
    assert roles[f"artifact/{name}"] == "artifact" and not sealed.is_code_bearing
    assert queries.waivers_needed(sealed) == frozenset()


def test_without_a_list_the_graph_goes_first(dev: Actor, model: ServedModel) -> None:
    release = draft_with(dev, model, graph("model_data"))
    put(dev, release, "artifact/model_data", bytes(40))
    assert actions.seal(actor=dev, release=release).number == 1


@pytest.mark.parametrize("name", ["model.onnx_data", "run.sh", "weights.npy"])
def test_a_file_that_no_graph_names_is_refused_at_the_seal(dev: Actor, model: ServedModel, name: str) -> None:
    release = draft_with(dev, model)
    put(dev, release, f"artifact/{name}", b"x")
    with pytest.raises(Invalid) as caught:
        actions.seal(actor=dev, release=release)
    assert caught.value.code == "invalid_files" and f"artifact/{name}" in str(caught.value)
    assert Release.objects.get(pk=release.pk).state == "draft"


def test_a_pickle_that_a_graph_names_still_needs_its_waiver(dev: Actor, model: ServedModel) -> None:
    release = draft_with(dev, model, graph("weights.bin"))
    put(dev, release, "artifact/weights.bin", pickle.dumps(["x"] * 40))
    sealed = actions.seal(actor=dev, release=release)
    assert sealed.is_code_bearing and queries.waivers_needed(sealed) == {"pickle"}


@pytest.mark.parametrize("place", ["../model_data", "/etc/passwd", "a/../../x", "C:x", "a\\b"])
def test_data_outside_the_graphs_folder_is_refused(dev: Actor, model: ServedModel, place: str) -> None:
    release = draft_with(dev, model, graph(place))
    with pytest.raises(Invalid) as caught:
        actions.seal(actor=dev, release=release)
    assert "leaves the graph's folder" in str(caught.value)
