"""A release for other tools: an ML-BOM that passes the schema, a tree that Triton reads, bundles that stand alone."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from accounts.models import User
from registry.core import oms
from registry.core.attestations import PROVENANCE_TYPE
from sluicegate.cli import exits
from tests.api.cli_world import Run, model, release_folder, run, tokens  # noqa: F401  # fixtures
from tests.support.worlds.registry_samples import verified_bundle

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # whole commands, one request after another
STATED = {
    "git_commit": "4f2a9c1",
    "git_repository": "https://example.com/sentiment.git",
    "dataset": "reviews",
    "dataset_digest": "sha256:" + "d" * 64,
    "license": "Apache-2.0",
    "notes": "The first.",
}


@pytest.fixture
def pushed(run: Run, model: None, tmp_path: Path) -> dict[str, Any]:
    """sentiment/r1."""
    folder = release_folder(tmp_path / "one", provenance=STATED, envelope={"host": {"memory_mib_min": 512}})
    code, release = run("robot", "push", str(folder))
    assert code == exits.OK
    return release


def schema_problems(bom: Any) -> Any:
    """What the schema of CycloneDX 1.6 says of it; None for nothing."""
    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bom))


def test_the_ml_bom_passes_the_schema(run: Run, pushed: dict[str, Any], tmp_path: Path) -> None:
    assert run("ada", "release", "export", "sentiment/r1", str(tmp_path / "bom.json"), "--bom")[0] == exits.OK
    bom = json.loads((tmp_path / "bom.json").read_text())
    assert schema_problems(bom) is None
    told = bom["metadata"]["component"]
    assert (told["type"], told["name"], told["version"]) == ("machine-learning-model", "sentiment", "r1")
    assert told["hashes"] == [{"alg": "SHA-256", "content": pushed["digest"].removeprefix("sha256:")}]
    assert told["modelCard"]["modelParameters"]["inputs"] == [{"format": "text BYTES[1]"}]
    assert {"name": "sluicegate:envelope.host.memory_mib_min", "value": "512"} in told["properties"]
    parts = {part["name"]: part for part in bom["components"]}
    assert {"artifact/model.onnx", "tokenizer/tokenizer.json", "reviews"} < parts.keys()
    assert parts["reviews"]["hashes"][0]["content"] == "d" * 64
    assert "quantitativeAnalysis" not in told["modelCard"]  # no gate has measured anything yet


def test_the_ml_bom_tells_what_was_measured() -> None:
    from registry.core.attestations import GateResult, Measured
    from registry.core.mlbom import make_bom

    manifest = {
        "schema": "sluicegate/manifest/v2", "model": "m", "files": [], "envelope": {}, "provenance": {},
        "runtime": {"image": "t@sha256:" + "a" * 64, "backend": "python"}, "serving": {"inputs": [], "outputs": []},
    }  # fmt: skip
    metrics = (
        Measured("accuracy", "frac", "higher", 0.95, 0.9, 200, 0.92, 0.97, 0.95),
        Measured("p99", "ms", "lower", 41.0),
    )
    gates = [GateResult("golden", "passed", "fine", metrics=metrics)]
    bom = make_bom(
        manifest,
        digest="sha256:" + "1" * 64,
        release_name="r1",
        sealed_at="2026-03-01T12:00:00+00:00",
        version="1",
        gates=gates,
    )
    assert schema_problems(bom) is None
    told = bom["metadata"]["component"]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert told[0] == {
        "type": "golden: accuracy (frac)", "value": "0.95", "confidenceInterval": {"lowerBound": "0.92", "upperBound": "0.97"},
    }  # fmt: skip
    assert "confidenceInterval" not in told[1]


def test_the_schema_does_find_mistakes(run: Run, pushed: dict[str, Any], tmp_path: Path) -> None:
    """So that the test above can fail."""
    run("ada", "release", "export", "sentiment/r1", str(tmp_path / "bom.json"), "--bom")
    bom = json.loads((tmp_path / "bom.json").read_text())
    bom["metadata"]["component"]["modelCard"]["modelParameters"]["inputs"] = [{"shape": 1}]
    assert schema_problems(bom) is not None


def test_triton_reads_the_tree(run: Run, pushed: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    code, told = run("ada", "release", "export", "sentiment/r1", str(folder), "--triton")
    assert (code, told["files"]) == (exits.OK, 2)
    config = text_format.Parse((folder / "sentiment" / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == ("sentiment", "onnxruntime", 16)
    assert [tensor.name for tensor in config.input] == ["text"]
    one = tmp_path / "one"
    assert (folder / "sentiment/1/model.onnx").read_bytes() == (one / "artifact/model.onnx").read_bytes()
    assert (folder / "sentiment/1/tokenizer/tokenizer.json").is_file()
    assert run("ada", "release", "export", "sentiment/r1", str(folder), "--triton")[0] == exits.REFUSED


def test_two_releases_are_two_versions_of_one_repository(run: Run, pushed: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    same = release_folder(tmp_path / "two", provenance={**STATED, "notes": "The second."})
    other = release_folder(tmp_path / "three")
    document = (other / "release.yaml").read_text().replace("max_batch_size: 16", "max_batch_size: 8")
    (other / "release.yaml").write_text(document)
    for pushed_folder in (same, other):
        assert run("robot", "push", str(pushed_folder))[0] == exits.OK
    for name in ("sentiment/r1", "sentiment/r2"):
        assert run("ada", "release", "export", name, str(folder), "--triton")[0] == exits.OK
    assert sorted(path.name for path in (folder / "sentiment").iterdir()) == ["1", "2", "config.pbtxt"]
    code, told = run("ada", "release", "export", "sentiment/r3", str(folder), "--triton")
    assert code == exits.REFUSED and "single file for all versions" in told["error"]
    assert not (folder / "sentiment" / "3").exists()


def test_bundles_stand_alone(run: Run, pushed: dict[str, Any], tmp_path: Path) -> None:
    assert run("ada", "release", "export", "sentiment/r1", str(tmp_path / "model.sig"), "--oms")[0] == exits.OK
    payload, _ = verified_bundle((tmp_path / "model.sig").read_text())
    assert oms.read_signed(payload).digest == pushed["digest"]
    assert run("ada", "release", "export", "sentiment/r1", str(tmp_path / "all.jsonl"), "--attestations")[0] == exits.OK
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    kinds = {oms.read_statement(verified_bundle(line)[0])["predicateType"] for line in lines}
    assert kinds == {oms.SIGNATURE_TYPE, PROVENANCE_TYPE}
    assert run("ada", "release", "export", "sentiment/r1", str(tmp_path), "--oms")[0] == exits.REFUSED
    assert run("ada", "release", "export", "sentiment/r9", str(tmp_path / "x"), "--oms")[0] == exits.REFUSED


def test_a_bom_of_another_team_is_not_there(run: Run, pushed: dict[str, Any], api: Any) -> None:
    zoe, ada = api(User.objects.create(username="zoe")), api(User.objects.get(username="ada"))
    here = "/api/v1/models/sentiment/releases/r1/mlbom"
    assert zoe.get(here).status_code == 404
    answer = ada.get(here)
    assert answer["Content-Type"].startswith("application/vnd.cyclonedx+json") and "sentiment-r1.cdx.json" in str(
        answer.headers
    )
