"""Gate runs whose worker dies, loses its job, or is told to stop."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import validators.execution.run
import validators.execution.staging
from accounts.core.access import Actor
from ledger.core.errors import Stale, StateChanged
from ledger.models import Event, Job
from registry.models import Release
from serving.models import Replica
from tests.support.worlds.gate_setup import Stage, beat, developer, model, release, stage, validated, verdicts  # noqa: F401
from validators import actions
from validators.execution.run import ACTOR, execute_gate_run
from validators.models import GateRun, Report

pytestmark = pytest.mark.django_db


def test_a_worker_that_died_after_the_report_has_its_server_given_back_by_the_next(
    stage: Stage, developer: Actor, release: Release
) -> None:
    gate_run = validated(developer, release)
    Replica.objects.update(is_wanted=True)  # as if it had died before it said so
    execute_gate_run(gate_run.pk, beat)
    assert not Replica.objects.get().is_wanted


def test_a_server_that_the_next_gate_run_uses_is_not_taken_from_it(
    stage: Stage, developer: Actor, release: Release
) -> None:
    gate_run = validated(developer, release)
    Replica.objects.update(is_wanted=True)
    actions.request_gate_run(actor=developer, release=release)
    execute_gate_run(gate_run.pk, beat)
    assert Replica.objects.get().is_wanted


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
    assert Replica.objects.get().is_wanted


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
    assert not Replica.objects.get().is_wanted
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
