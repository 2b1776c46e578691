"""Gate runs on a platform that reports addresses and no measurements: unknown facts leave gates undecided."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import pytest

import validators.execution.staging
from accounts.core.access import Actor
from registry.models import Release, ServedModel
from serving.models import Endpoint
from serving.targets.platforms import PLATFORMS
from tests.support.fakes.platform import NO_ROOM, FakeKubernetes
from tests.support.worlds.factories import make_release, resealed
from tests.support.worlds.gate_setup import (  # noqa: F401
    POLICY,
    Stage,
    developer,
    judge_text,
    model,
    stage,
    validated,
    verdicts,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> FakeKubernetes:
    """Stands in for the platform of staging."""
    made = FakeKubernetes(judge_text)
    monkeypatch.setitem(PLATFORMS, "local", made)
    return made


def schedules(cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods run when the worker waits for them."""

    def tick(_seconds: float) -> None:
        for one in Endpoint.objects.filter(state="pending"):
            cluster.schedule(one.replica, "10.0.0.7", 8000)

    monkeypatch.setattr(validators.execution.staging, "sleep", tick)


def released(model: ServedModel, *gates: str, vendor: str = "none") -> Release:
    model.gate_policy = {"gates": list(gates), "load": POLICY["load"]}
    model.save()
    return resealed(make_release(model), envelope={"accelerator": {"vendor": vendor}})


def test_what_the_platform_does_not_measure_is_undecided(
    cluster: FakeKubernetes, developer: Actor, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules(cluster, monkeypatch)
    run = validated(developer, released(model, "load", "resources", "gpu", vendor="nvidia"))
    assert verdicts(run) == {"load": "passed", "resources": "undecided", "gpu": "undecided"}
    said = {one.gate: one.reason for one in run.results.all()}
    assert said["resources"] == "What it uses is unknown: its processes were not looked at."
    assert said["gpu"] == "The GPUs of its node were not read: its platform reads no GPUs."
    assert Endpoint.objects.get().state == "gone"  # its server was given back


def test_a_pod_that_stays_pending_is_not_held_against_the_release(
    cluster: FakeKubernetes, developer: Actor, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += 60 * seconds

    monkeypatch.setattr(validators.execution.staging, "sleep", passes)
    monkeypatch.setattr(validators.execution.staging, "monotonic", lambda: now)
    run = validated(developer, released(model, "contract"))
    (found,) = run.results.all()
    assert found.verdict == "errored" and found.reason.startswith("r1 was still pending after ")
    assert found.reason.endswith(NO_ROOM)
