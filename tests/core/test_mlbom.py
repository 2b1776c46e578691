"""The ML-BOM of a release: what the manifest and the gates say, and nothing that nobody stated."""

from __future__ import annotations

from typing import Any

from registry.core.attestations import GateResult, Measured
from registry.core.mlbom import make_bom

DIGEST = "sha256:" + "1" * 64
MANIFEST: dict[str, Any] = {
    "model": "sentiment",
    "files": [{"path": "artifact/model.onnx", "role": "artifact", "sha256": "b" * 64, "size_bytes": 3}],
    "runtime": {"image": "triton@sha256:" + "a" * 64, "backend": "sluicegate-onnx"},
    "serving": {
        "inputs": [{"name": "text", "data_type": "BYTES", "dims": [-1, 2]}],
        "outputs": [{"name": "p", "data_type": "FP32", "dims": [2]}],
    },
    "envelope": {"host": {"memory_mib_min": 512}, "sku": ["L4", None, "T4"]},
    "provenance": {},
}
STATED = {
    "git_commit": "4f2a9c1", "framework": "torch", "notes": "The first.", "license": "MIT",
    "git_repository": "https://example.com/m.git", "dataset": "reviews", "dataset_digest": "sha256:" + "d" * 64,
}  # fmt: skip
FILE, RUNTIME = "file:artifact/model.onnx", "runtime"


def bom(stated: dict[str, Any] | None = None, *metrics: Measured, digest: str = DIGEST) -> dict[str, Any]:
    gates = [GateResult("golden", "passed", "fine", metrics=metrics)] if metrics else []
    manifest = {**MANIFEST, "provenance": stated}
    return make_bom(manifest, digest=digest, release_name="r3", sealed_at="2026-03-01", version="1.0", gates=gates)


def model_of(said: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = said["metadata"]["component"]
    return found


def test_files_image_and_data_are_components_that_the_model_depends_on() -> None:
    said = bom(STATED)
    file, image, data = said["components"]
    assert file["hashes"] == [{"alg": "SHA-256", "content": "b" * 64}] and file["bom-ref"] == FILE
    assert file["properties"] == [
        {"name": "sluicegate:role", "value": "artifact"},
        {"name": "sluicegate:size_bytes", "value": "3"},
    ]
    assert (image["name"], image["version"]) == ("triton", "sha256:" + "a" * 64)
    assert image["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert data == {
        "type": "data", "bom-ref": "dataset", "name": "reviews", "hashes": [{"alg": "SHA-256", "content": "d" * 64}],
    }  # fmt: skip
    assert said["dependencies"] == [{"ref": "model", "dependsOn": [FILE, RUNTIME, "dataset"]}]
    assert model_of(said)["modelCard"]["modelParameters"]["datasets"] == [{"ref": "dataset"}]


def test_a_bom_of_one_digest_is_the_same_everywhere() -> None:
    assert bom() == bom() and bom()["version"] == 1 and bom()["specVersion"] == "1.6"
    assert bom()["serialNumber"] != bom(digest="sha256:" + "2" * 64)["serialNumber"]
    assert bom()["serialNumber"].startswith("urn:uuid:")


def test_the_model_with_its_tensors() -> None:
    model = model_of(bom(STATED))
    assert (model["name"], model["version"], model["description"]) == ("sentiment", "r3", "The first.")
    assert model["hashes"] == [{"alg": "SHA-256", "content": "1" * 64}]
    assert model["licenses"] == [{"license": {"name": "MIT"}}]
    assert model["externalReferences"] == [{"type": "vcs", "url": "https://example.com/m.git"}]
    parameters = model["modelCard"]["modelParameters"]
    assert parameters["inputs"] == [{"format": "text BYTES[-1,2]"}] and parameters["outputs"] == [
        {"format": "p FP32[2]"}
    ]


def test_what_nobody_stated_is_absent() -> None:
    for said in (bom(None), bom({})):
        assert [one["bom-ref"] for one in said["components"]] == [FILE, RUNTIME]
        model = model_of(said)
        assert not {"description", "licenses", "externalReferences"} & set(model)
        assert set(model["modelCard"]) == {"modelParameters"}
        assert set(model["modelCard"]["modelParameters"]) == {"inputs", "outputs"}
    assert "externalReferences" not in model_of(bom({"git_repository": "git@example.com:m.git"}))


def test_data_may_have_a_name_or_a_digest_alone() -> None:
    assert bom({"dataset": "reviews"})["components"][2] == {"type": "data", "bom-ref": "dataset", "name": "reviews"}
    unnamed = bom({"dataset_digest": "sha256:" + "d" * 64})["components"][2]
    assert (unnamed["name"], unnamed["hashes"][0]["content"]) == ("dataset", "d" * 64)


def test_properties_are_what_was_declared_by_path() -> None:
    properties = model_of(bom(STATED, Measured("accuracy", "frac", "higher", 0.9)))["properties"]
    assert [(one["name"].removeprefix("sluicegate:"), one["value"]) for one in properties] == [
        ("backend", "sluicegate-onnx"),
        ("git_commit", "4f2a9c1"),
        ("framework", "torch"),
        ("envelope.host.memory_mib_min", "512"),
        ("envelope.sku[0]", "L4"),
        ("envelope.sku[2]", "T4"),
        ("gate:golden", "passed"),
    ]
    bare = {**MANIFEST, "runtime": {"image": "x@sha256:" + "a" * 64}, "envelope": None}
    said = make_bom(bare, digest=DIGEST, release_name="r1", sealed_at="", version="1")
    assert model_of(said)["properties"] == [{"name": "sluicegate:backend", "value": ""}]


def test_measured_numbers_have_an_interval_where_one_is_known() -> None:
    whole = Measured("accuracy", "frac", "higher", 0.95, low=0.0, high=1.0)
    half = (Measured("a", "ms", "lower", 1 / 3, low=0.1), Measured("b", "ms", "lower", 2e9, high=3.0))
    told = model_of(bom({}, whole, *half))["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert told == [
        {
            "type": "golden: accuracy (frac)",
            "value": "0.95",
            "confidenceInterval": {"lowerBound": "0", "upperBound": "1"},
        },
        {"type": "golden: a (ms)", "value": "0.333333333"},
        {"type": "golden: b (ms)", "value": "2e+09"},
    ]
