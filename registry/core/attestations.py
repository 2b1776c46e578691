"""What is attested of a release beside its signature: where it came from, and what its gates measured.

Each is the predicate of an in-toto Statement v1 whose subject is the release's manifest. Source: SLSA provenance v1;
in-toto test-result v0.1, which holds names only: ours embeds it and adds what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from accounts.core.addresses import API

PROVENANCE_TYPE: Final = "https://slsa.dev/provenance/v1"
#: A test-result with numbers: value, unit, threshold, n and interval of every metric of every gate.
GATES_TYPE: Final = "urn:sluicegate:attestation:gate-evidence:v1"
#: SLSA build type of sealing: a pushed folder, every file hashed and checked, becomes immutable under one digest.
BUILD_TYPE: Final = "urn:sluicegate:build:seal:v1"
BUILDER: Final = "urn:sluicegate:registry"
_RESULT: Final = {"passed": "PASSED", "failed": "FAILED"}  # every other verdict is a warning


@dataclass(frozen=True)
class Measured:
    """One number of one gate. `threshold` None: nothing was demanded of it. `low` and `high` None: no interval is known."""

    name: str
    unit: str  # frac, ms, s, …
    better: str  # higher or lower
    value: float
    threshold: float | None = None
    n: int | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None  # of the interval


@dataclass(frozen=True)
class GateResult:
    """One gate's verdict (passed, failed, undecided, errored, skipped), its sentence, and its numbers."""

    gate: str
    verdict: str
    reason: str
    started_at: str | None = None
    ended_at: str | None = None
    metrics: tuple[Measured, ...] = field(default=())
    measured_on: Mapping[str, str | None] = field(default_factory=dict)  # facts of the node; None is unknown
    reused_from: str | None = None  # digest of the report from which it was taken over


def subject_of(model: str, release_name: str, manifest_digest: str) -> list[dict[str, Any]]:
    """The subject of every attestation: the sealed manifest, which names every file by its digest."""
    return [{"name": f"{model}/{release_name}", "digest": {"sha256": manifest_digest.removeprefix("sha256:")}}]


def provenance(
    manifest: Mapping[str, Any],
    *,
    release_name: str,
    pushed_by: str | None,
    drafted_at: str,
    sealed_at: str,
    version: str,
) -> dict[str, Any]:
    """The SLSA provenance of a sealed release. Instants are ISO 8601; `version` is that of Sluicegate.

    What release.yaml says of its own making is an external parameter: it was stated by the pusher and is not verified.
    """
    stated = manifest.get("provenance") or {}
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"model": manifest["model"], "pushedBy": pushed_by, "stated": stated},
            "internalParameters": {"release": release_name, "schema": manifest["schema"]},
            "resolvedDependencies": list(_dependencies(manifest, stated)),
        },
        "runDetails": {
            "builder": {"id": BUILDER, "version": {"sluicegate": version}},
            "metadata": {
                "invocationId": stated.get("ci_run_url") or f"{manifest['model']}/{release_name}",
                "startedOn": drafted_at,
                "finishedOn": sealed_at,
            },
            "byproducts": [],
        },
    }


def _dependencies(manifest: Mapping[str, Any], stated: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The files by digest, the runtime image by digest, and the source and data as far as release.yaml names them."""
    for file in manifest["files"]:
        yield {"name": file["path"], "digest": {"sha256": file["sha256"]}, "annotations": {"role": file["role"]}}
    image, _, digest = manifest["runtime"]["image"].partition("@sha256:")
    yield {"name": "runtime", "uri": f"oci://{image}", "digest": {"sha256": digest}}
    commit = stated.get("git_commit", "")
    if commit:
        source: dict[str, Any] = {"name": "source", "annotations": {"commit": commit}}
        if stated.get("git_repository"):
            source["uri"] = f"git+{stated['git_repository']}@{stated.get('git_branch') or commit}"
        if len(commit) in (40, 64):  # a shortened commit is no digest
            source["digest"] = {"gitCommit": commit}
        yield source
    if stated.get("dataset") or stated.get("dataset_digest"):
        data: dict[str, Any] = {"name": stated.get("dataset") or "dataset"}
        if stated.get("dataset_digest"):
            data["digest"] = {"sha256": stated["dataset_digest"].removeprefix("sha256:")}
        yield data


def gate_evidence(
    results: Iterable[GateResult],
    *,
    verdict: str,
    reason: str,
    report_digest: str,
    manifest_digest: str,
    policy_digest: str,
    golden_set: str | None,
    runtime_image: str,
    hardware: Mapping[str, Any],
    versions: Mapping[str, Any],
    sealed_at: str,
) -> dict[str, Any]:
    """The predicate of a report: a test-result for who knows no more, and every gate with its numbers."""
    told = list(results)
    configuration = [
        {"name": "policy", "digest": {"sha256": _bare(policy_digest)}},
        {
            "name": "runtime",
            "uri": f"oci://{runtime_image.partition('@')[0]}",
            "digest": {"sha256": _bare(runtime_image)},
        },
    ]
    if golden_set:
        configuration.append({"name": "golden set", "digest": {"sha256": _bare(golden_set)}})
    return {
        "testResult": {
            "result": _RESULT.get(verdict, "WARNED"),
            "configuration": configuration,
            "url": f"{API}/reports/{report_digest}",
            "passedTests": [one.gate for one in told if one.verdict == "passed"],
            "warnedTests": [one.gate for one in told if one.verdict not in _RESULT],
            "failedTests": [one.gate for one in told if one.verdict == "failed"],
        },
        "verdict": verdict,
        "reason": reason,
        "report": report_digest,
        "manifest": manifest_digest,
        "sealedAt": sealed_at,
        "hardware": dict(hardware),
        "versions": dict(versions),
        "gates": [_gate(one) for one in told],
    }


def _gate(result: GateResult) -> dict[str, Any]:
    return {
        "gate": result.gate,
        "verdict": result.verdict,
        "reason": result.reason,
        "startedAt": result.started_at,
        "endedAt": result.ended_at,
        "measuredOn": dict(result.measured_on),
        "reusedFrom": result.reused_from,
        "metrics": [asdict(metric) for metric in result.metrics],
    }


def _bare(digest: str) -> str:
    """64 hex digits, also of `name@sha256:<64 hex>`."""
    return digest.rpartition(":")[2]
