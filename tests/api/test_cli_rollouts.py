"""`sluicegate rollout …` against the real API, in process: what it prints and which exit code it gives."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core import signals
from django.core.handlers.wsgi import WSGIHandler

from accounts.actions import issue_token
from accounts.core.access import Actor, Role
from registry.models import Release, ServedModel
from rollouts.models import Rollout
from sluicegate.cli import exits, session
from sluicegate.cli.main import main
from sluicegate.client import Client
from tests.support.worlds.factories import make_environment, make_model, make_release, make_user
from tests.support.worlds.rollout_setup import OBJECTIVES, promoted, serves

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # whole commands, one request after another
#: run("mia", "rollout", "list") → (exit code, what it printed: lines of people's text, or with --json the document)
Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Any, tmp_path: Path) -> Run:
    settings.STATIC_ROOT = str(tmp_path)
    monkeypatch.setenv("SLUICEGATE_URL", "http://testserver")
    # the test's own connection must outlive each request; Django's test client does the same
    monkeypatch.setattr(signals.request_started, "receivers", [])
    monkeypatch.setattr(signals.request_finished, "receivers", [])
    monkeypatch.setattr(session, "Client", functools.partial(Client, transport=httpx.WSGITransport(app=WSGIHandler())))
    tokens = {}
    for name, role in (
        ("robot", Role.CI),
        ("ana", Role.MODEL_TEAM),
        ("mia", Role.RELEASE_MANAGER),
        ("max", Role.RELEASE_MANAGER),
    ):
        user = make_user(name, team="search", role=role)
        tokens[name] = issue_token(user=user, name="tests", actor=Actor.system("tests"))

    def command(user: str, *words: str) -> tuple[int, Any]:
        monkeypatch.setenv("SLUICEGATE_TOKEN", tokens[user])
        capsys.readouterr()
        code = main(list(words))
        printed = capsys.readouterr()
        said = printed.out or printed.err
        return code, json.loads(printed.out) if "--json" in words and printed.out else said

    return command


@pytest.fixture
def sentiment() -> ServedModel:
    """r1 serves production; r2 and r3 are there."""
    make_environment("production", needs_passed_report=False)
    model = make_model("sentiment", objectives=OBJECTIVES)
    serves(make_release(model))
    make_release(model)
    make_release(model)
    return model


def test_a_dry_run_tells_what_would_happen_and_creates_nothing(run: Run, sentiment: ServedModel) -> None:
    code, said = run("robot", "rollout", "start", "sentiment/r2", "--dry-run")
    assert code == exits.OK
    lines = said.splitlines()
    assert lines[0].startswith("sentiment/r2 over r1 in production, policy standard ")
    assert lines[1] == "Traffic: unknown."
    assert lines[3].split() == ["stage", "weight", "at", "least", "samples", "deadline", "expected", "approvals"]
    assert lines[4].split()[:3] == ["start", "5", "%"]
    assert any(line.startswith("! warning no_capacity_for_rollback: r1") for line in lines)
    assert lines[-1] == "Nothing was created." and not Rollout.objects.exists()
    code, found = run("ana", "rollout", "start", "sentiment/r2", "--dry-run", "--preset", "careful", "--json")
    assert code == exits.OK and found["policy"]["preset"] == "careful"


def test_a_dry_run_of_what_would_be_refused_exits_like_the_refusal(run: Run, sentiment: ServedModel) -> None:
    code, said = run("robot", "rollout", "start", "sentiment/r2", "--dry-run", "--preset", "fast")
    assert code == exits.REFUSED
    assert "✗ refused policy_not_yours" in said and said.strip().endswith("and a start would be refused.")


def test_a_policy_file_with_bare_dates_is_read(run: Run, sentiment: ServedModel, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("preset: fast\nfreeze_windows:\n  - {first_day: 2020-12-20, last_day: 2020-12-31, why: Closing}\n")
    code, started = run(
        "ana", "rollout", "start", "sentiment/r2", "--policy", str(file), "--reason", "A fix.", "--json"
    )
    assert code == exits.OK and started["policy"]["freeze_windows"][0]["first_day"] == "2020-12-20"
    assert started["decisions"][-1]["reason"] == "A fix."
    code, told = run("ana", "rollout", "start", "sentiment/r3", "--policy", str(file), "--preset", "fast")
    assert code == exits.REFUSED and "not allowed with" in told


def test_approvals_are_shown_with_what_is_missing_and_who_may(run: Run, sentiment: ServedModel) -> None:
    ServedModel.objects.update(rollout_policy={"approvals": {"start": 2, "step 2": 1}})
    rollout = run("ana", "rollout", "start", "sentiment/r2", "--json")[1]
    pk = str(rollout["id"])
    code, said = run("mia", "rollout", "approve", pk, "--reason", "Read it.")
    assert code == exits.OK and "start: 1 of 2 approvals by mia" in said
    assert "next to approve: start; those who may: max, mia" in said
    assert "the approval of start by mia counts until" in said
    code, said = run("mia", "rollout", "approve", pk)
    assert code == exits.REFUSED and "takes other people" in said
    assert run("mia", "rollout", "approve", pk, "--stage", "step 2")[0] == exits.OK
    assert run("max", "rollout", "approve", pk, "--json")[1]["state"] == "preparing"
    code, said = run("mia", "rollout", "approve", pk, "--stage", "step 9")
    assert code == exits.REFUSED and said.count("there is no stage 'step 9'. Name one of start") == 1


def test_promote_and_supersede(run: Run, sentiment: ServedModel) -> None:
    first = str(run("robot", "rollout", "start", "sentiment/r2", "--json")[1]["id"])
    supersede = ("api", "POST", f"/rollouts/{first}/supersede", "candidate=r3", "reason=Newer.")
    code, said = run("robot", *supersede)
    assert code == exits.REFUSED and "Next: Add --if-match VERSION" in said
    version = str(Rollout.objects.get().version)
    code, said = run("robot", *supersede, "--if-match", version)
    second = Rollout.objects.get(supersedes_id=first)
    assert code == exits.OK and f'"id": {second.pk}' in said
    Rollout.objects.filter(pk=second.pk).update(state="shifting", step_index=0, weight_bp=500)
    code, said = run("ana", "rollout", "promote", str(second.pk), "--reason", "Hotfix.")
    assert code == exits.REFUSED and "release_manager" in said
    code, view = run("mia", "rollout", "promote", str(second.pk), "--reason", "Hotfix.", "--json")
    assert code == exits.OK and (view["state"], view["promote_now"]) == ("baking", True)
    version = str(Rollout.objects.get(pk=second.pk).version)
    back = (f"/rollouts/{second.pk}/supersede", "candidate=r2", "reason=Back.", "--if-match", version)
    code, said = run("robot", "api", "POST", *back)
    assert code == exits.REFUSED and "Abort it first" in said
    code, said = run("robot", "api", "GET", f"/rollouts/{second.pk}/replay")
    assert code == exits.REFUSED and "nothing to judge again" in said
    code, said = run("robot", "api", "GET", f"/rollouts/{second.pk}/replay", "preset=fats")
    assert code == exits.REFUSED and "Was fast meant?" in said


def test_the_undo_window_after_a_promotion(run: Run) -> None:
    rollout, stable = promoted()
    model = rollout.model.slug
    code, said = run("robot", "rollout", "status", str(rollout.pk))
    assert code == exits.OK and f"one step goes back to {stable.name}: sluicegate rollback {model}" in said
    code, said = run("robot", "rollback", model, "--reason", "Conversion fell.")
    assert code == exits.OK
    assert said.strip() == f"{model} in production: robot went back to {stable.name}, still warm: Conversion fell."
    code, said = run("robot", "rollback", model, "--reason", "Again.")
    assert code == exits.REFUSED and "was taken back already" in said


def test_the_same_start_again_finds_the_rollout_and_stable_already_is_success(run: Run, sentiment: ServedModel) -> None:
    first = run("robot", "rollout", "start", "sentiment/r2", "--json")[1]["id"]
    assert run("robot", "rollout", "start", "sentiment/r2", "--json")[1]["id"] == first
    code, said = run("robot", "rollout", "start", "sentiment/r3")
    assert code == exits.REFUSED and f"Rollout {first} of r2 is preparing in production." in said
    code, told = run("robot", "rollout", "start", "sentiment/r2", "--wait", "--timeout", "1e-9", "--json")
    assert code == exits.UNDER_WAY and f"Rollout {first} did not end" in told["error"]
    Rollout.objects.update(state="promoted")
    serves(Release.objects.get(number=2))
    code, told = run("robot", "rollout", "start", "sentiment/r2", "--wait", "--json")
    assert (code, told["id"], told["state"]) == (exits.OK, first, "promoted")
    Rollout.objects.update(state="cancelled")  # as where it became stable without a rollout
    code, told = run("robot", "rollout", "start", "sentiment/r2", "--wait", "--json")
    assert (code, told) == (exits.OK, {"state": "already_stable", "release": "sentiment/r2"})
    assert Rollout.objects.count() == 1


def test_a_first_release_whose_rollout_was_ended_is_no_success_when_the_job_is_run_again(
    run: Run, sentiment: ServedModel
) -> None:
    first = run("robot", "rollout", "start", "sentiment/r2", "--json")[1]["id"]
    Rollout.objects.update(
        state="rolled_back", stable=None, reason="Ended by ana: wrong answers. r2 keeps its traffic."
    )
    serves(Release.objects.get(number=2))
    for options in ([], ["--wait"]):
        code, said = run("robot", "rollout", "start", "sentiment/r2", *options)
        assert code == exits.FAILED and f"Rollout {first} of r2 in production was ended: Ended by ana" in said


@pytest.mark.parametrize(("state", "code"), [("rolled_back", exits.FAILED), ("rejected", exits.REFUSED)])
def test_a_release_that_was_taken_back_is_started_again_only_on_purpose(
    run: Run, sentiment: ServedModel, state: str, code: int
) -> None:
    first = run("robot", "rollout", "start", "sentiment/r2", "--json")[1]["id"]
    Rollout.objects.update(state=state, reason="Errors are worse.")
    found, said = run("robot", "rollout", "start", "sentiment/r2", "--wait")
    assert found == code and f"Rollout {first} of r2 in production ended" in said and "Errors are worse." in said
    assert run("robot", "rollout", "start", "sentiment/r2", "--dry-run")[0] == exits.REFUSED
    assert run("robot", "rollout", "start", "sentiment/r2", "--dry-run", "--again")[0] == exits.OK
    assert Rollout.objects.count() == 1
    assert run("robot", "rollout", "start", "sentiment/r2", "--again")[0] == exits.OK
    assert Rollout.objects.count() == 2


def test_a_wait_outlives_a_server_that_is_started_again(
    run: Run, sentiment: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_each_look(monkeypatch, *[{}] * 30, {"state": "promoted", "reason": "It is proven."})
    answer = WSGIHandler.__call__
    looks = iter(range(100))

    def away(self: WSGIHandler, environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"].endswith("/wait") and 0 < next(looks) < 12:
            raise httpx.ConnectError("nobody listens")
        return answer(self, environ, start_response)

    monkeypatch.setattr(WSGIHandler, "__call__", away)
    assert run("robot", "rollout", "start", "sentiment/r2", "--wait")[0] == exits.OK
    Rollout.objects.update(state="shifting", reason="Half.")
    pk = Rollout.objects.get().pk
    looks = iter([0, *[1] * 1000])
    now = [0.0]
    monkeypatch.setattr("sluicegate.cli.rollout.time.monotonic", lambda: now.__setitem__(0, now[0] + 10) or now[0])
    after_each_look(monkeypatch, *[{}] * 500)
    code, told = run("robot", "rollout", "watch", str(pk), "--json")
    assert code == exits.INFRASTRUCTURE
    assert f"It is not known how rollout {pk} ends; it goes on by itself. No answer from" in told["error"]
    assert f"sluicegate rollout watch {pk}" in told["next_step"]


def test_a_wait_for_what_was_never_seen_is_refused_as_it_is(run: Run, sentiment: ServedModel) -> None:
    code, told = run("robot", "rollout", "watch", "999999", "--json")
    assert (code, told["code"]) == (exits.REFUSED, "no_such_rollout")


def after_each_look(monkeypatch: pytest.MonkeyPatch, *happens: Any) -> None:
    """What happens to the only rollout while the command waits for its next look, one after the other."""
    left = list(happens)

    def wait(_: float) -> None:
        assert left, "it goes on waiting"
        Rollout.objects.update(**left.pop(0))

    monkeypatch.setattr("sluicegate.cli.rollout.time.sleep", wait)


def test_waiting_ends_when_it_is_paused_and_says_what_to_do(
    run: Run, sentiment: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_each_look(monkeypatch, {"state": "shifting", "step_index": 0}, {"state": "paused", "reason": "I look at it."})
    code, told = run("robot", "rollout", "start", "sentiment/r2", "--wait", "--json")
    pk = Rollout.objects.get().pk
    assert code == told["exit_code"] == exits.UNDER_WAY == 4
    assert told["error"] == f"Rollout {pk} is paused, and only a person ends that. I look at it."
    assert told["next_step"].startswith(f"sluicegate rollout resume {pk} --reason")
    # watch follows it through the pause
    code, told = run("robot", "rollout", "watch", str(pk), "--timeout", "0.001", "--json")
    assert code == exits.UNDER_WAY and told["rollout"]["state"] == "paused"
    assert "did not end within 0.001 s; it goes on by itself: paused" in told["error"]


def test_waiting_ends_after_its_time_and_the_rollout_goes_on(
    run: Run, sentiment: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_each_look(monkeypatch)
    code, told = run("robot", "rollout", "start", "sentiment/r2", "--wait", "--timeout", "1e-9", "--json")
    assert (code, told["exit_code"]) == (exits.UNDER_WAY, exits.UNDER_WAY)
    assert told["next_step"].startswith("sluicegate rollout watch")
    assert Rollout.objects.get().state == "preparing"
    for wrong in ("0", "-1", "nan", "inf", "soon"):
        assert run("robot", "rollout", "start", "sentiment/r2", "--wait", "--timeout", wrong)[0] == exits.REFUSED
    code, said = run("robot", "rollout", "start", "sentiment/r2", "--timeout", "60")
    assert code == exits.REFUSED and "Add --wait" in said


def test_waiting_goes_on_for_an_approval_and_nothing_is_said_twice(
    run: Run, sentiment: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("sluicegate.cli.rollout.time.monotonic", lambda: now.__setitem__(0, now[0] + 10) or now[0])
    ServedModel.objects.update(rollout_policy={"approvals": {"start": 1}})
    looks = [
        {"state": "shifting", "step_index": 0, "weight_bp": 500, "reason": f"{n} of 300 requests."} for n in range(9)
    ]
    same = {"reason": "No request yet."}
    after_each_look(
        monkeypatch, {}, {}, {}, *looks, same, same, same, {"state": "stuck", "reason": "It is not acknowledged."}
    )
    code, said = run("robot", "rollout", "start", "sentiment/r2", "--wait")
    assert code == exits.FAILED
    pk = Rollout.objects.get().pk
    lines = said.splitlines()
    assert lines[0].startswith("  awaiting_approval  0 %.")
    assert lines[1:] == [
        f"  It waits for an approval: sluicegate rollout approve {pk}",
        "  shifting  5 %  step 1 of 3. 0 of 300 requests.",
        "  shifting  5 %  step 1 of 3. No request yet.",
        "  stuck  5 %. It is not acknowledged.",
        f"Rollout {pk} ended: stuck. It is not acknowledged.",
        f"Next: sluicegate diagnose {pk}; a gateway did not acknowledge that the traffic goes back.",
    ]


def test_approvals_lists_what_waits_and_for_whom(run: Run, sentiment: ServedModel) -> None:
    code, said = run("mia", "approvals")
    assert code == exits.OK and "Nothing waits for an approval." in said
    ServedModel.objects.update(rollout_policy={"approvals": {"start": 1}})
    assert run("ana", "rollout", "start", "sentiment/r2")[0] == exits.OK
    code, said = run("mia", "approvals", "--mine")
    assert code == exits.OK and "sentiment/r2" in said and said.splitlines()[-1].rstrip().endswith("you")
    code, found = run("ana", "approvals", "--json")
    assert code == exits.OK and "takes the role release_manager" in found[0]["why_not"]
