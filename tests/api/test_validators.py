"""The REST views of golden sets, gate runs and reports, as CI uses them with curl."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from accounts.core.access import Role
from accounts.models import User
from registry.models import ServedModel
from tests.support.worlds.factories import make_environment, make_model, make_node, make_release, make_user
from tests.support.worlds.rollout_setup import TOLD, proven_on
from validators.actions import begin_gate_run, finish_gate_run, record_judgement
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution.run import ACTOR
from validators.models import GateRun

pytestmark = pytest.mark.django_db
Api = Callable[..., Any]


@pytest.fixture
def developer() -> User:
    make_environment("staging", is_routed=False)
    return make_user(team="search")


@pytest.fixture
def model(developer: User) -> ServedModel:
    return make_model("sentiment")


def lines(count: int = 3, field: str = "TEXT") -> bytes:
    return b"\n".join(json.dumps({"id": str(i), "inputs": {field: "x"}, "label": i % 2}).encode() for i in range(count))


def upload(client: Any, data: bytes, content_type: str = "application/jsonl") -> Any:
    return client.generic("POST", "/api/v1/models/sentiment/golden-sets", data, content_type=content_type)


def start(client: Any, model: ServedModel) -> tuple[GateRun, dict[str, Any]]:
    release = make_release(model)
    answer = client.post(f"/api/v1/models/{model.slug}/releases/{release.name}/gate-runs", {}, format="json")
    assert answer.status_code == 202, answer.json()
    return GateRun.objects.get(pk=answer.json()["id"]), answer.json()


def test_a_golden_set_is_uploaded_raw_and_creation_is_idempotent(api: Api, developer: User, model: ServedModel) -> None:
    client = api(developer)
    first = upload(client, lines())
    assert first.status_code == 201
    assert first.json()["items"] == 3
    again = upload(client, lines(), "text/plain")
    assert (again.status_code, again.json()["digest"]) == (200, first.json()["digest"])
    assert [found["digest"] for found in client.get("/api/v1/models/sentiment/golden-sets").json()["results"]] == [
        first.json()["digest"]
    ]


def test_a_golden_set_larger_than_a_form_is_read_too(api: Api, developer: User, model: ServedModel) -> None:
    big = b"\n".join(
        json.dumps({"id": str(i), "inputs": {"TEXT": "x" * 500}, "label": 0}).encode() for i in range(6000)
    )
    assert len(big) > 2_621_440
    assert upload(api(developer), big).json()["items"] == 6000


def test_a_bad_golden_set_is_a_problem_that_names_the_lines(api: Api, developer: User, model: ServedModel) -> None:
    answer = upload(api(developer), lines() + b"\n{oops\n")
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "golden_set_invalid"
    assert json.dumps(problem).count("line 4") >= 1


def test_a_gate_run_is_accepted_with_its_address(api: Api, developer: User, model: ServedModel) -> None:
    client = api(developer)
    gate_run, started = start(client, model)
    assert started["state"] == "queued"
    assert [gate["gate"] for gate in started["gates"]] == ["contract", "cold_start", "load"]
    shown = client.get(started["url"])
    assert shown.headers["ETag"] == '"1"'
    assert shown.json()["release"] == "r1"
    listed = client.get("/api/v1/models/sentiment/releases/r1/gate-runs").json()["results"]
    assert [found["id"] for found in listed] == [gate_run.pk]
    again = client.post("/api/v1/models/sentiment/releases/r1/gate-runs", {}, format="json")
    assert (again.status_code, again.json()["id"], again["Location"]) == (200, gate_run.pk, started["url"])


def test_progress_verdicts_and_the_report_are_shown(api: Api, developer: User, model: ServedModel) -> None:
    client = api(developer)
    gate_run, started = start(client, model)
    gate_run = begin_gate_run(actor=ACTOR, gate_run=gate_run)
    gate_run.results.filter(gate="contract").update(progress_done=1, progress_total=3)
    shown = client.get(started["url"]).json()
    assert (shown["gates"][0]["progress_done"], shown["gates"][0]["progress_total"]) == (1, 3)
    assert shown["report"] is None
    for run in gate_run.results.all():
        record_judgement(actor=ACTOR, gate_result=run, judgement=Judgement(Verdict.PASSED, "fine", {"n": 1}))
    report = finish_gate_run(actor=ACTOR, gate_run=gate_run, facts={})
    shown = client.get(started["url"]).json()
    assert (shown["state"], shown["verdict"], shown["report"]) == ("finished", "passed", report.digest)
    read = client.get(shown["links"]["report"]).json()
    assert read["is_authentic"] is True
    assert read["body"]["manifest_digest"] == read["manifest_digest"]
    assert read["body"]["gates"][0]["evidence"] == {"n": 1}


def test_a_report_tells_what_expired_and_a_run_takes_over_what_holds(
    api: Api, developer: User, model: ServedModel
) -> None:
    client, node, release = api(developer), make_node(facts=TOLD), make_release(model)
    report = proven_on(node, release, "contract", "cold_start", "load")
    address = f"/api/v1/reports/{report.digest}"
    assert client.get(address).json()["expired"] == []
    node.facts = {**TOLD, "cpu_count": 8}
    node.save()
    said = "CPU count of cold_start, load: measured on 16, and node local has 8"
    assert client.get(address).json()["expired"] == [
        {"fact": "cpu_count", "gates": ["cold_start", "load"], "message": said, "measured": "16", "serves": "8"}
    ]
    runs = f"/api/v1/models/sentiment/releases/{release.name}/gate-runs"
    gates = client.post(runs, {"only_expired": True}, format="json").json()["gates"]
    assert [(one["verdict"], one["reused_from"]) for one in gates] == [
        ("passed", report.digest), ("", None), ("", None),
    ]  # fmt: skip
    assert gates[0]["measured"]["cpu_count"] == "16" and gates[1]["measured"] == {}


def test_a_report_says_that_the_policy_of_today_cannot_be_read(api: Api, developer: User, model: ServedModel) -> None:
    report = proven_on(make_node(facts=TOLD), make_release(model), "contract")
    model.gate_policy = {"load": {"slo": 250}}
    model.save()
    (line,) = api(developer).get(f"/api/v1/reports/{report.digest}").json()["expired"]
    assert line["fact"] == "policy" and line["gates"] == ["contract"] and "load.slo" in line["message"]


def test_a_policy_is_explained_before_anything_is_run(api: Api, developer: User, model: ServedModel) -> None:
    client, address = api(developer), "/api/v1/models/sentiment/gate-policy:explain"
    digest = upload(client, lines(40)).json()["digest"]
    model.gate_policy = {"golden": {"set": digest}}
    model.save()
    told = client.get(address).json()
    demands = {one["field"]: one for one in told["demands"]}
    assert demands["golden.set"]["demands"].startswith("Of 40 rows:")
    assert demands["load.slo_ms"]["demands"].startswith("99 % within 250 ms")  # the model's objective
    assert told["policy_digest"] == parse_policy(model.gate_policy, model.objectives).digest
    model.gate_policy = {"load": {"slo": 250}}
    model.save()
    assert client.get(address).status_code == 422


def test_a_wait_ends_with_the_gate_run(api: Api, developer: User, model: ServedModel) -> None:
    client = api(developer)
    gate_run, told = start(client, model)
    assert client.get(f"{told['url']}/wait?timeout_s=0").status_code == 202
    client.post(f"{told['url']}/cancel", {"reason": "enough"}, format="json", HTTP_IF_MATCH=f'"{gate_run.version}"')
    ended = client.get(f"{told['url']}/wait")
    assert (ended.status_code, ended.json()["state"]) == (200, "cancelled")


@pytest.mark.takes("gate run: queued → cancelled")
def test_a_gate_run_is_cancelled_at_the_version_that_was_read(api: Api, developer: User, model: ServedModel) -> None:
    client = api(developer)
    _, started = start(client, model)
    cancel = f"{started['url']}/cancel"
    assert client.post(cancel, {"reason": "no"}, format="json").status_code == 428
    assert client.post(cancel, {"reason": "no"}, format="json", HTTP_IF_MATCH='"7"').status_code == 412
    done = client.post(cancel, {"reason": "no"}, format="json", HTTP_IF_MATCH='"1"')
    assert (done.status_code, done.json()["state"], done.json()["reason"]) == (200, "cancelled", "no")
    assert client.post(cancel, {}, format="json", HTTP_IF_MATCH='"2"').status_code == 409


def test_a_policy_that_cannot_be_read_names_field_and_fix(api: Api, developer: User, model: ServedModel) -> None:
    model.gate_policy = {"load": {"slo": 250}}
    model.save()
    release = make_release(model)
    answer = api(developer).post(f"/api/v1/models/sentiment/releases/{release.name}/gate-runs", {}, format="json")
    assert answer.status_code == 422
    assert "load.slo" in json.dumps(answer.json())
    assert not GateRun.objects.exists()


@pytest.mark.parametrize(
    "body",
    [
        *({"enviroment": "staging"}, {"environment": "moon"}, {"environment": None}, {"environment": {"a": 1}}),
        *({"environment": "a\x00b"}, {"environment": "\ud800"}, [], [1], "staging"),
    ],
)
def test_a_wrong_body_starts_nothing(api: Api, developer: User, model: ServedModel, body: Any) -> None:
    address = f"/api/v1/models/sentiment/releases/{make_release(model).name}/gate-runs"
    answer = api(developer).post(address, json.dumps(body), content_type="application/json")
    assert answer.status_code in (404, 422)
    assert not GateRun.objects.exists()


def test_strangers_see_nothing_and_nobody_less(api: Api, developer: User, model: ServedModel) -> None:
    client = api(developer)
    gate_run, started = start(client, model)
    stranger = api(make_user(team="others", role=Role.RELEASE_MANAGER))
    of_model = "/api/v1/models/sentiment"
    paths = [f"{of_model}/{part}" for part in ("golden-sets", "releases/r1/gate-runs")]
    paths += [started["url"], "/api/v1/reports/sha256:0"]
    for path in paths:
        assert stranger.get(path).status_code == 404, path
        assert api().get(path).status_code == 401, path
    assert upload(stranger, lines()).status_code == 404
    assert stranger.post(f"{started['url']}/cancel", {}, format="json", HTTP_IF_MATCH="1").status_code == 404
    gate_run.refresh_from_db()
    assert gate_run.state == "queued"
