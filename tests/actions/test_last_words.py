"""What is kept of a server that failed a gate: bounded, in the report, and waited for where its agent has yet to note it."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest

import validators.execution.last_words
import validators.execution.staging
from accounts.core.access import Actor
from registry.models import Release
from serving.models import Replica, Server, ServerReading
from serving.ports import InferenceError
from serving.targets.actions import end_server, keep_log, record_exit, record_readings
from serving.targets.core.use import Reading, Use
from serving.targets.local_trial import LocalServer
from serving.targets.queries import readings_of
from tests.support.worlds.factories import make_replica, make_server
from tests.support.worlds.gate_setup import Stage, developer, model, release, stage, validated  # noqa: F401
from validators.execution.last_words import MOST_LOG_BYTES, MOST_REASON_BYTES, MOST_STATISTICS_BYTES, of_server

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("agent:local")
LOG = "".join(f"line {at} ünd so weiter\n" for at in range(5000))


def last_server() -> Server:
    return Server.objects.latest("pk")


def noted(server: Server, *, exit_code: int | None = -9) -> None:
    """What the node's agent writes down of it."""
    keep_log(actor=SYSTEM, server=server, text=LOG)
    record_readings(actor=SYSTEM, readings={server.pk: Reading(time.time(), Use(5 << 20, open_files=7))})
    if exit_code is not None:
        record_exit(actor=SYSTEM, server=server, exit_code=exit_code)


def evidence_in_report(actor: Actor, release: Release, gate: str) -> dict[str, Any]:
    body = json.loads(validated(actor, release).report.body)
    return next(one["evidence"] for one in body["gates"] if one["gate"] == gate)


def test_a_lost_server_is_waited_for_and_its_end_goes_into_the_report(
    stage: Stage, developer: Actor, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.behave(release, breaks=InferenceError("unreachable", "failed to connect"))
    monkeypatch.setattr("tests.support.fakes.ports.FakeInferenceServer.is_live", lambda self, **_: False)
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            noted(last_server())

    monkeypatch.setattr(validators.execution.last_words, "sleep", sleep)
    found = evidence_in_report(developer, release, "contract")["server"]
    assert len(looks) == 3
    assert (found["exit_code"], found["signal"]) == (-9, "SIGKILL")
    assert found["last_reading"]["memory_bytes"] == 5 << 20 and found["last_reading"]["open_files"] == 7
    assert found["log"].endswith("line 4999 ünd so weiter\n")
    assert MOST_LOG_BYTES - 8 <= len(found["log"].encode()) <= MOST_LOG_BYTES


def test_nobody_is_waited_for_longer_than_some_seconds(
    stage: Stage, developer: Actor, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.behave(release, breaks=InferenceError("unreachable", "failed to connect"))
    monkeypatch.setattr("tests.support.fakes.ports.FakeInferenceServer.is_live", lambda self, **_: False)
    waited: list[float] = []
    monkeypatch.setattr(validators.execution.last_words, "sleep", waited.append)
    found = evidence_in_report(developer, release, "contract")["server"]
    assert sum(waited) == 5.0
    assert found["exit_code"] is None and found["log"] is None and found["last_reading"] is None


def test_of_a_server_that_passes_nothing_is_kept(stage: Stage, developer: Actor, release: Release) -> None:
    body = json.loads(validated(developer, release).report.body)
    assert body["verdict"] == "passed" and all("server" not in one["evidence"] for one in body["gates"])


def test_a_server_that_lives_is_asked_for_its_statistics(
    stage: Stage, developer: Actor, model: Any, release: Release
) -> None:
    model.gate_policy = {**model.gate_policy, "gates": ["cold_start", "contract"], "cold_start": {"max_s": 0.001}}
    model.save()
    body = json.loads(validated(developer, release).report.body)
    cold, skipped = (one["evidence"] for one in body["gates"])
    assert isinstance(cold["server"]["statistics"], dict) and "server" not in skipped
    assert len(json.dumps(cold["server"]["statistics"]).encode()) <= MOST_STATISTICS_BYTES


def test_statistics_beyond_their_bound_are_not_kept(
    stage: Stage, developer: Actor, model: Any, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.gate_policy = {**model.gate_policy, "gates": ["cold_start"], "cold_start": {"max_s": 0.001}}
    model.save()
    monkeypatch.setattr(
        "tests.support.fakes.ports.FakeInferenceServer.statistics",
        lambda self, model: {"x": "y" * MOST_STATISTICS_BYTES},
    )
    assert evidence_in_report(developer, release, "cold_start")["server"]["statistics"] is None


def test_a_release_that_never_came_up_leaves_what_its_last_server_said(
    stage: Stage, developer: Actor, release: Release
) -> None:
    def fate(replica: Replica) -> None:
        stage.come_up(replica)
        noted(last_server(), exit_code=3)
        end_server(actor=SYSTEM, server=last_server(), reason="warmup_failed: " + "x" * 9000)
        stage.fail("warmup_failed: the server ended")(replica)

    stage.fate = fate
    found = evidence_in_report(developer, release, "cold_start")["server"]
    assert (found["exit_code"], found["signal"]) == (3, None)
    assert "line 4999" in found["log"] and len(found["ended"].encode()) <= MOST_REASON_BYTES


def test_a_signal_without_a_name_is_told_by_its_number(stage: Stage, release: Release) -> None:
    server = LocalServer(make_server(make_replica(release)))
    for exit_code, known in ((-64, ("SIGRTMAX", "signal 64")), (-99, ("signal 99",))):
        record_exit(actor=SYSTEM, server=server.row, exit_code=exit_code)
        assert of_server(server)["signal"] in known


def test_readings_are_kept_for_an_hour_and_read_by_their_time(stage: Stage, release: Release) -> None:
    server, now = make_server(make_replica(release)), time.time()
    use = Use(1, 2, 3, 4.5, 6, 7)
    for at_s in (now - 3700, now - 10, now):
        record_readings(actor=SYSTEM, readings={server.pk: Reading(at_s, use)})
    assert ServerReading.objects.count() == 2
    (one,) = readings_of(server, since_s=now - 11, until_s=now - 5)
    assert one.use == use and one.at_s == pytest.approx(now - 10, abs=0.001)


def test_so_does_one_that_was_still_coming_up(
    stage: Stage, developer: Actor, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fate(replica: Replica) -> None:
        Replica.objects.filter(pk=replica.pk).update(state="loading")
        noted(make_server(replica), exit_code=None)

    stage.fate = fate
    monkeypatch.setattr(
        validators.execution.staging, "monotonic", itertools.count(step=30.0).__next__
    )  # one look is 30 s
    found = evidence_in_report(developer, release, "cold_start")["server"]
    assert found["log"].endswith("line 4999 ünd so weiter\n") and found["exit_code"] is None
