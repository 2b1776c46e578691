"""The capacity of a release over the API and on the command line: a plan, and the measured envelope, from signed reports alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client

from accounts.actions import actor_for, issue_token
from accounts.core.access import Actor
from registry.models import Release
from serving.models import ReplicaTarget
from serving.targets.actions.replicas import scale_release
from sluicegate.cli import capacity as command
from sluicegate.cli.capacity import lines, prices, write_into
from sluicegate.cli.errors import CommandError
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.core.test_capacity_plan import CAPACITY, COLD, LOAD
from tests.support.worlds.factories import make_model, make_release, make_replica, make_server, make_user
from tests.support.worlds.rollout_setup import production, report_for, serves
from validators.models import Report
from validators.queries import capacity
from validators.queries.capacity import proven_per_s
from validators.queries.gate_runs import is_authentic

pytestmark = pytest.mark.django_db
RELEASE = "/api/v1/models/sentiment/releases/r1"


def gates(**evidence: Any) -> list[dict[str, Any]]:
    return [{"gate": name, "verdict": "passed", "evidence": one} for name, one in evidence.items()]


@pytest.fixture
def release() -> Release:
    return make_release(make_model("sentiment"))


@pytest.fixture
def dev() -> Client:
    user = make_user("dev", is_admin=True)
    token = issue_token(user=user, name="test", actor=actor_for(user))
    return Client(headers={"Authorization": f"Bearer {token}"})


def plan(dev: Client, **forecast: Any) -> dict[str, Any]:
    answer = dev.post(f"{RELEASE}/capacity-plan", {"peak_per_s": 100, **forecast}, "application/json")
    assert answer.status_code == 200, answer.content
    found: dict[str, Any] = answer.json()
    return found


def test_a_plan_rests_on_the_newest_report_that_proves_a_capacity(dev: Client, release: Release) -> None:
    assert (plan(dev)["replicas"], plan(dev)["basis"]) == (None, None)
    report_for(release, gates=gates(load=LOAD))
    assert (plan(dev)["replicas"], plan(dev)["basis"]["gate"]) == (7, "load")  # 100 / 19.9, and one
    assert proven_per_s(release) is None  # what a load gate held is no limit
    report = report_for(release, gates=gates(capacity=CAPACITY, cold_start=COLD))
    assert proven_per_s(release) == 50.3
    report_for(release, gates=gates(load=LOAD))  # newer, and it tells less
    found = plan(dev, prices_per_hour={"NVIDIA L4": 1.2}, mean_per_s=50)
    assert (found["serving"], found["replicas"], found["in_rollout"], found["cost_per_hour"]) == (2, 3, 6, 3.6)
    assert found["basis"] == {
        "per_s": 50.3, "gate": "capacity", "hardware": "NVIDIA L4", "slo_ms": 60, "slo_quantile": 0.99, "confidence": 0.9,
        "report": report.digest, "cold_start_s": 3.5, "measured_at": found["basis"]["measured_at"],
    }  # fmt: skip
    told = lines(found)
    assert told[1] == "3 replicas: 2 for the load, 1 may be lost"
    assert told[-1].startswith(
        "Rests on at least 50.3 requests/s of one replica on NVIDIA L4 (99 % within 60 ms): the capacity gate"
    )


def test_a_forged_report_proves_nothing(dev: Client, release: Release) -> None:
    report_for(release, gates=gates(capacity=CAPACITY), forged={"signature": "AAAA"})
    assert plan(dev)["basis"] is None
    assert dev.get(f"{RELEASE}/measured-envelope").status_code == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"peak_per_s": 0},
        {"peak_per_s": "nan"},
        {"prices_per_hour": {"L4": "inf"}},
        {"burst_factor": 0.9},
        {"spare": -1},
        {"peaks": 1},
    ],
)
def test_a_forecast_that_cannot_be_is_refused(dev: Client, release: Release, wrong: dict[str, Any]) -> None:
    answer = dev.post(f"{RELEASE}/capacity-plan", {"peak_per_s": 100, **wrong}, "application/json")
    assert answer.status_code == 422


def test_the_measured_envelope_names_its_report(dev: Client, release: Release) -> None:
    answer = dev.get(f"{RELEASE}/measured-envelope")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_capacity_measured")
    report = report_for(release, gates=gates(capacity=CAPACITY))
    (entry,) = dev.get(f"{RELEASE}/measured-envelope").json()["performance"]
    assert (entry["source"], entry["evidence"], entry["throughput"]["value"]) == ("measured", report.digest, 50.3)


def test_what_the_server_held_stands_beside_what_was_declared(dev: Client, release: Release) -> None:
    report_for(release, gates=gates(resources={"peaks": {"memory_bytes": 300 * 2**20}}))
    found = dev.get(f"{RELEASE}/measured-envelope").json()
    assert found == {"host": {"memory_mib_min": 300}}
    report_for(release, gates=gates(capacity=CAPACITY))
    assert list(dev.get(f"{RELEASE}/measured-envelope").json()) == ["host", "performance"]


def test_a_signature_is_checked_once(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    report_for(release, gates=gates(resources={"peaks": {"memory_bytes": 300 * 2**20}}))
    report_for(release, gates=gates(capacity=CAPACITY))
    checked: list[str] = []

    def checks(report: Report) -> bool:
        checked.append(report.digest)
        return is_authentic(report)

    monkeypatch.setattr(capacity, "is_authentic", checks)
    assert set(capacity.measured_envelope(release)) == {"host", "performance"}
    assert len(checked) == len(set(checked)) == 2


def test_the_command_line_plans_and_prints_the_envelope(run: Run, release: Release) -> None:  # noqa: F811
    assert run("admin", "plan", "sentiment/r1", "--peak", "100")[0] == 1
    report_for(release, gates=gates(capacity=CAPACITY))
    code, found = run("admin", "plan", "sentiment/r1", "--peak", "100", "--growth", "0.5", "--price", "NVIDIA L4=1")
    assert (code, found["replicas"], found["cost_per_hour"]) == (0, 4, 4)
    code, found = run("admin", "release", "envelope", "sentiment/r1")
    assert (code, found["envelope"]["performance"][0]["source"]) == (0, "measured")


def test_the_command_line_writes_the_envelope_into_the_next_release(run: Run, release: Release, tmp_path: Path) -> None:  # noqa: F811
    document = tmp_path / "release.yaml"
    before = "model: sentiment  # ours\r\nenvelope:\r\n  # of the L4\r\n  host: {os: linux}\r\n  limits: {instances: 1}  # one\r\n"
    document.write_bytes(before.encode())
    assert run("admin", "release", "envelope", "sentiment/r1", "--into", str(tmp_path))[0] != 0  # nothing was measured
    assert document.read_bytes() == before.encode()
    report_for(release, gates=gates(capacity=CAPACITY, resources={"peaks": {"memory_bytes": 300 * 2**20}}))
    code, found = run("admin", "release", "envelope", "sentiment/r1", "--into", str(tmp_path))
    written = document.read_bytes()
    assert code == 0 and written.count(b"\n") == written.count(b"\r\n") and b"  # of the L4\r\n" in written
    assert b"model: sentiment  # ours\r\n" in written and b"  limits: {instances: 1}  # one" in written
    assert yaml.safe_load(written) == {
        "model": "sentiment",
        "envelope": {**found["envelope"], "limits": {"instances": 1}, "host": {"os": "linux", "memory_mib_min": 300}},
    }
    assert run("admin", "release", "envelope", "sentiment/r1", "--into", str(tmp_path / "none"))[0] == 3
    document.write_text("- a list\n")
    assert run("admin", "release", "envelope", "sentiment/r1", "--into", str(tmp_path))[0] == 3
    assert document.read_text() == "- a list\n"


@pytest.mark.parametrize(
    ("written", "name"),
    [("envelope: [host]\n", "envelope"), ("envelope: linux\n", "envelope"), ("envelope:\n  host: [linux]\n", "host")],
)
def test_an_envelope_that_is_no_mapping_is_refused_and_stays(tmp_path: Path, written: str, name: str) -> None:
    document = tmp_path / "release.yaml"
    document.write_text(written)
    with pytest.raises(CommandError, match=f"its `{name}` is not a mapping of fields"):
        write_into(tmp_path, {"host": {"memory_mib_min": 300}})
    assert document.read_text() == written


def test_prices_are_of_hardware_by_name() -> None:
    assert prices(["NVIDIA L4=0.7", "a=b=2"]) == {"NVIDIA L4": 0.7, "a=b": 2}
    for wrong in ("0.7", "=0.7", "L4=cheap"):
        with pytest.raises(CommandError):
            prices([wrong])


def test_the_command_line_takes_the_plans_number_within_its_bounds(run: Run, release: Release) -> None:  # noqa: F811
    asked = ("admin", "plan", "sentiment/r1", "--peak", "100", "--apply", "--environment", "production")
    code, found = run(*asked)
    assert code == 1 and "applied" not in found and not ReplicaTarget.objects.exists()  # nothing was measured
    report_for(release, gates=gates(capacity=CAPACITY, cold_start=COLD))
    code, _ = run(*asked)
    assert code != 0 and not ReplicaTarget.objects.exists()  # it runs nowhere
    serves(release)
    make_server(make_replica(release, production(), state="ready"))
    code, found = run(*asked)
    scale = ReplicaTarget.objects.get()
    assert (code, found["applied"]["wanted"], scale.replicas) == (0, 3, 3)
    assert scale.reason == "The plan for a peak of 100 requests/s."
    code, _ = run("admin", "plan", "sentiment/r1", "--peak", "9000", "--apply", "--reason", "too many")
    assert code != 0 and ReplicaTarget.objects.get().replicas == 3  # more than are ever placed


def test_a_plan_is_not_applied_over_what_somebody_said_meanwhile(
    run: Run,  # noqa: F811
    release: Release,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report_for(release, gates=gates(capacity=CAPACITY, cold_start=COLD))
    serves(release)
    make_server(make_replica(release, production(), state="ready"))
    asked = ("admin", "plan", "sentiment/r1", "--peak", "100", "--apply")
    assert run(*asked)[0] == 0 and run(*asked)[0] == 0 and ReplicaTarget.objects.get().replicas == 3

    def said_meanwhile(found: dict[str, Any]) -> list[str]:
        scale_release(
            actor=Actor.system("tests"), release=release, environment=production(), replicas=5, reason="A fair."
        )
        return lines(found)

    monkeypatch.setattr(command, "lines", said_meanwhile)
    assert run(*asked)[0] != 0
    assert (ReplicaTarget.objects.get().replicas, ReplicaTarget.objects.get().reason) == (5, "A fair.")
