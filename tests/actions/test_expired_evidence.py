"""Evidence that does not hold where a release will serve: what is refused, what runs again, and what is taken over."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import Invalid, Refused
from registry.core import oms
from registry.core.attestations import GATES_TYPE
from registry.models import Release, ServedModel
from rollouts import actions as rollouts
from rollouts.actions.preview import preview_rollout
from serving.models import Environment, Node, Replica
from serving.targets.actions.static_servers import list_server
from serving.targets.queries.node_fit import next_node
from tests.support.worlds.factories import make_admin, make_environment, make_node, make_release, make_replica
from tests.support.worlds.gate_setup import (
    POLICY,
    Stage,
    beat,
    developer,
    model,
    promote,
    release,
    stage,
    validated,
    verdicts,
)
from tests.support.worlds.registry_samples import verified_bundle
from tests.support.worlds.rollout_setup import TOLD
from validators import actions, queries
from validators.execution.run import execute_gate_run
from validators.models import GateRun
from validators.queries.entry import only_advice_failed
from validators.queries.expiry import expired_of

__all__ = ["developer", "model", "release", "stage"]  # fixtures
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def known(stage: Stage) -> None:
    Node.objects.update(facts=TOLD)


@pytest.fixture
def production() -> Environment:
    return make_environment("production", needs_passed_report=True)


def moved_to(**facts: Any) -> None:
    """The node that serves is another now."""
    Node.objects.update(facts={**TOLD, **facts})


def later(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    now = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: now() + timedelta(days=days))


def again(actor: Actor, release: Release, *, only_expired: bool = True) -> GateRun:
    Replica.objects.filter(is_wanted=False).update(state="gone")  # that of the run before has been drained meanwhile
    gate_run, _ = actions.request_gate_run(actor=actor, release=release, only_expired=only_expired)
    execute_gate_run(gate_run.pk, beat)
    return queries.gate_runs().get(pk=gate_run.pk)


def reused(gate_run: GateRun) -> set[str]:
    return {result.gate for result in gate_run.results.all() if result.reused_from}


def warned(release: Release, environment: Environment) -> dict[str, Any] | None:
    told = preview_rollout(actor=make_admin(), candidate=release, environment=environment)["warnings"]
    return next((one for one in told if one["code"] == "expired_report"), None)


def test_a_report_tells_of_each_gate_where_it_was_measured(stage: Stage, developer: Actor, release: Release) -> None:
    report = validated(developer, release).report
    gates = json.loads(report.body)["gates"]
    assert [gate["measured"]["cpu_model"] for gate in gates] == ["EPYC"] * 4
    assert {gate["measured"]["image"] for gate in gates} == {json.loads(release.manifest)["runtime"]["image"]}
    assert {gate["measured"]["gpu"] for gate in gates} == {"none"} and {
        gate["measured"]["baseline"] for gate in gates
    } == {None}
    assert expired_of(report) == []


def test_a_start_says_which_lines_expired_and_what_to_run_again(
    stage: Stage, developer: Actor, release: Release, production: Environment
) -> None:
    validated(developer, release)
    moved_to(cpu_count=8)
    with pytest.raises(Refused) as caught:
        rollouts.start_rollout(actor=make_admin(), candidate=release, environment=production)
    assert caught.value.code == "expired_report"
    assert "CPU count of cold_start, load: measured on 16, and node local has 8" in caught.value.message
    assert "sluicegate gates sentiment/r1 --only-expired" in caught.value.message
    assert caught.value.facts["lines"][0]["gates"] == ["cold_start", "load"]
    assert warned(release, production) == {
        "code": "expired_report", "level": "refused", "message": caught.value.message,
    }  # fmt: skip
    assert reused(again(developer, release)) == {"contract", "golden"}
    assert warned(release, production) is None
    assert rollouts.start_rollout(actor=make_admin(), candidate=release, environment=production).state == "preparing"


def test_an_environment_that_asks_for_no_report_is_only_warned(
    stage: Stage, developer: Actor, release: Release
) -> None:
    production = make_environment("production", needs_passed_report=False)
    validated(developer, release)
    assert warned(release, production) is None
    moved_to(cpu_model="Xeon")
    found = warned(release, production)
    assert found and found["level"] == "warning" and "measured on EPYC, and node local has Xeon" in found["message"]
    assert rollouts.start_rollout(actor=make_admin(), candidate=release, environment=production).state == "preparing"


def test_what_nobody_knows_of_the_node_refuses_the_start(
    stage: Stage, developer: Actor, release: Release, production: Environment
) -> None:
    moved_to(cpu_model=None)
    validated(developer, release)
    with pytest.raises(Refused, match="measured where nobody could tell it, and nobody can tell it of node local"):
        rollouts.start_rollout(actor=make_admin(), candidate=release, environment=production)


def test_the_node_that_serves_it_there_counts_before_the_one_that_a_new_replica_would_get(
    stage: Stage, developer: Actor, release: Release, production: Environment
) -> None:
    validated(developer, release)
    other = make_node("other", facts={**TOLD, "cpu_model": "Xeon"}, seen_at=timezone.now() - timedelta(days=1))
    assert warned(release, production) is None
    replica = make_replica(release, production, state="ready")
    replica.node = other
    replica.save()
    assert "node other has Xeon" in str(warned(release, production))


def test_a_machine_comes_before_a_listed_server_with_its_image(release: Release) -> None:
    canary = make_environment("canary", platform="static")
    image = make_node().runtimes[0]["image"]
    address = "127.0.0.1:8000:8001"
    list_server(actor=make_admin(), environment=canary, name="theirs", address=address, runtime=image)
    Node.objects.filter(name="theirs").update(runtimes=make_node().runtimes, seen_at=timezone.now())
    assert getattr(next_node(release), "name", "") == "local"
    Node.objects.filter(name="local").update(removed_at=timezone.now())
    assert getattr(next_node(release), "name", "") == "theirs"  # a release that was sealed for such servers


def test_without_a_node_for_its_image_nobody_can_tell_where_it_will_serve(
    stage: Stage, developer: Actor, release: Release, production: Environment
) -> None:
    validated(developer, release)
    Node.objects.update(removed_at=timezone.now())
    with pytest.raises(Refused, match="No node with its runtime image .* so its place is unknown"):
        rollouts.start_rollout(actor=make_admin(), candidate=release, environment=production)


def test_only_what_expired_runs_again_and_the_rest_is_taken_over_with_its_own_dates(
    stage: Stage, developer: Actor, release: Release
) -> None:
    first = validated(developer, release)
    moved_to(cpu_model="Xeon")
    second = again(developer, release)
    assert second.verdict == "passed" and reused(second) == {"contract"}
    before, after = (run.results.get(gate="contract") for run in (first, second))
    assert (after.started_at, after.ended_at) == (before.started_at, before.ended_at)
    assert (after.evidence, after.measured, after.reason) == (before.evidence, before.measured, before.reason)
    told = json.loads(second.report.body)["gates"]
    assert [gate["reused_from"] for gate in told] == [first.report.digest, None, None, None]
    assert [gate["measured"]["cpu_model"] for gate in told] == ["EPYC", "Xeon", "Xeon", "Xeon"]
    assert queries.is_authentic(second.report) and expired_of(second.report) == []
    made = release.attestations.get(predicate_type=GATES_TYPE, about=second.report.digest)
    attested = oms.read_statement(verified_bundle(made.bundle)[0])["predicate"]["gates"]
    assert [one["reusedFrom"] for one in attested] == [first.report.digest, None, None, None]
    assert [one["measuredOn"]["cpu_model"] for one in attested] == ["EPYC", "Xeon", "Xeon", "Xeon"]


def test_where_everything_holds_no_server_is_started(stage: Stage, developer: Actor, release: Release) -> None:
    first = validated(developer, release)
    stage.asked.clear()
    second = again(developer, release)
    assert reused(second) == {"contract", "cold_start", "golden", "load"} and stage.asked == []
    assert second.report.verdict == "passed" and second.report.digest != first.report.digest


def test_what_is_taken_over_again_and_again_keeps_its_age(
    stage: Stage, developer: Actor, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated(developer, release)
    later(monkeypatch, 20)
    assert reused(again(developer, release)) == {"contract", "cold_start", "golden", "load"}
    later(monkeypatch, 11)
    assert reused(again(developer, release)) == set()


def test_only_the_gate_whose_demands_changed_runs_again(
    stage: Stage, developer: Actor, model: ServedModel, release: Release, production: Environment
) -> None:
    first = validated(developer, release)
    model.gate_policy = {**model.gate_policy, "cold_start": {**POLICY["cold_start"], "max_s": 50}}
    model.save()
    release = Release.objects.get(pk=release.pk)  # with its model as it is now
    assert "--only-expired" in str(warned(release, production))
    second = again(developer, release)
    assert reused(second) == {"contract", "golden", "load"}
    assert second.policy_digest != first.policy_digest
    assert warned(release, production) is None


def test_a_comparison_with_another_stable_release_is_made_again(
    stage: Stage, developer: Actor, model: ServedModel, release: Release
) -> None:
    validated(developer, release)
    promote(make_release(model))
    assert reused(again(developer, release)) == {"contract", "cold_start"}
    assert reused(again(developer, release)) == {"contract", "cold_start", "golden", "load"}


def test_no_older_result_is_taken_over_past_a_newer_one_that_did_not_pass(
    stage: Stage, developer: Actor, release: Release
) -> None:
    validated(developer, release)
    stage.behave(release, lambda tensors: {"wrong": next(iter(tensors.values()))})
    assert verdicts(again(developer, release, only_expired=False))["contract"] == "failed"
    stage.behaviour.clear()
    third = again(developer, release)
    assert reused(third) == set() and third.verdict == "passed"


def test_without_being_asked_to_nothing_is_taken_over(stage: Stage, developer: Actor, release: Release) -> None:
    validated(developer, release)
    assert reused(again(developer, release, only_expired=False)) == set()


def advises(model: ServedModel, **production: Any) -> None:
    model.gate_policy = {**model.gate_policy, "environments": {"production": {"advisory": ["load"], **production}}}
    model.save()


def test_a_gate_that_only_advises_there_holds_nothing_up_and_is_told(
    stage: Stage, developer: Actor, model: ServedModel, production: Environment
) -> None:
    advises(model)
    release = make_release(model)
    assert expired_of(validated(developer, release).report) == []
    moved_to(cpu_count=8)
    assert "CPU count of cold_start: measured" in str(warned(release, production))  # and no word of load


def test_a_failed_gate_that_only_advises_stops_no_other_and_admits_the_release(
    stage: Stage, developer: Actor, model: ServedModel, production: Environment
) -> None:
    model.gate_policy = {
        **model.gate_policy,
        "gates": ["load", "contract"],
        "load": {**POLICY["load"], "slo_ms": 0.001},
    }
    advises(model)
    release = make_release(model)
    gate_run = validated(developer, release)
    assert verdicts(gate_run) == {"load": "failed", "contract": "passed"} and gate_run.verdict == "failed"
    told = preview_rollout(actor=make_admin(), candidate=release, environment=production)["warnings"]
    assert [one["level"] for one in told if one["code"] == "advisory_gate"] == ["warning"]
    elsewhere = make_environment("elsewhere", needs_passed_report=True)
    with pytest.raises(Refused, match="ended failed"):
        rollouts.start_rollout(actor=make_admin(), candidate=release, environment=elsewhere)
    assert rollouts.start_rollout(actor=make_admin(), candidate=release, environment=production).state == "preparing"
    assert only_advice_failed(gate_run)


def test_an_environment_may_ask_for_fresher_evidence(
    stage: Stage, developer: Actor, model: ServedModel, production: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    advises(model, max_age_days=7)
    release = make_release(model)
    report = validated(developer, release).report
    later(monkeypatch, 8)
    assert "Contract was measured 8 days ago, and holds for 7 days" in str(warned(release, production))
    assert expired_of(report, make_environment("elsewhere")) == []
    assert reused(again(developer, release)) == set()  # fresh enough for every environment, or measured anew
    assert warned(release, production) is None


def test_a_policy_that_speaks_of_no_environment_there_is_refused(
    stage: Stage, developer: Actor, model: ServedModel, release: Release
) -> None:
    model.gate_policy = {**model.gate_policy, "environments": {"prodution": {"max_age_days": 7}}}
    model.save()
    with pytest.raises(Invalid, match="speaks of prodution") as caught:
        actions.request_gate_run(actor=developer, release=Release.objects.get(pk=release.pk))
    assert caught.value.facts["errors"][0]["field"] == "environments.prodution"
