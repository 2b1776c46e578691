"""A gate run that is given up while a worker that was taken for dead still writes of its gates."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from accounts.core.access import Actor
from registry.models import Release
from tests.support.worlds.gate_setup import developer, model, release, stage  # noqa: F401
from tests.support.worlds.lock_races import Meeting, behind
from validators import actions
from validators.actions import record_judgement
from validators.core.verdict import Judgement, Verdict
from validators.models import GateResult, GateRun

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,  # threads that wait for one another
    pytest.mark.usefixtures("stage"),
]
WORKER = Actor.system("worker")


def test_who_gives_it_up_and_its_slow_worker_do_not_wait_for_each_other(
    developer: Actor, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate_run, _ = actions.request_gate_run(actor=developer, release=release)

    def judges(said: Any) -> object:
        one = GateResult.objects.get(pk=said["gate_result"].pk)
        return record_judgement(actor=WORKER, gate_result=one, judgement=Judgement(Verdict.PASSED, "It is right."))

    meeting = Meeting(monkeypatch, "validators.actions.gate_runs.record_judgement", judges)
    actions.give_up_gate_run(actor=WORKER, gate_run=gate_run, why="its worker is gone")
    assert meeting.outcome() == ["done"]
    gate_run.refresh_from_db()
    verdicts = set(gate_run.results.values_list("verdict", flat=True))
    assert (gate_run.state, verdicts) == ("finished", {Verdict.ERRORED, Verdict.SKIPPED})


def test_who_gives_it_up_as_somebody_ends_it_changes_nothing(developer: Actor, release: Release) -> None:
    gate_run, _ = actions.request_gate_run(actor=developer, release=release)
    actions.begin_gate_run(actor=WORKER, gate_run=gate_run)
    seen = GateRun.objects.get(pk=gate_run.pk)
    cancels = partial(actions.cancel_gate_run, actor=developer, gate_run=gate_run, reason="wrong release")
    gives_up = partial(actions.give_up_gate_run, actor=WORKER, gate_run=seen, why="its worker is gone")
    assert behind(cancels, gives_up) == "done"
    gate_run.refresh_from_db()
    assert (gate_run.state, gate_run.reason) == ("cancelled", "wrong release")
    assert set(gate_run.results.values_list("verdict", flat=True)) == {""}
