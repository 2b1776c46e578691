"""The resources gate in a run: it judges what the agent read while the load gate asked that very server."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

import validators.execution.run
from accounts.core.access import Actor
from registry.models import Release, ServedModel
from serving.models import Replica, Server, ServerReading
from tests.support.worlds.factories import make_release
from tests.support.worlds.gate_setup import POLICY, Stage, developer, model, release, stage, validated, verdicts  # noqa: F401
from validators.core.verdict import Judgement
from validators.execution.gates import GateContext, run_gate

pytestmark = pytest.mark.django_db
MIB = 2**20


def with_gate(model: ServedModel, **over: Any) -> Release:
    """A release whose gates are load and resources; one that is not proven is not asked any more."""
    section = {"min_requests": 20, "max_soak_s": 0, **over}
    model.gate_policy = {"gates": ["load", "resources"], "load": POLICY["load"], "resources": section}
    model.save()
    return make_release(model)


def read(stage: Stage, *, each: int) -> None:
    """Has the agent read each server that comes up, for 20 s to come: `each` more bytes from one reading to the next."""

    def fate(replica: Replica) -> None:
        stage.come_up(replica)
        server = Server.objects.latest("pk")
        ServerReading.objects.bulk_create(
            ServerReading(
                server=server, at=server.started_at + timedelta(seconds=at / 50), memory_bytes=100 * MIB,
                own_bytes=50 * MIB + each * at, shared_bytes=MIB, cpu_s=at / 100, open_files=9,
            )
            for at in range(1000)
        )  # fmt: skip

    stage.fate = fate


@pytest.mark.parametrize(("each", "verdict"), [(0, "passed"), (MIB, "failed")])
def test_it_judges_what_was_read_under_the_load_gates_requests(
    stage: Stage, developer: Actor, model: ServedModel, each: int, verdict: str
) -> None:
    read(stage, each=each)
    run = validated(developer, with_gate(model))
    assert verdicts(run) == {"load": "passed", "resources": verdict}, run.results.get(gate="resources").reason
    load, found = (run.results.get(gate=gate).evidence for gate in ("load", "resources"))
    assert found["requests"] == sum(load["answered"]["per_s"]) > 200
    assert found["readings"] >= 40 and found["peaks"]["memory_bytes"] == 100 * MIB
    assert run.verdict == verdict and ("server" in found) == (verdict == "failed")


@pytest.mark.parametrize(("undecided", "verdict"), [("block", "undecided"), ("allow", "passed")])
def test_where_nobody_reads_the_server_it_is_undecided(
    stage: Stage, developer: Actor, model: ServedModel, undecided: str, verdict: str
) -> None:
    run = validated(developer, with_gate(model, undecided=undecided))
    assert verdicts(run) == {"load": "passed", "resources": "undecided"}
    assert run.results.get(gate="resources").reason == "What it uses is unknown: its processes were not looked at."
    assert run.verdict == verdict


def test_what_another_server_was_asked_does_not_count(
    stage: Stage, developer: Actor, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was replaced after the load gate."""
    read(stage, each=0)

    def then_replaced(name: str, context: GateContext) -> Judgement:
        found = run_gate(name, context)
        Server.objects.update(started_at=timezone.now() + timedelta(hours=1))
        return found

    monkeypatch.setattr(validators.execution.run, "run_gate", then_replaced)
    found = validated(developer, with_gate(model)).results.get(gate="resources")
    assert (found.verdict, found.reason) == ("undecided", "What it uses is unknown: it was under no load.")
