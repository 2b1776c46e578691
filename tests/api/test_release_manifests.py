"""`sluicegate release manifests` against the real API: what it prints, what it refuses, and that its fetch step works."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from accounts.core.access import Actor
from serving.environments.actions.environments import create_environment
from sluicegate.cli import exits
from tests.api.cli_world import Run, model, release_folder, run, tokens  # noqa: F401  # fixtures

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # whole commands, one request after another
CLI = "registry.example/sluicegate@sha256:" + "3" * 64
RUNTIME = {
    "image": "nvcr.io/nvidia/tritonserver@sha256:" + "2" * 64,
    "server": "triton",
    "backend": "python",
}
ADMIN = Actor.system("tests")
ASKED = ("release", "manifests", "sentiment/r1", "--environment", "production", "--cli-image", CLI)


@pytest.fixture
def pushed(run: Run, model: None, tmp_path: Path) -> dict[str, Any]:
    """sentiment/r1, sealed for a cluster's image."""
    create_environment(actor=ADMIN, slug="production")
    code, release = run("robot", "push", str(release_folder(tmp_path / "one", code=True, runtime=RUNTIME)))
    assert code == exits.OK
    return release


def test_it_prints_yaml_that_kubectl_reads(run: Run, pushed: dict[str, Any]) -> None:
    code, text = run("ada", *ASKED, "--replicas", "2", "--node-label", "pool=gpu", plain=True)
    assert code == exits.OK
    assert "# host.memory_mib_min is not declared" in text
    deployment, service, budget = yaml.safe_load_all(text)
    assert [one["kind"] for one in (deployment, service, budget)] == ["Deployment", "Service", "PodDisruptionBudget"]
    assert deployment["metadata"]["annotations"]["sluicegate.dev/digest"] == pushed["digest"]
    assert (deployment["spec"]["replicas"], deployment["metadata"]["namespace"]) == (2, "production")
    spec = deployment["spec"]["template"]["spec"]
    assert spec["nodeSelector"]["pool"] == "gpu" and spec["containers"][0]["image"] == RUNTIME["image"]


def test_its_fetch_step_writes_a_repository_again_and_again(run: Run, pushed: dict[str, Any], tmp_path: Path) -> None:
    """Kubernetes may run an init container a second time over its volume."""
    _, told = run("ada", *ASKED)
    [_, _, script] = told["objects"][0]["spec"]["template"]["spec"]["initContainers"][0]["command"]
    clear, _, export = script.partition(" && exec sluicegate ")
    folder = tmp_path / "volume"
    folder.mkdir()
    for _ in range(2):
        subprocess.run(["sh", "-c", clear.replace("/release", str(folder))], check=True)
        words = [str(folder) if word == "/release" else word for word in export.split()]
        assert run("ada", *words)[0] == exits.OK
    assert (folder / "sentiment" / "1" / "model.py").is_file() and (folder / "sentiment" / "config.pbtxt").is_file()


@pytest.mark.parametrize(
    "changed",
    [
        ("--cli-image", "registry.example/sluicegate:latest"),
        ("--environment", "nowhere"),
        ("--namespace", "Under_score"),
        ("--replicas", "0"),
        ("--node-label", "pool"),
    ],
)
def test_what_is_not_right_is_refused(run: Run, pushed: dict[str, Any], changed: tuple[str, str]) -> None:
    assert run("ada", *ASKED, *changed)[0] == exits.REFUSED


def test_a_release_sealed_for_the_product_s_own_runtime_is_refused(run: Run, model: None, tmp_path: Path) -> None:
    create_environment(actor=ADMIN, slug="production")
    assert run("robot", "push", str(release_folder(tmp_path / "local")))[0] == exits.OK
    assert run("ada", *ASKED)[0] == exits.REFUSED
