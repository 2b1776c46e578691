"""The judge alone over REST and the command line; the bodies are those that Argo Rollouts and Flagger document."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from accounts import actions as accounts
from accounts.core.access import Actor, scope_from
from rollouts.actions import judgement_windows
from rollouts.models import JudgementWindow
from serving.ports import CounterQuery, CounterSample, MetricsError
from sluicegate.cli import exits
from tests.api.cli_world import Run, run, tokens  # noqa: F401 - fixtures
from tests.api.problems import assert_problem
from tests.api.registry_calls import send_json

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[2]
AT = "/judgements"


def points(share: float, looks: int = 30, mean: int = 100) -> list[list[float]]:
    """A series of a steady share that ends now."""
    began = time.time() - 15 * looks
    return [[began + 15 * n, round(share * mean) * n, mean * n] for n in range(looks + 1)]


def both(candidate: float, stable: float) -> dict[str, Any]:
    beside = points(stable)
    stamps = [one[0] for one in beside]
    return {
        "candidate": {"points": [[at, *one[1:]] for at, one in zip(stamps, points(candidate), strict=True)]},
        "stable": {"points": beside},
    }


class Past:
    """A CounterHistory of steady counters by query; `asked` are the queries of the last call."""

    def __init__(self, shares: dict[str, float]) -> None:
        self.shares, self.asked, self.error = shares, dict[str, str](), MetricsError("timeout", "no answer in time")
        self.fails = False

    def history(
        self, queries: list[CounterQuery], *, since: int, step_s: int, timeout_s: float
    ) -> list[tuple[float, dict[str, CounterSample | MetricsError]]]:
        if self.fails:
            raise self.error
        self.asked = {one.name: one.query for one in queries}
        rows = []
        for n in range(40):
            samples: dict[str, CounterSample | MetricsError] = {}
            for one in queries:
                arm, kind = one.name.split()
                share = self.shares[arm] if kind == "bad" else 1.0
                samples[one.name] = CounterSample(100.0 * n * share, 0.0, frozenset({one.name}))
            rows.append((float(since + n * step_s), samples))
        return rows


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> Past:
    found = Past({"candidate": 0.2, "stable": 0.01})
    monkeypatch.setattr("rollouts.api.judgements.counter_history", lambda: found)
    return found


def test_series_are_judged_with_evidence(dev: Any) -> None:
    found = send_json(dev, "post", AT, both(0.2, 0.01)).json()
    assert (found["verdict"], found["code"]) == ("failed", "worse_than_stable")
    assert found["evidence"]["log_e_worse"] >= found["evidence"]["bar_fail"]
    assert found["stable"]["total"] >= found["stable"]["bad"] > 0 and found["candidate"]["share"] == pytest.approx(0.2)
    sound = send_json(dev, "post", AT, both(0.01, 0.01)).json()
    assert (sound["verdict"], sound["requests_to_go"]) == ("passed", 0)
    alone = send_json(dev, "post", AT, {"candidate": {"points": points(0.2)}, "max_frac": 0.01}).json()
    assert (alone["code"], alone["stable"]) == ("objective_breached", None)
    assert not JudgementWindow.objects.exists()


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"stable": {"points": points(0.01, 29)}}, "stable", "same times"),
        ({"candidate": {"points": [[1, 1, 10], [2, 0, 20]]}}, "candidate.points", "fall at point 1"),
        ({"candidate": {"points": [[1, 1, 10], [2, 30, 20]]}}, "candidate.points", "30 bad of 20"),
        ({"candidate": {"points": [[1, 1, 10], [4e9, 1, 20]]}}, "candidate.points", "in the future"),
        ({"candidate": {"bad_query": "a"}}, "candidate", "either points, or"),
        ({"candidate": {"bad_query": "a", "total_query": "b"}}, "stable", "of both arms"),
        ({"start": "2026-01-01T00:00:00Z"}, "start", "neither with points"),
        ({"address": "http://elsewhere"}, "address", "no such field"),
    ],
)
def test_a_bad_body_is_a_422_that_names_the_field(dev: Any, change: dict[str, Any], field: str, said: str) -> None:
    body = assert_problem(send_json(dev, "post", AT, {**both(0.01, 0.01), **change}), 422, "invalid")
    text = json.dumps(body["errors"])
    assert field.partition(".")[0] in text and said in text


def test_one_arm_needs_an_objective_and_numbers_are_numbers(dev: Any) -> None:
    assert_problem(send_json(dev, "post", AT, {"candidate": {"points": points(0.2)}}), 422, "invalid")
    raw = '{"candidate": {"points": [[1, NaN, 10], [2, 1, 20]]}, "max_frac": 0.01}'
    assert dev.post("/api/v1/judgements", raw, content_type="application/json").status_code in {400, 422}


def queries(**more: Any) -> dict[str, Any]:
    arm = {"bad_query": "sum(bad)", "total_query": "sum(total)"}
    return {"candidate": arm, "stable": arm, **more}


def test_a_key_starts_one_window_for_one_question(dev: Any, past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    first = send_json(dev, "post", AT, queries(key="checkout/2")).json()
    assert first["verdict"] == "failed"
    window = JudgementWindow.objects.get()
    again = send_json(dev, "post", AT, queries(key="checkout/2")).json()
    assert again["since"] == first["since"] and JudgementWindow.objects.get() == window
    assert_problem(send_json(dev, "post", AT, queries(key="checkout/2", alpha_fail=0.2)), 409, "other_question")
    assert_problem(send_json(dev, "post", AT, queries()), 422, "invalid")
    assert_problem(send_json(dev, "post", AT, queries(start="2020-01-01T00:00:00Z")), 422, "invalid")
    monkeypatch.setattr(judgement_windows, "MOST_WINDOWS", 1)
    assert_problem(send_json(dev, "post", AT, queries(key="checkout/3")), 422, "too_many_windows")
    JudgementWindow.objects.update(began_at=window.began_at - judgement_windows.KEPT_FOR)
    assert send_json(dev, "post", AT, queries(key="checkout/3")).status_code == 200
    assert JudgementWindow.objects.get().key == "checkout/3"


def test_what_cannot_be_read_is_inconclusive(dev: Any, past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    past.fails = True
    found = send_json(dev, "post", AT, queries(key="k")).json()
    assert (found["verdict"], found["code"]) == ("inconclusive", "no_data") and "no answer in time" in found["sentence"]
    monkeypatch.setattr("rollouts.api.judgements.counter_history", lambda: None)
    assert "PROMETHEUS_URL" in send_json(dev, "post", AT, queries(key="k")).json()["sentence"]


def filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\{\{\s*args\.([\w-]+)\s*\}\}", lambda found: values[found[1]], text)


def test_argo_rollouts_own_request_and_conditions(client: Any, tokens: dict[str, str], past: Past) -> None:  # noqa: F811
    """The request that its web metric makes of the example; `result` is what its jsonPath takes."""
    template = yaml.safe_load((ROOT / "examples/argo-rollouts/analysis-template.yaml").read_text())
    metric = template["spec"]["metrics"][0]
    web = metric["provider"]["web"]
    values = {"service": "shop", "canary-hash": "6d8f", "stable-hash": "77c4", "token": tokens["robot"]}
    headers = {f"HTTP_{one['key'].upper()}": filled(one["value"], values) for one in web["headers"]}
    body = filled(json.dumps(web["jsonBody"]), values)
    assert (web["method"], web["jsonPath"]) == ("POST", "{$.verdict}")
    for share, result in ((0.2, "failed"), (0.01, "passed")):
        past.shares["candidate"] = share
        answer = client.post("/api/v1/judgements", body, content_type="application/json", **headers)
        assert answer.status_code == 200 and answer.json()["verdict"] == result
        assert metric["successCondition"] == 'result == "passed"'
        assert metric["failureCondition"] == 'result == "failed"'
    assert 'pod_hash="6d8f"' in past.asked["candidate bad"] and 'pod_hash="77c4"' in past.asked["stable total"]


def flagger_body(metadata: dict[str, str], **more: Any) -> str:
    """As in Flagger's documents, usage/webhooks."""
    body = {"name": "podinfo", "namespace": "test", "phase": "Progressing", "checksum": "85d557f47b"}
    return json.dumps({**body, "metadata": metadata, **more})


def test_flaggers_own_request_passes_by_its_status(client: Any, tokens: dict[str, str], past: Past) -> None:  # noqa: F811
    canary = yaml.safe_load((ROOT / "examples/flagger/webhook.yaml").read_text())
    worse, sound = (one["metadata"] for one in canary["spec"]["analysis"]["webhooks"])
    address = canary["spec"]["analysis"]["webhooks"][0]["url"]
    at = address.partition("sluicegate.example.com")[2]
    basic = base64.b64encode(f"flagger:{tokens['robot']}".encode()).decode()

    def asked(metadata: dict[str, str], **more: Any) -> Any:
        body = flagger_body(metadata, **more)
        return client.post(at, body, content_type="application/json", HTTP_AUTHORIZATION=f"Basic {basic}")

    body = assert_problem(asked(worse), 409, "judgement_not_passed")
    assert "worse beyond doubt" in body["detail"] and body["judgement"]["verdict"] == "failed"
    assert JudgementWindow.objects.get().key == "test/podinfo/85d557f47b"
    past.fails = True
    assert asked(worse).status_code == 200 and asked(sound).status_code == 409
    past.fails, past.shares["candidate"] = False, 0.01
    assert asked(sound).json()["verdict"] == "passed" and asked(worse, buildId="7").status_code == 200
    assert asked({**worse, "cmd": "x"}).status_code == 422 and asked({**worse, "step_s": "soon"}).status_code == 422
    assert asked({**worse, "pass_on": "luck"}).status_code == 422
    assert client.post(at, flagger_body(worse), content_type="application/json").status_code == 401
    wrong = client.post(at, flagger_body(worse), content_type="application/json", HTTP_AUTHORIZATION="Basic ???")
    assert wrong.status_code == 401


def test_a_token_that_may_only_judge_judges_and_a_viewer_does_not(client: Any, api: Callable[..., Any]) -> None:
    system = Actor.system("tests")
    accounts.create_team(actor=system, slug="demo", title="Demo")
    secrets = {}
    for name, role, scope in (("argo", "ci", ["judgement.make"]), ("eve", "viewer", None)):
        user = accounts.create_user(actor=system, username=name)
        accounts.grant_role(actor=system, username=name, team="demo", role=role)
        secrets[name] = accounts.issue_token(user=user, name="tests", actor=system, scope=scope_from(scope, None))

    def status(name: str) -> int:
        headers = {"HTTP_AUTHORIZATION": f"Bearer {secrets[name]}"}
        answer = client.post(
            "/api/v1/judgements", json.dumps(both(0.2, 0.01)), content_type="application/json", **headers
        )
        return int(answer.status_code)

    assert (status("argo"), status("eve")) == (200, 403)


@pytest.mark.parametrize(("share", "code"), [(0.2, exits.FAILED), (0.01, exits.OK)])
def test_the_command_judges_files(run: Run, tmp_path: Path, share: float, code: int) -> None:  # noqa: F811
    body = both(share, 0.01)
    files = []
    for arm in ("candidate", "stable"):
        path = tmp_path / f"{arm}.json"
        path.write_text(json.dumps(body[arm]["points"]))
        files += [f"--{arm}", str(path)]
    assert run("robot", "judge", *files)[0] == code
    assert run("robot", "judge", "--candidate", str(tmp_path / "none.json"), "--max-frac", "0.1")[0] == exits.REFUSED


def test_the_command_judges_queries_and_is_inconclusive(run: Run, past: Past) -> None:  # noqa: F811
    past.fails = True
    code, found = run("robot", "judge", "--candidate", "sum(a)", "sum(b)", "--max-frac", "0.1", "--key", "k")
    assert (code, found["verdict"]) == (exits.UNDER_WAY, "inconclusive")
