"""A release as a CycloneDX ML-BOM: the model with its card, every file by digest, the runtime image, the data.

Source: CycloneDX 1.6, component type `machine-learning-model`. Made from the sealed manifest and from measured numbers alone;
what nobody stated is absent, never made up.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from registry.core.attestations import GateResult, Measured

SPEC_VERSION: Final = "1.6"
MEDIA_TYPE: Final = "application/vnd.cyclonedx+json; version=1.6"
#: A BOM of one digest has one serial number, wherever it is made.
_SERIALS: Final = uuid.UUID("6f1c3f0e-6a53-5b0f-9d3c-2f5d4b6f7a10")


def make_bom(
    manifest: Mapping[str, Any],
    *,
    digest: str,
    release_name: str,
    sealed_at: str,
    version: str,
    gates: Iterable[GateResult] = (),
) -> dict[str, Any]:
    """The ML-BOM of a sealed release. `gates` are those of its newest report; `version` is that of Sluicegate."""
    files = [_file(file) for file in manifest["files"]]
    image, _, image_sha256 = manifest["runtime"]["image"].partition("@sha256:")
    runtime = {
        "type": "container",
        "bom-ref": "runtime",
        "name": image,
        "version": f"sha256:{image_sha256}",
        "hashes": [{"alg": "SHA-256", "content": image_sha256}],
    }
    data = _data(manifest.get("provenance") or {})
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SERIALS, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": sealed_at,
            "tools": {"components": [{"type": "application", "name": "sluicegate", "version": version}]},
            "component": _model(manifest, digest, release_name, list(gates), data),
        },
        "components": [*files, runtime, *data],
        "dependencies": [
            {"ref": "model", "dependsOn": [part["bom-ref"] for part in [*files, runtime, *data]]},
        ],
    }


def _model(
    manifest: Mapping[str, Any],
    digest: str,
    release_name: str,
    gates: list[GateResult],
    data: list[dict[str, Any]],
) -> dict[str, Any]:
    stated = manifest.get("provenance") or {}
    card: dict[str, Any] = {"modelParameters": _parameters(manifest["serving"], data)}
    metrics = [_metric(gate.gate, metric) for gate in gates for metric in gate.metrics]
    if metrics:
        card["quantitativeAnalysis"] = {"performanceMetrics": metrics}
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": manifest["model"],
        "version": release_name,
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
        "modelCard": card,
        "properties": list(_properties(manifest, gates)),
    }
    if stated.get("notes"):
        component["description"] = stated["notes"]
    if stated.get("license"):
        component["licenses"] = [{"license": {"name": stated["license"]}}]
    if stated.get("git_repository", "").startswith(("http://", "https://", "git://", "ssh://")):
        component["externalReferences"] = [{"type": "vcs", "url": stated["git_repository"]}]
    return component


def _parameters(serving: Mapping[str, Any], data: list[dict[str, Any]]) -> dict[str, Any]:
    """Inputs and outputs as `name FP32[1,2]`; the data by reference."""
    parameters: dict[str, Any] = {
        side: [{"format": f"{t['name']} {t['data_type']}[{','.join(map(str, t['dims']))}]"} for t in serving[side]]
        for side in ("inputs", "outputs")
    }
    if data:
        parameters["datasets"] = [{"ref": part["bom-ref"]} for part in data]
    return parameters


def _metric(gate: str, metric: Measured) -> dict[str, Any]:
    told: dict[str, Any] = {"type": f"{gate}: {metric.name} ({metric.unit})", "value": f"{metric.value:.9g}"}
    if metric.low is not None and metric.high is not None:
        told["confidenceInterval"] = {"lowerBound": f"{metric.low:.9g}", "upperBound": f"{metric.high:.9g}"}
    return told


def _properties(manifest: Mapping[str, Any], gates: list[GateResult]) -> Iterable[dict[str, str]]:
    """What CycloneDX has no field for: backend, framework, the declared envelope's numbers, the gates' verdicts."""
    yield {"name": "sluicegate:backend", "value": str(manifest["runtime"].get("backend", ""))}
    for name in ("git_commit", "ci_run_url", "framework", "trained_at", "trained_by"):
        if value := (manifest.get("provenance") or {}).get(name):
            yield {"name": f"sluicegate:{name}", "value": str(value)}
    for name, value in _leaves("envelope", manifest.get("envelope") or {}):
        yield {"name": f"sluicegate:{name}", "value": value}
    for gate in gates:
        yield {"name": f"sluicegate:gate:{gate.gate}", "value": gate.verdict}


def _leaves(at: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name in sorted(value):
            yield from _leaves(f"{at}.{name}", value[name])
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _leaves(f"{at}[{i}]", item)
    elif value is not None:
        yield at, str(value)


def _file(file: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": f"file:{file['path']}",
        "name": file["path"],
        "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
        "properties": [
            {"name": "sluicegate:role", "value": file["role"]},
            {"name": "sluicegate:size_bytes", "value": str(file["size_bytes"])},
        ],
    }


def _data(stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not stated.get("dataset") and not stated.get("dataset_digest"):
        return []
    part: dict[str, Any] = {"type": "data", "bom-ref": "dataset", "name": stated.get("dataset") or "dataset"}
    if stated.get("dataset_digest"):
        part["hashes"] = [{"alg": "SHA-256", "content": stated["dataset_digest"].removeprefix("sha256:")}]
    return [part]
