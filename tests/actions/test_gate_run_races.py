"""A gate run that is given up while a worker that was taken for dead still writes of its gates."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from typing import Any

import pytest

from accounts.core.access import Actor
from registry.models import Release
from tests.gate_setup import developer, model, release, stage  # noqa: F401
from tests.lock_races import Meeting
from validators import actions
from validators.actions import record_judgement
from validators.core.verdict import Judgement, Verdict
from validators.models import GateResult

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
