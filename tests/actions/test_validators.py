"""Gate runs: what may be asked for, their reports, and that evidence is final."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json

import pytest
from django.db import IntegrityError, connection, transaction

from accounts.core.access import Actor, Role
from ledger.core.canonical import sha256_of
from ledger.core.errors import Invalid, NotFound, Refused, StateChanged
from ledger.models import Event, Job
from registry.core import oms
from registry.core.attestations import GATES_TYPE
from registry.core.lifecycle import ReleaseState
from registry.models import Release, ServedModel
from registry.signing import installation_keys
from tests.support.worlds.factories import make_actor, make_environment, make_release
from tests.support.worlds.gate_setup import Stage, developer, golden_lines, model, release, stage, validated  # noqa: F401
from tests.support.worlds.registry_samples import verified_bundle
from validators import actions, queries
from validators.execution.run import ACTOR
from validators.models import GateResult, GateRun, GoldenSet, Report

pytestmark = pytest.mark.django_db


# golden sets


def test_a_golden_set_is_stored_once_and_told(developer: Actor, model: ServedModel) -> None:
    again, _ = actions.add_golden_set(actor=developer, model=model, data=golden_lines())
    assert GoldenSet.objects.get() == again
    assert (again.items, again.slices) == (60, {"a": 30, "b": 30})
    assert again.digest == sha256_of(golden_lines())
    assert Event.objects.filter(verb="golden_set.added").count() == 1
    assert len(queries.golden_items(model, again.digest)) == 60


def test_a_golden_set_that_does_not_fit_the_contract_leaves_nothing(developer: Actor, model: ServedModel) -> None:
    with pytest.raises(Invalid) as caught:
        actions.add_golden_set(actor=developer, model=model, data=b'{"id": "a", "inputs": {"text": "x"}, "label": 1}')
    assert "there is no input text" in caught.value.facts["errors"][0]["message"]
    assert GoldenSet.objects.count() == 1


def test_ci_may_run_gates_but_not_change_what_they_ask(stage: Stage, model: ServedModel, release: Release) -> None:
    robot = make_actor(Role.CI)
    with pytest.raises(Refused):
        actions.add_golden_set(actor=robot, model=model, data=golden_lines(3))
    assert actions.request_gate_run(actor=robot, release=release)[0].state == "queued"


# asking


def test_asking_twice_makes_one_gate_run_and_one_job(stage: Stage, developer: Actor, release: Release) -> None:
    first, is_new = actions.request_gate_run(actor=developer, release=release)
    assert is_new and actions.request_gate_run(actor=developer, release=release) == (first, False)
    job = Job.objects.get(kind="gate_run")
    assert (job.key, job.queue, job.args) == (f"gate_run:{first.pk}", "validate", {"gate_run": first.pk})
    assert [run.gate for run in first.results.all()] == ["contract", "cold_start", "golden", "load"]
    assert first.environment.slug == "staging"


def test_gates_keep_away_from_users(stage: Stage, developer: Actor, release: Release) -> None:
    with pytest.raises(Invalid) as caught:
        actions.request_gate_run(actor=developer, release=release, environment=make_environment("production"))
    assert caught.value.code == "environment_has_users"


def test_drafts_unwaived_code_and_unfit_policies_are_refused(
    stage: Stage, developer: Actor, model: ServedModel
) -> None:
    with pytest.raises(StateChanged, match="not_sealed"):
        actions.request_gate_run(actor=developer, release=make_release(model, state=ReleaseState.DRAFT))
    with pytest.raises(Refused, match="no release manager has waived"):
        actions.request_gate_run(actor=developer, release=make_release(model, is_code_bearing=True))
    release = make_release(model)
    for policy, error in [
        ({"gates": ["smell"]}, Invalid),
        ({"golden": {"set": f"sha256:{'0' * 64}"}}, NotFound),
        ({"golden": {**model.gate_policy["golden"], "output": "logits"}}, Invalid),
    ]:
        model.gate_policy = policy
        model.save()
        release.model.refresh_from_db()
        with pytest.raises(error):
            actions.request_gate_run(actor=developer, release=release)
    with pytest.raises(Refused):
        actions.request_gate_run(actor=make_actor(team="others"), release=release)
    assert not GateRun.objects.exists()
    assert not Job.objects.exists()


def test_its_report_is_canonical_signed_and_names_what_was_judged(
    stage: Stage, developer: Actor, release: Release
) -> None:
    report = validated(developer, release).report
    body = json.loads(report.body)
    assert sha256_of(report.body.encode()) == report.digest
    assert installation_keys.verify(report.digest, report.signature, report.key_id)
    assert queries.is_authentic(report)
    assert queries.latest_report(release) == report
    assert body["schema"] == "sluicegate/report/v1"
    assert body["manifest_digest"] == release.digest == report.manifest_digest
    assert body["policy_digest"] == report.policy_digest
    assert body["baseline"] is None
    assert body["golden_set"] == release.model.gate_policy["golden"]["set"]
    assert [gate["gate"] for gate in body["gates"]] == ["contract", "cold_start", "golden", "load"]
    assert body["hardware"]["gpu"]["state"] == "unknown"
    assert body["hardware"]["node"] == "local"
    report.body = report.body.replace("passed", "Passed")
    assert not queries.is_authentic(report)


def test_its_evidence_is_attested_with_numbers(stage: Stage, developer: Actor, release: Release) -> None:
    report = validated(developer, release).report
    made = release.attestations.get(predicate_type=GATES_TYPE)
    statement = oms.read_statement(verified_bundle(made.bundle)[0])
    said = statement["predicate"]
    assert made.about == report.digest == said["report"]
    assert statement["subject"][0]["digest"] == {"sha256": str(release.digest).removeprefix("sha256:")}
    assert said["testResult"]["result"] == "PASSED" and said["testResult"]["warnedTests"] == []
    golden = next(gate for gate in said["gates"] if gate["gate"] == "golden")
    accuracy = next(metric for metric in golden["metrics"] if metric["name"] == "accuracy")
    body = next(gate for gate in json.loads(report.body)["gates"] if gate["gate"] == "golden")["evidence"]["accuracy"]
    assert (accuracy["value"], accuracy["n"], accuracy["low"], accuracy["high"]) == (
        body["value"],
        body["n"],
        body["low"],
        body["high"],
    )
    assert accuracy["unit"] == "frac" and accuracy["threshold"] == release.model.gate_policy["golden"].get(
        "min_accuracy"
    )


# evidence is final


@pytest.mark.parametrize("tables", ["validators_gateresult", "validators_report CASCADE", "validators_goldenset"])
def test_no_table_of_evidence_can_be_emptied(tables: str) -> None:
    with pytest.raises(IntegrityError, match="never deleted"), transaction.atomic():
        connection.cursor().execute(f"TRUNCATE {tables}")


def test_the_database_refuses_to_change_evidence(stage: Stage, developer: Actor, release: Release) -> None:
    gate_run = validated(developer, release)
    for change in (
        lambda: GateResult.objects.filter(gate="golden").update(verdict="passed", reason="looked fine to me"),
        lambda: GateResult.objects.filter(gate="golden").delete(),
        lambda: Report.objects.update(verdict="passed"),
        lambda: Report.objects.all().delete(),
        lambda: GoldenSet.objects.update(items=1),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            change()
    run = gate_run.results.get(gate="golden")
    from validators.core.verdict import Judgement, Verdict

    assert not actions.record_judgement(
        actor=ACTOR, gate_result=run, judgement=Judgement(Verdict.FAILED, "second thoughts")
    )
    assert run.verdict == "passed"
