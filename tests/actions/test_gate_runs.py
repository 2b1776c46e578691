"""What each kind of release comes to at its gates."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import validators.execution.run
import validators.execution.staging
from accounts.core.access import Actor
from ledger.actions import leases
from ledger.core.canonical import canonical_bytes, sha256_of
from registry.models import Release, ServedModel
from serving.models import Node, Replica
from serving.ports import InferenceError
from tests.support.worlds.factories import make_blob, make_manifest, make_node, make_release, make_server
from tests.support.worlds.gate_setup import (  # noqa: F401
    POLICY,
    Arrays,
    Stage,
    developer,
    judge_text,
    model,
    promote,
    release,
    stage,
    validated,
    verdicts,
)
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates import MEASURES, GateContext

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # whole runs of four gates


def test_a_good_first_release_passes_by_absolute_limits(stage: Stage, developer: Actor, release: Release) -> None:
    gate_run = validated(developer, release)
    assert verdicts(gate_run) == {
        "contract": "passed",
        "cold_start": "passed",
        "golden": "passed",
        "load": "passed",
    }
    assert (gate_run.state, gate_run.verdict) == ("finished", "passed")
    golden = gate_run.results.get(gate="golden")
    assert "only absolute limits" in golden.reason
    assert golden.evidence["predictions"] == [i % 2 for i in range(60)]
    replica = Replica.objects.get()
    assert not replica.is_wanted


@pytest.mark.parametrize(("undecided", "verdict"), [({}, "undecided"), ({"undecided": "allow"}, "passed")])
def test_an_undecided_load_gate_blocks_unless_the_policy_allows_it(
    stage: Stage, developer: Actor, model: ServedModel, undecided: dict[str, str], verdict: str
) -> None:
    model.gate_policy = {**model.gate_policy, "load": {**POLICY["load"], "max_duration_s": 0.05, **undecided}}
    model.save()
    gate_run = validated(developer, make_release(model))
    assert verdicts(gate_run)["load"] == "undecided"
    assert (gate_run.verdict, gate_run.report.verdict) == (verdict, verdict)
    assert ("which the policy allows" in gate_run.reason) == bool(undecided)


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
    make_server(Replica.objects.create(release=stable, environment=production, node=make_node(), state="ready"))
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
    def for_a_while(tensors: Arrays) -> Arrays:
        if stage.load_clock.now > 0.1:
            raise RuntimeError("too much")
        return judge_text(tensors)

    stage.behave(release, for_a_while)
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


def test_a_load_that_ends_with_the_envelopes_own_time_fails_with_both_numbers(
    stage: Stage, developer: Actor, model: ServedModel
) -> None:
    """The agent ends a load at the declared time, so that no longer one is ever measured."""
    manifest = make_manifest(model.slug, make_blob()) | {"envelope": {"lifecycle": {"load_timeout_s": 0.1}}}
    sealed = canonical_bytes(manifest)
    slow = make_release(model, manifest=sealed.decode(), digest=sha256_of(sealed))
    stage.fate = stage.fail(
        "load_failed: sentiment was still loading after 0.1 s; make its start faster, or raise its time."
    )
    gate_run = validated(developer, slow)
    cold = gate_run.results.get(gate="cold_start")
    assert cold.verdict == "failed"
    assert cold.reason.startswith("Its envelope declares 0.1 s (time to load); more than 0.1 s were measured.")
    rows = {row["field"]: row for row in json.loads(gate_run.report.body)["envelope"]}
    assert rows["lifecycle.load_timeout_s"]["verdict"] == "failed"


def test_without_a_node_for_its_runtime_the_check_is_errored(stage: Stage, developer: Actor, release: Release) -> None:
    make_node().delete()
    gate_run = validated(developer, release)
    assert gate_run.results.get(gate="cold_start").verdict == "errored"
    assert gate_run.verdict == "errored"
    assert not Replica.objects.exists()


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


def test_a_gate_that_takes_too_long_is_errored(
    stage: Stage, developer: Actor, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(validators.execution.run, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(tensors: Arrays) -> Arrays:
        now[0] += 2.0
        return judge_text(tensors)

    model.gate_policy = {**model.gate_policy, "gates": ["load"], "gate_timeout_s": 1}
    model.save()
    release = make_release(model)
    stage.behave(release, slow)
    gate_run = validated(developer, release)
    assert gate_run.results.get(gate="load").verdict == "errored"
    assert "not done after 1 s" in gate_run.results.get(gate="load").reason


def test_stable_comes_up_beside_a_slow_release_and_goes_with_it(
    stage: Stage, developer: Actor, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In staging, where no user is: the server of production is left alone."""
    stable = make_release(model)
    promote(stable)
    candidate = make_release(model)
    found: list[tuple[str, bool, list[str]]] = []

    def slow(name: str, context: GateContext) -> Judgement:
        if name == "load":
            beside = context.stable()
            assert beside is not None
            wanted = Replica.objects.filter(environment__slug="staging", is_wanted=True)
            found.append((beside.name, beside.server is not None, sorted(one.release.name for one in wanted)))
        return Judgement(Verdict.PASSED, "Fine.")

    monkeypatch.setattr(validators.execution.run, "run_gate", slow)
    validated(developer, candidate)
    assert found == [("r1", True, ["r1", "r2"])]
    assert not Replica.objects.filter(environment__slug="staging", is_wanted=True).exists()


def test_a_stable_release_that_does_not_come_up_is_told(
    stage: Stage, developer: Actor, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stable = make_release(model)
    promote(stable)
    told: list[str] = []

    def slow(name: str, context: GateContext) -> Judgement:
        if name == "load":
            beside = context.stable()
            assert beside is not None and beside.server is None
            told.append(beside.absent_because)
        elif name == "golden":
            stage.fate = stage.fail("load_failed: out of memory")
        return Judgement(Verdict.PASSED, "Fine.")

    monkeypatch.setattr(validators.execution.run, "run_gate", slow)
    validated(developer, make_release(model))
    assert told == ["r1 did not become ready: load_failed: out of memory"]


@pytest.mark.parametrize(("undecided", "verdict"), [("block", "undecided"), ("allow", "passed")])
def test_a_search_for_the_capacity_has_the_machine_to_itself_and_may_be_let_go(
    stage: Stage, developer: Actor, model: ServedModel, monkeypatch: pytest.MonkeyPatch, undecided: str, verdict: str
) -> None:
    seen: list[tuple[str, str]] = []

    def search(context: GateContext) -> Judgement:
        seen.append((context.hardware, leases.holder(f"load:{Replica.objects.get().node_id}")))
        return Judgement(Verdict.UNDECIDED, "Too short.")

    monkeypatch.setitem(MEASURES, "capacity", search)
    Node.objects.update(facts={"cpu_model": "Xeon"})
    model.gate_policy = {"gates": ["contract", "capacity"], "capacity": {"undecided": undecided}}
    model.save()
    gate_run = validated(developer, make_release(model))
    assert (gate_run.verdict, gate_run.report.verdict) == (verdict, verdict)
    assert seen == [("Xeon", f"gate run {gate_run.pk} of {model.slug} {gate_run.release.name}")]
