"""Gate runs: what may be asked for, what each kind of release comes to, and that evidence is final."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

import validators.execution.run
import validators.execution.staging
from accounts.core.access import Actor, Role
from ledger.core.canonical import sha256_of
from ledger.core.errors import Invalid, NotFound, Refused, Stale, StateChanged
from ledger.models import Event, Job
from registry.core import oms
from registry.core.attestations import GATES_TYPE
from registry.core.lifecycle import ReleaseState
from registry.models import Release, ServedModel
from registry.signing import installation_keys
from serving.models import Deployment, Environment, Route, Server
from serving.ports import InferenceError
from tests.factories import make_actor, make_environment, make_model, make_node, make_release, make_server
from tests.fakes.ports import FakeInferenceServer, FakeModel
from tests.registry_samples import verified_bundle
from validators import actions, queries
from validators.execution.run import ACTOR, execute_gate_run
from validators.models import GateResult, GateRun, GoldenSet, Report

pytestmark = pytest.mark.django_db
Arrays = dict[str, Any]
POLICY = {
    "golden": {"min_accuracy": 0.7, "alone_items": 8, "batch_size": 8},
    "load": {"rate_per_s": 100, "duration_s": 0.3, "slo_ms": 500, "max_lag_ms": 400},
    "cold_start": {"inferences": 5},
}


def judge_text(tensors: Arrays) -> Arrays:
    """The honest model of these tests: good is 1."""
    right = [b"good" in text for text in tensors["TEXT"].ravel()]
    return {"probabilities": np.array([[0.1, 0.9] if good else [0.8, 0.2] for good in right], np.float32)}


def golden_lines(count: int = 60) -> bytes:
    return b"\n".join(
        json.dumps(
            {
                "id": f"i{i}",
                "inputs": {"TEXT": f"{'good' if i % 2 else 'bad'} {i}"},
                "label": i % 2,
                "slice": "ab"[i < 30],
            }
        ).encode()
        for i in range(count)
    )


class Stage:
    """Stands in for the node's agent: deployments come up when they are waited for, and answer as `behaviour` says."""

    def __init__(self) -> None:
        self.behaviour: dict[str, FakeModel] = {}
        self.fate: Callable[[Deployment], None] = self.come_up
        self.asked: list[str] = []

    def tick(self, _seconds: float = 0.0) -> None:
        for deployment in Deployment.objects.filter(state="fetching", is_wanted=True):
            self.fate(deployment)

    def come_up(self, deployment: Deployment) -> None:
        timings = {"fetch_s": 0.5, "load_s": 1.5, "warmup_s": 0.2}
        Deployment.objects.filter(pk=deployment.pk).update(state="ready", timings=timings, ready_at=timezone.now())
        make_server(deployment)

    def fail(self, reason: str) -> Callable[[Deployment], None]:
        return lambda deployment: (
            Deployment.objects.filter(pk=deployment.pk).update(state="failed", reason=reason) and None
        )

    def client(self, server: Server) -> FakeInferenceServer:
        release = server.deployment.release
        self.asked.append(release.name)
        slug = release.model.slug
        serving = json.loads(release.manifest)["serving"]
        return FakeInferenceServer({slug: self.behaviour.get(release.name) or FakeModel(serving, judge_text)})

    def behave(self, release: Release, compute: Callable[[Arrays], Arrays] = judge_text, **how: Any) -> FakeModel:
        model = FakeModel(json.loads(release.manifest)["serving"], compute, **how)
        self.behaviour[release.name] = model
        return model


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    make_node()
    make_environment("staging", is_routed=False)
    monkeypatch.setattr(validators.execution.staging, "sleep", made.tick)
    monkeypatch.setattr(validators.execution.run, "inference_server", made.client)
    return made


@pytest.fixture
def developer() -> Actor:
    return make_actor(Role.MODEL_TEAM)


@pytest.fixture
def model(developer: Actor) -> ServedModel:
    found = make_model("sentiment", gate_policy=POLICY)
    golden, _ = actions.add_golden_set(actor=developer, model=found, data=golden_lines())
    found.gate_policy = {**POLICY, "golden": {**POLICY["golden"], "set": golden.digest}}
    found.save()
    return found


@pytest.fixture
def release(model: ServedModel) -> Release:
    return make_release(model)


def beat(*_: Any, **__: Any) -> bool:
    return True


def validated(actor: Actor, release: Release) -> GateRun:
    gate_run, _ = actions.request_gate_run(actor=actor, release=release)
    execute_gate_run(gate_run.pk, beat)
    gate_run.refresh_from_db()
    return gate_run


def verdicts(gate_run: GateRun) -> dict[str, str]:
    return {run.gate: run.verdict for run in gate_run.results.all()}


def promote(release: Release) -> Environment:
    production = make_environment("production")
    Route.objects.create(environment=production, model=release.model, stable=release, changed_at=timezone.now())
    return production


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


# running


def test_a_good_first_release_passes_by_absolute_limits(stage: Stage, developer: Actor, release: Release) -> None:
    gate_run = validated(developer, release)
    assert verdicts(gate_run) == {
        "contract": "passed",
        "cold_start": "passed",
        "golden": "passed",
        "load": "undecided",
    }
    assert (gate_run.state, gate_run.verdict) == ("finished", "passed")
    assert "load undecided, which the policy allows" in gate_run.reason
    golden = gate_run.results.get(gate="golden")
    assert "only absolute limits" in golden.reason
    assert golden.evidence["predictions"] == [i % 2 for i in range(60)]
    deployment = Deployment.objects.get()
    assert not deployment.is_wanted


def test_a_worker_that_died_after_the_report_has_its_server_given_back_by_the_next(
    stage: Stage, developer: Actor, release: Release
) -> None:
    gate_run = validated(developer, release)
    Deployment.objects.update(is_wanted=True)  # as if it had died before it said so
    execute_gate_run(gate_run.pk, beat)
    assert not Deployment.objects.get().is_wanted


def test_a_server_that_the_next_gate_run_uses_is_not_taken_from_it(
    stage: Stage, developer: Actor, release: Release
) -> None:
    gate_run = validated(developer, release)
    Deployment.objects.update(is_wanted=True)
    actions.request_gate_run(actor=developer, release=release)
    execute_gate_run(gate_run.pk, beat)
    assert Deployment.objects.get().is_wanted


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
    assert said["testResult"]["result"] == "PASSED" and said["testResult"]["warnedTests"] == ["load"]
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


def test_an_undecided_load_gate_blocks_where_the_policy_says_so(
    stage: Stage, developer: Actor, model: ServedModel
) -> None:
    model.gate_policy = {**model.gate_policy, "load": {**POLICY["load"], "undecided": "block"}}
    model.save()
    gate_run = validated(developer, make_release(model))
    assert gate_run.verdict == "undecided"
    assert gate_run.report.verdict == "undecided"


def wrong_name(tensors: Arrays) -> Arrays:
    return {"probability": judge_text(tensors)["probabilities"]}


def wrong_type(tensors: Arrays) -> Arrays:
    return {"probabilities": judge_text(tensors)["probabilities"].astype(np.float64)}


def wrong_shape(tensors: Arrays) -> Arrays:
    return {"probabilities": judge_text(tensors)["probabilities"][:, :1]}


def not_a_number(tensors: Arrays) -> Arrays:
    return {"probabilities": judge_text(tensors)["probabilities"] * np.nan}


def one_more(tensors: Arrays) -> Arrays:
    return {**judge_text(tensors), "debug": np.zeros((len(tensors["TEXT"]), 1), np.float32)}


def breaks_at_16(tensors: Arrays) -> Arrays:
    if len(tensors["TEXT"]) >= 16:
        raise MemoryError("no room for a batch of 16")
    return judge_text(tensors)


@pytest.mark.parametrize(
    ("compute", "kind"),
    [
        (wrong_name, "missing"),
        (wrong_type, "data_type"),
        (wrong_shape, "shape"),
        (not_a_number, "not_finite"),
        (one_more, "extra"),
        (breaks_at_16, "refused"),
    ],
)
def test_a_broken_contract_fails_and_the_rest_is_skipped(
    stage: Stage, developer: Actor, release: Release, compute: Callable[[Arrays], Arrays], kind: str
) -> None:
    stage.behave(release, compute)
    gate_run = validated(developer, release)
    assert verdicts(gate_run) == {
        "contract": "failed",
        "cold_start": "skipped",
        "golden": "skipped",
        "load": "skipped",
    }
    contract = gate_run.results.get(gate="contract")
    assert kind in {mismatch["kind"] for mismatch in contract.evidence["mismatches"]}
    assert gate_run.results.get(gate="load").reason == "Not run, because contract failed."
    assert (gate_run.verdict, gate_run.report.verdict) == ("failed", "failed")


def test_a_server_that_says_something_else_than_the_release_fails(
    stage: Stage, developer: Actor, release: Release
) -> None:
    stage.behave(release).serving["outputs"] = [{"name": "probabilities", "data_type": "FP32", "dims": [3]}]
    contract = validated(developer, release).results.get(gate="contract")
    assert contract.verdict == "failed"
    assert "The server says output probabilities is [3]" in contract.reason


def test_a_release_that_breaks_the_models_promise_fails(stage: Stage, developer: Actor, release: Release) -> None:
    release.model.contract = {
        **release.model.contract,
        "outputs": [{"name": "label", "data_type": "BYTES", "dims": [1]}],
    }
    release.model.save()
    contract = validated(developer, release).results.get(gate="contract")
    assert contract.verdict == "failed"
    assert "against the model's contract, has no output label" in contract.reason


def test_a_worse_release_fails_the_golden_gate_against_the_answers_on_record(
    stage: Stage, developer: Actor, model: ServedModel
) -> None:
    stable = make_release(model)
    validated(developer, stable)
    promote(stable)
    stage.asked.clear()
    candidate = make_release(model)
    stage.behave(
        candidate,
        lambda tensors: judge_text({"TEXT": np.array([[b"bad"] if b"good 1" in t[0] else t for t in tensors["TEXT"]])}),
    )
    gate_run = validated(developer, candidate)
    golden = gate_run.results.get(gate="golden")
    assert golden.verdict == "failed"
    assert "agreement with r1" in golden.reason
    assert gate_run.baseline == stable
    assert golden.evidence["baseline_source"] == "the stable release's own report"
    assert set(stage.asked) == {candidate.name}
    assert json.loads(gate_run.report.body)["baseline"]["manifest_digest"] == stable.digest


def test_without_answers_on_record_the_stable_server_is_asked(
    stage: Stage, developer: Actor, model: ServedModel
) -> None:
    stable = make_release(model)
    production = promote(stable)
    make_server(Deployment.objects.create(release=stable, environment=production, node=make_node(), state="ready"))
    candidate = make_release(model)
    golden = validated(developer, candidate).results.get(gate="golden")
    assert golden.verdict == "passed"
    assert golden.evidence["agreement"]["value"] == 1.0
    assert golden.evidence["baseline_source"] == "r1 in production"
    assert stable.name in stage.asked


def test_with_neither_the_gate_says_that_it_judged_absolutely(
    stage: Stage, developer: Actor, model: ServedModel
) -> None:
    promote(make_release(model))
    golden = validated(developer, make_release(model)).results.get(gate="golden")
    assert golden.verdict == "passed"
    assert "no server to ask" in golden.evidence["baseline_source"]
    assert "only absolute limits" in golden.reason


def test_a_release_that_fails_under_load_fails_the_load_gate(stage: Stage, developer: Actor, release: Release) -> None:
    calls = iter(range(10_000))

    def sometimes(tensors: Arrays) -> Arrays:
        if len(tensors["TEXT"]) == 1 and next(calls) > 20:
            raise RuntimeError("too much")
        return judge_text(tensors)

    stage.behave(release, sometimes)
    gate_run = validated(developer, release)
    load = gate_run.results.get(gate="load")
    assert (load.verdict, gate_run.verdict) == ("failed", "failed")
    assert "too much" in load.reason


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        ("load_failed: ModuleNotFoundError: no module named foo", "failed"),
        ("fetch_failed: the blob store does not answer", "errored"),
    ],
)
def test_a_release_that_never_comes_up_is_blamed_only_for_its_own_fault(
    stage: Stage, developer: Actor, release: Release, reason: str, verdict: str
) -> None:
    stage.fate = stage.fail(reason)
    gate_run = validated(developer, release)
    assert verdicts(gate_run) == {
        "contract": "skipped",
        "cold_start": verdict,
        "golden": "skipped",
        "load": "skipped",
    }
    assert reason in gate_run.results.get(gate="cold_start").reason
    assert gate_run.report.verdict == verdict


def test_without_a_node_for_its_runtime_the_check_is_errored(stage: Stage, developer: Actor, release: Release) -> None:
    make_node().delete()
    gate_run = validated(developer, release)
    assert gate_run.results.get(gate="cold_start").verdict == "errored"
    assert gate_run.verdict == "errored"
    assert not Deployment.objects.exists()


def test_a_server_that_is_gone_is_an_error_of_the_check(stage: Stage, developer: Actor, release: Release) -> None:
    stage.behave(release, breaks=InferenceError("unreachable", "failed to connect"))
    gate_run = validated(developer, release)
    assert gate_run.results.get(gate="contract").verdict == "errored"
    assert gate_run.verdict == "errored"


def test_a_gate_that_breaks_is_errored_and_keeps_folders_to_itself(
    stage: Stage, developer: Actor, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("cannot open /home/someone/secret/place/file.json")

    monkeypatch.setattr(validators.execution.run, "run_gate", broken)
    contract = validated(developer, release).results.get(gate="contract")
    assert contract.verdict == "errored"
    assert "RuntimeError: cannot open file.json" in contract.reason


def test_a_gate_that_takes_too_long_is_errored(stage: Stage, developer: Actor, model: ServedModel) -> None:
    model.gate_policy = {
        **model.gate_policy,
        "gate_timeout_s": 1,
        "load": {**POLICY["load"], "duration_s": 5, "rate_per_s": 5},
    }
    model.save()
    gate_run = validated(developer, make_release(model))
    assert gate_run.results.get(gate="load").verdict == "errored"
    assert "not done after 1 s" in gate_run.results.get(gate="load").reason


# workers that die, and people who change their mind


def test_the_next_worker_keeps_the_verdicts_that_are_there(
    stage: Stage, developer: Actor, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate_run, _ = actions.request_gate_run(actor=developer, release=release)
    run_gate = validators.execution.run.run_gate

    class Killed(BaseException):
        pass

    def dies_in_golden(name: str, context: Any) -> Any:
        if name == "golden":
            raise Killed
        return run_gate(name, context)

    monkeypatch.setattr(validators.execution.run, "run_gate", dies_in_golden)
    with pytest.raises(Killed):
        execute_gate_run(gate_run.pk, beat)
    gate_run.refresh_from_db()
    assert verdicts(gate_run) == {"contract": "passed", "cold_start": "passed", "golden": "", "load": ""}
    ended = gate_run.results.get(gate="contract").ended_at

    again: list[str] = []
    monkeypatch.setattr(
        validators.execution.run, "run_gate", lambda name, context: again.append(name) or run_gate(name, context)
    )
    execute_gate_run(gate_run.pk, beat)
    gate_run.refresh_from_db()
    assert again == ["golden", "load"]
    assert gate_run.results.get(gate="contract").ended_at == ended
    assert gate_run.verdict == "passed"
    assert Event.objects.filter(verb="gate.judged", subject_id=str(gate_run.pk)).count() == 4


def test_a_worker_that_lost_its_job_stops_without_a_verdict(stage: Stage, developer: Actor, release: Release) -> None:
    gate_run, _ = actions.request_gate_run(actor=developer, release=release)
    execute_gate_run(gate_run.pk, lambda *_, **__: False)
    gate_run.refresh_from_db()
    assert gate_run.state == "running"
    assert set(verdicts(gate_run).values()) == {""}
    assert Deployment.objects.get().is_wanted


@pytest.mark.takes("gate run: running → cancelled")
def test_a_cancelled_gate_run_stops_and_gives_its_server_back(stage: Stage, developer: Actor, release: Release) -> None:
    gate_run, _ = actions.request_gate_run(actor=developer, release=release)

    def cancels(*_: Any, **__: Any) -> bool:
        current = GateRun.objects.get(pk=gate_run.pk)
        if current.state == "running":
            actions.cancel_gate_run(actor=developer, gate_run=current, reason="wrong release")
        return True

    execute_gate_run(gate_run.pk, cancels)
    gate_run.refresh_from_db()
    assert (gate_run.state, gate_run.verdict, gate_run.reason) == ("cancelled", "", "wrong release")
    assert Event.objects.get(verb="gate_run.cancelled").reason == "wrong release"
    assert not Report.objects.exists()
    assert not Deployment.objects.get().is_wanted
    with pytest.raises(StateChanged):
        actions.cancel_gate_run(actor=developer, gate_run=gate_run, reason="again")


def test_cancelling_what_changed_meanwhile_is_refused(stage: Stage, developer: Actor, release: Release) -> None:
    gate_run, _ = actions.request_gate_run(actor=developer, release=release)
    with pytest.raises(Stale):
        actions.cancel_gate_run(actor=developer, gate_run=gate_run, reason="", expected_version=99)


def test_a_job_that_failed_for_good_ends_its_gate_run_as_errored(
    stage: Stage, developer: Actor, release: Release
) -> None:
    gate_run, _ = actions.request_gate_run(actor=developer, release=release)
    actions.give_up_gate_run(actor=ACTOR, gate_run=gate_run, why="the database was away")
    gate_run.refresh_from_db()
    assert (gate_run.state, gate_run.verdict) == ("finished", "errored")
    assert verdicts(gate_run) == {
        "contract": "errored",
        "cold_start": "skipped",
        "golden": "skipped",
        "load": "skipped",
    }
    actions.give_up_gate_run(actor=ACTOR, gate_run=gate_run, why="again")
    assert Event.objects.filter(verb="gate_run.finished", to_state="finished").count() == 1


@pytest.mark.takes(
    "gate run: queued → running", "gate run: running → finished", "job: queued → running", "job: running → done"
)
def test_the_job_runs_the_gates(stage: Stage, developer: Actor, release: Release, run_jobs: Callable[[], int]) -> None:
    import validators.tasks  # noqa: F401 - registers the handler, as Celery does

    gate_run, _ = actions.request_gate_run(actor=developer, release=release)
    assert run_jobs() == 1
    gate_run.refresh_from_db()
    assert gate_run.verdict == "passed"
    assert Job.objects.get().state == "done"
    told = Event.objects.filter(verb__startswith="gate_run.").order_by("seq")
    assert [(event.verb, event.to_state) for event in told] == [
        ("gate_run.requested", "queued"),
        ("gate_run.started", "running"),
        ("gate_run.finished", "finished"),
    ]


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
