"""The gpu gate in a run: it judges what the agent read of the node's GPUs while load measured on that very server."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.canonical import canonical_bytes, sha256_of
from registry.models import Release, ServedModel
from serving.models import Node, NodeGpuReading, Replica, Server
from serving.ports import InferenceError
from serving.targets.actions import record_gpus
from serving.targets.agent.gpu_meter import GpuMeter
from serving.targets.agent.gpu_reader import GpuReader
from serving.targets.core.gpu import GpuReading, reading_of, with_servers
from serving.targets.queries import gpu_readings_of
from tests.support.fakes.nvml import replayed
from tests.support.worlds.factories import (
    make_blob,
    make_environment,
    make_manifest,
    make_release,
    make_replica,
    make_server,
)
from tests.support.worlds.gate_setup import POLICY, Stage, developer, model, release, stage, validated, verdicts  # noqa: F401
from validators.core.answered import answered_of
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates import MEASURES, GateContext, gpu
from validators.models import GateResult
from validators.queries.expiry import reusable

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent:local")
PID = 4242
GATES_BEFORE = dict(MEASURES)


def with_gate(
    model: ServedModel, *, vendor: str = "nvidia", gates: tuple[str, ...] = ("load", "gpu"), **section: Any
) -> Release:
    """A release whose gates are load and gpu, and which declares a GPU."""
    model.gate_policy = {"gates": list(gates), "load": POLICY["load"], "gpu": section}
    model.save()
    accelerator = {"vendor": vendor} if vendor == "none" else {"vendor": vendor, "memory_mib_min": 9000}
    manifest = canonical_bytes({**make_manifest(model.slug, make_blob()), "envelope": {"accelerator": accelerator}})
    return make_release(model, manifest=manifest.decode(), digest=sha256_of(manifest))


def watched(stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Has the agent read the recording around the load gate's requests: its first frame before them, its last after them."""

    def fate(replica: Replica) -> None:
        stage.come_up(replica)
        Server.objects.update(started_at=timezone.now() - timedelta(minutes=1))

    def load_gate(context: GateContext) -> Judgement:
        found = GATES_BEFORE["load"](context)
        answered, server = answered_of(found.evidence), Server.objects.latest("pk")
        assert answered
        began_s, ended_s = answered.began_s, answered.ended_s
        with replayed(name) as library:
            reader = GpuReader(now=lambda: (began_s - 1, began_s, ended_s, ended_s + 1)[library.at])
            for at in range(4):
                library.at = at
                reading = with_servers(reader.read(), {PID: server.pk})
                record_gpus(actor=AGENT, node=server.replica.node_id, reading=reading, is_kept=True)
        return found

    stage.fate = fate
    monkeypatch.setitem(MEASURES, "load", load_gate)


@pytest.mark.parametrize(
    ("name", "verdict", "of_run"),
    [("well", "passed", "passed"), ("throttled", "undecided", "undecided"), ("remap_failed", "errored", "errored"),
     ("xid_31", "failed", "failed")],
)  # fmt: skip
def test_it_judges_what_was_read_while_load_measured(
    stage: Stage,
    developer: Actor,
    model: ServedModel,
    name: str,
    verdict: str,
    of_run: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched(stage, monkeypatch, name)
    run = validated(developer, with_gate(model))
    found = run.results.get(gate="gpu")
    assert verdicts(run) == {"load": "passed", "gpu": verdict}, found.reason
    assert run.verdict == of_run, "what does not count, and what nobody can tell, blocks"
    assert found.evidence["windows"][0]["gate"] == "load" and found.evidence["gpus"][0]["uuid"] == "GPU-aaaa"


def test_where_no_gpu_is_declared_there_is_nothing_to_prove(stage: Stage, developer: Actor, model: ServedModel) -> None:
    run = validated(developer, with_gate(model, vendor="none"))
    assert verdicts(run) == {"load": "passed", "gpu": "passed"}
    assert run.results.get(gate="gpu").reason == "It declares no GPU: nothing to prove."


def test_where_nobody_read_the_gpu_it_is_undecided_and_says_why(
    stage: Stage, developer: Actor, model: ServedModel
) -> None:
    Node.objects.update(gpus=GpuReading(1.0, unknown="NVML Shared Library Not Found").as_json())
    run = validated(developer, with_gate(model))
    assert (verdicts(run)["gpu"], run.verdict) == ("undecided", "undecided")
    assert run.results.get(gate="gpu").reason == "The GPUs of its node were not read: NVML Shared Library Not Found."


@pytest.mark.parametrize(
    ("name", "verdict", "said"),
    [
        ("remap_failed", "errored", "The machine is at fault, not the release"),
        ("throttled", "undecided", "does not count, measure again"),
        ("well", "failed", ""),
    ],
)
def test_a_load_that_failed_on_a_bad_gpu_is_not_held_against_the_release(
    stage: Stage,
    developer: Actor,
    model: ServedModel,
    name: str,
    verdict: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched(stage, monkeypatch, name)
    made = with_gate(model)
    stage.behave(made, breaks=InferenceError("server_error", "it computes nothing"))
    run = validated(developer, made)
    load = run.results.get(gate="load")
    assert load.verdict == verdict and said in load.reason, load.reason
    assert ("gpu" in load.evidence) == bool(said)


def test_a_measurement_that_does_not_count_is_taken_again_with_what_watches_it(
    stage: Stage, developer: Actor, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched(stage, monkeypatch, "throttled")
    made = with_gate(model, gates=("contract", "load", "gpu"))
    first = validated(developer, made)
    assert verdicts(first) == {"contract": "passed", "load": "passed", "gpu": "undecided"}
    _, kept = reusable(made, parse_policy(made.model.gate_policy), None)
    assert [one["gate"] for one in kept if one["gate"] != "contract"] == []


def test_a_measurement_of_another_server_is_not_vouched_for(
    stage: Stage, developer: Actor, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was replaced after the load gate, and capacity measured the new one."""
    watched(stage, monkeypatch, "well")

    def capacity_gate(context: GateContext) -> Judgement:
        Server.objects.update(started_at=GateResult.objects.get(gate="capacity").started_at)
        return Judgement(Verdict.PASSED, "It holds.", {"began_s": time.time()})

    monkeypatch.setitem(MEASURES, "capacity", capacity_gate)
    run = validated(developer, with_gate(model, gates=("load", "capacity", "gpu")))
    found = run.results.get(gate="gpu")
    assert (found.verdict, found.reason) == (
        "undecided", "Nobody watched the GPUs for load, which measured another server."
    )  # fmt: skip


def test_the_meter_keeps_what_a_gate_may_ask_for_and_the_last_reading_always() -> None:
    tried = make_server(make_replica(environment=make_environment("staging", is_routed=False)), pid=PID)
    node = tried.replica.node_id
    with replayed("well"):
        meter = GpuMeter()
        assert meter.read(actor=AGENT, node=node) == 1.0
        (kept,) = gpu_readings_of(node, since_s=0.0)
        assert reading_of(Node.objects.get(pk=node).gpus) == kept and kept.gpus[0].processes
        Replica.objects.update(is_wanted=False, state="gone")
        Server.objects.update(ended_at=tried.started_at)
        assert meter.read(actor=AGENT, node=node) == 5.0
    assert NodeGpuReading.objects.count() == 1
    NodeGpuReading.objects.update(at=tried.started_at - timedelta(hours=2))
    record_gpus(actor=AGENT, node=node, reading=kept, is_kept=True)
    assert NodeGpuReading.objects.count() == 1, "for an hour"


def test_a_load_begins_when_its_gpu_was_read_on_that_very_server(
    stage: Stage, developer: Actor, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent at rest reads every five seconds only, and a small server is up sooner."""
    with replayed("well"):
        reading = GpuReader().read()
    Node.objects.update(gpus=reading.as_json())
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            record_gpus(actor=AGENT, node="local", reading=replace(reading, at_s=time.time()), is_kept=True)

    def load_gate(context: GateContext) -> Judgement:
        assert context.gpus().readings
        return Judgement(Verdict.PASSED, "It holds.", {"began_s": time.time()})

    monkeypatch.setattr(gpu, "time", SimpleNamespace(sleep=sleep, time=time.time))
    monkeypatch.setitem(MEASURES, "load", load_gate)
    made = with_gate(model, gates=("load", "gpu"))
    run = validated(developer, made)
    assert verdicts(run)["load"] == "passed" and len(waited) >= 3
