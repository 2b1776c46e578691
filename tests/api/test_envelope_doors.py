"""Each value of the envelope through the API, the command line and the release's page: broken, held, undeclared, unmeasured."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.core.quantities import quantity_text
from accounts.models import User
from ledger.core.canonical import canonical_bytes, sha256_of
from registry.models import Release, ServedModel
from tests.api.cli_world import Run, model, run, tokens  # noqa: F401
from tests.core.test_envelope_rows import DECLARED, DEFAULT, EVIDENCE, declaring
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_blob, make_environment, make_manifest, make_release
from validators.actions import begin_gate_run, finish_gate_run, record_judgement, request_gate_run
from validators.core.envelope import judged
from validators.core.verdict import Judgement, Verdict
from validators.execution.run import ACTOR

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
Api = Callable[..., Any]
VALUES = [(path, holds, broken) for path, holds, broken in DECLARED]


def released(envelope: dict[str, Any], *, on_gpu: bool = True) -> Release:
    found = ServedModel.objects.get()
    found.gate_policy = {"gates": [*EVIDENCE]}
    found.save()
    manifest = make_manifest(found.slug, make_blob()) | {"envelope": envelope}
    manifest["serving"]["instance_group"] = [{"kind": "gpu" if on_gpu else "cpu", "count": 1}]
    sealed = canonical_bytes(manifest)
    return make_release(found, manifest=sealed.decode(), digest=sha256_of(sealed))


def gated(release: Release, envelope: dict[str, Any], on_gpu: bool = True) -> None:
    """A finished gate run on an L4 in which every gate measured its values."""
    make_environment("staging", is_routed=False)
    gate_run, _ = request_gate_run(actor=ACTOR, release=release)
    gate_run = begin_gate_run(actor=ACTOR, gate_run=gate_run)
    for one in gate_run.results.all():
        found = Judgement(Verdict.PASSED, "Fine.", EVIDENCE[one.gate])
        judgement = judged(found, one.gate, envelope, DEFAULT, hardware="NVIDIA L4", uses_gpu=on_gpu)
        record_judgement(actor=ACTOR, gate_result=one, judgement=judgement)
    finish_gate_run(actor=ACTOR, gate_run=gate_run, facts={})


def rows_of(api: Api) -> dict[str, dict[str, Any]]:
    answer = api(User.objects.get(username="ada")).get("/api/v1/models/sentiment/releases/r1/envelope")
    assert answer.status_code == 200
    return {row["field"]: row for row in answer.json()["rows"]}


def page_of(client: Client) -> str:
    client.force_login(User.objects.get(username="ada"))
    return squeezed(client.get(reverse("release", args=["sentiment", 1])).content.decode())


@pytest.mark.parametrize(("path", "holds", "broken"), VALUES, ids=[path for path, _, _ in VALUES])
@pytest.mark.parametrize("verdict", ["passed", "failed"])
def test_a_declared_value_is_shown_with_both_numbers_at_every_door(
    run: Run, model: None, client: Client, api: Api, path: str, holds: Any, broken: Any, verdict: str
) -> None:
    envelope = declaring(path, holds if verdict == "passed" else broken)
    release = released(envelope)
    gated(release, envelope)
    _, text = run(
        "ada", "release", "show", "sentiment/r1", plain=True
    )  # before Django's own client, which closes connections
    _, shown = run("ada", "release", "show", "sentiment/r1")
    (row,) = (row for row in rows_of(api).values() if row["declared"] is not None)
    assert row["field"].endswith(path) and row["verdict"] == verdict
    results = {one.gate: one.verdict for one in release.gate_runs.get().results.all()}
    assert [gate for gate, one in results.items() if one == "failed"] == ([row["gate"]] if verdict == "failed" else [])
    declared, measured = (quantity_text(row[name], row["unit"]) for name in ("declared", "measured"))
    (line,) = (line for line in text.splitlines() if f" {row['field']} " in line and line.lstrip()[0] in "✓✗?")
    assert (
        f"declared {declared}{' ' * bool(row['declared_for'])}{row['declared_for']}, measured {measured}" in line
        and f"  {verdict}" in line
    )
    assert (row["sentence"] in text) is (verdict == "failed")
    assert row in shown["envelope"]["rows"]
    page = page_of(client)
    (shown_row,) = [part for part in page.split("<tr>") if f">{row['field']}</code>" in part]
    cells = dict(re.findall(r'data-label="(\w+)"[^>]*>(.*?)</td>', shown_row))
    assert declared in cells["Declared"] and measured in cells["Measured"] and verdict in cells["Verdict"]


def test_what_is_not_declared_is_unknown_at_every_door(run: Run, model: None, client: Client, api: Api) -> None:
    release = released({})
    _, text = run("ada", "release", "show", "sentiment/r1", plain=True)
    assert (
        "envelope, which no gate run has judged:" in text and "? unknown, neither declared nor measured: host." in text
    )
    gated(release, {})
    _, text = run("ada", "release", "show", "sentiment/r1", plain=True)
    rows = rows_of(api)
    assert {path for path, _, _ in DECLARED} <= rows.keys()
    assert {row["verdict"] for row in rows.values()} == {"unknown"}
    page = page_of(client)
    for path, _, _ in DECLARED:
        assert path in page and path in text
    assert "? unknown, neither declared nor measured: throughput" in text
    assert "? latency_ms.p99" in text and "not declared, measured 55 ms at 20 requests/s (load)" in text
    assert "✓" not in text.partition("envelope")[2], "nothing that is not declared is fine"


def test_gpu_memory_has_an_estimate_before_the_run_and_is_named_one(
    run: Run, model: None, client: Client, api: Api
) -> None:
    released({})
    _, text = run("ada", "release", "show", "sentiment/r1", plain=True)
    assert "GPU memory, an estimate before the run: about " in text
    answer = api(User.objects.get(username="ada")).get("/api/v1/models/sentiment/releases/r1/envelope").json()
    assert [part["name"] for part in answer["estimate"]["parts"]] == ["weights", "activations", "workspace", "runtime"]
    assert "GPU memory: an estimate before the run" in page_of(client)


def test_cores_are_declared_and_not_reserved_and_that_is_said(run: Run, model: None, client: Client) -> None:
    released({"host": {"cpu_cores_min": 2}})
    assert "Cores are not reserved" in run("ada", "release", "show", "sentiment/r1", plain=True)[1]
    page = page_of(client)
    assert "Cores are not reserved" in page and "No gate run has ended. Nothing of the envelope is measured yet" in page


def test_a_release_without_a_gpu_shows_nothing_of_one(model: None, api: Api) -> None:
    released({}, on_gpu=False)
    assert not {"power_w", "gpu_memory_mib_peak"} & rows_of(api).keys()
