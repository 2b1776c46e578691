"""Rollouts over REST: what CI and an on-call engineer do with curl."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from rest_framework.test import APIClient

from accounts.actions import actor_for
from accounts.core.access import Role
from accounts.models import User
from ledger.models import Event
from registry.models import ServedModel
from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.tick_history import OpenSegment, TickContext, TickRecord
from rollouts.models import Observation, Rollout
from serving.models import Environment
from serving.traffic.actions.routes import set_route
from tests.support.worlds.factories import make_environment, make_model, make_release, make_team, make_user
from tests.support.worlds.rollout_setup import report_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> APIClient:
    return signed_in(make_user(team="search", role=Role.RELEASE_MANAGER))


def signed_in(user: Any) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.fixture
def body() -> dict[str, Any]:
    release = make_release(make_model(team=make_team("search"), objectives={"errors_max_frac": 0.01}))
    make_environment("production", needs_passed_report=False)
    return {"model": release.model.slug, "candidate": release.name, "environment": "production"}


def test_start_then_look(client: APIClient, body: dict[str, Any]) -> None:
    answer = client.post("/api/v1/rollouts", body, format="json")
    assert answer.status_code == 201, answer.data
    url = answer.data["links"]["self"]
    view = client.get(url)
    assert view.status_code == 200 and view["ETag"] == f'"{view.data["version"]}"'
    data = view.data
    assert data["state"] == "preparing" and data["candidate"]["name"] == "r1" and data["stable"] is None
    assert [step["name"] for step in data["steps"]] == ["step 1", "bake"] and data["steps"][0]["weight_pct"] == 100
    guard = data["guards"][0]
    assert guard["name"] == "errors" and guard["bar_worse"] > guard["log_e_worse"] and guard["samples_to_go"] is None
    assert data["weight"] == {
        "commanded_bp": 0, "is_acknowledged": None, "acknowledged_bp": None, "acknowledged_at": None, "error": "", "observed_bp": None,
    }  # fmt: skip
    assert data["clock"]["decision_to_zero_s"] is None and data["decisions"][0]["action"] == "request"
    rows = client.get("/api/v1/rollouts", {"model": body["model"]}).data["results"]
    assert [row["id"] for row in rows] == [data["id"]]


def test_a_wait_tells_whether_it_has_come(client: APIClient, body: dict[str, Any]) -> None:
    started = client.post("/api/v1/rollouts", body, format="json").data
    url = f"{started['links']['self']}/wait"
    still = client.get(url)
    assert still.status_code == 202 and still.data["state"] == "preparing"
    assert client.get(url, {"version": started["version"]}).status_code == 202
    assert client.get(url, {"version": started["version"] + 1}).status_code == 200  # it is not what the caller saw
    Rollout.objects.update(state="promoted")
    assert client.get(url, {"version": started["version"]}).status_code == 200


@pytest.mark.parametrize("query", [{"timeout_s": "nan"}, {"timeout_s": "3600"}, {"version": "-1"}, {"version": "٣"}])
def test_a_wait_that_makes_no_sense_is_refused(client: APIClient, body: dict[str, Any], query: dict[str, str]) -> None:
    url = client.post("/api/v1/rollouts", body, format="json").data["links"]["self"]
    answer = client.get(f"{url}/wait", query)
    assert answer.status_code == 422 and [error["field"] for error in answer.data["errors"]] == list(query)


def test_a_misspelt_field_starts_nothing(client: APIClient, body: dict[str, Any]) -> None:
    answer = client.post("/api/v1/rollouts", {**body, "polcy": {"preset": "careful"}}, format="json")
    assert answer.status_code == 422
    assert [error["field"] for error in answer.data["errors"]] == ["polcy"]
    assert client.get("/api/v1/rollouts").data["results"] == []


def test_a_policy_may_be_sent_along_and_its_mistakes_come_back(client: APIClient, body: dict[str, Any]) -> None:
    wrong = client.post("/api/v1/rollouts", {**body, "policy": {"preset": "fats", "holdback_pct": 80}}, format="json")
    assert wrong.status_code == 422 and wrong.data["code"] == "rollout_policy_invalid"
    assert {error["field"] for error in wrong.data["errors"]} == {"preset", "holdback_pct"}
    assert client.post("/api/v1/rollouts", {**body, "policy": [1]}, format="json").status_code == 422
    assert client.post("/api/v1/rollouts", {"model": body["model"]}, format="json").status_code == 422
    assert not Rollout.objects.exists()
    right = client.post("/api/v1/rollouts", {**body, "policy": {"preset": "fast"}}, format="json")
    assert right.status_code == 201 and right.data["policy"]["preset"] == "fast"


def test_a_second_start_finds_the_first(client: APIClient, body: dict[str, Any]) -> None:
    first = client.post("/api/v1/rollouts", body, format="json")
    second = client.post("/api/v1/rollouts", body, format="json")
    assert (first.status_code, second.status_code) == (201, 200) and second.data["id"] == first.data["id"]
    frozen = {**body, "policy": {"freeze_windows": [{"why": "Closing"}]}}
    other_policy = client.post("/api/v1/rollouts", frozen, format="json")
    assert (other_policy.status_code, other_policy.data["code"]) == (409, "rollout_active")
    assert other_policy.data["rollout"] == first.data["id"] and "under another policy" in other_policy.data["detail"]
    newer = make_release(ServedModel.objects.get())
    other = client.post("/api/v1/rollouts", {**body, "candidate": newer.name}, format="json")
    assert (other.status_code, other.data["code"], other.data["candidate"]) == (409, "rollout_active", "r1")
    assert Rollout.objects.count() == 1


def test_the_active_rollout_is_found_although_a_new_one_could_not_start(
    client: APIClient, body: dict[str, Any]
) -> None:
    first = client.post("/api/v1/rollouts", body, format="json").data["id"]
    Environment.objects.update(needs_passed_report=True)
    ServedModel.objects.update(gate_policy={"load": {"rate_per_s": 7}})
    assert client.post("/api/v1/rollouts", body, format="json").data["id"] == first


@pytest.mark.parametrize("state", ["rolled_back", "reverted", "rejected"])
def test_a_release_that_was_taken_back_is_started_again_only_on_purpose(
    client: APIClient, body: dict[str, Any], state: str
) -> None:
    first = client.post("/api/v1/rollouts", body, format="json").data["id"]
    Rollout.objects.update(state=state, reason="Errors are worse.")
    again = client.post("/api/v1/rollouts", body, format="json")
    assert (again.status_code, again.data["code"]) == (409, "tried_before")
    assert (again.data["rollout"], again.data["state"], again.data["reason"]) == (first, state, "Errors are worse.")
    preview = client.post("/api/v1/rollouts/preview", body, format="json").data
    assert not preview["can_start"] and "tried_before" in [one["code"] for one in preview["warnings"]]
    purpose = {**body, "again": True}
    assert client.post("/api/v1/rollouts/preview", purpose, format="json").data["can_start"]
    assert client.post("/api/v1/rollouts", purpose, format="json").status_code == 201
    Rollout.objects.exclude(pk=first).update(state="cancelled")
    assert client.post("/api/v1/rollouts", body, format="json").data["code"] == "tried_before"


@pytest.mark.parametrize("state", ["cancelled", "superseded"])
def test_a_rollout_without_traffic_tells_nothing_of_the_release(
    client: APIClient, body: dict[str, Any], state: str
) -> None:
    client.post("/api/v1/rollouts", body, format="json")
    Rollout.objects.update(state=state)
    assert client.post("/api/v1/rollouts", body, format="json").status_code == 201


def test_what_is_stable_already_is_refused_by_the_rollout_that_promoted_it(
    client: APIClient, body: dict[str, Any]
) -> None:
    first = client.post("/api/v1/rollouts", body, format="json").data["id"]
    rollout = Rollout.objects.get()
    set_route(
        actor=actor_for(make_user(is_admin=True)), environment=rollout.environment, model=rollout.model,
        stable=rollout.candidate, reason="Promoted.",
    )  # fmt: skip
    Rollout.objects.update(state="promoted")
    Environment.objects.update(needs_passed_report=True)  # a new rollout could not start
    done = client.post("/api/v1/rollouts", body, format="json")
    assert (done.status_code, done.data["code"], done.data["rollout"]) == (409, "already_stable", first)


def test_a_verb_needs_the_version_that_was_seen(client: APIClient, body: dict[str, Any]) -> None:
    view = client.post("/api/v1/rollouts", body, format="json").data
    url = f"{view['links']['self']}/cancel"
    assert client.post(url, {"reason": "No."}, format="json").status_code == 428
    stale = client.post(url, {"reason": "No."}, format="json", headers={"If-Match": str(view["version"] - 1)})
    assert stale.status_code == 412 and stale.data["version"] == view["version"]
    wrong = client.post(
        f"{view['links']['self']}/resume", {"reason": "Go."}, format="json", headers={"If-Match": str(view["version"])}
    )
    assert wrong.status_code == 409 and wrong.data["code"] == "wrong_state"
    opens = client.post(f"{view['links']['self']}/resume", {"reason": "Go."}, format="json", headers={"If-Match": "*"})
    assert opens.status_code == 422 and opens.data["code"] == "if_match_invalid"
    done = client.post(url, {"reason": "No."}, format="json", headers={"If-Match": f'"{view["version"]}"'})
    assert done.status_code == 200 and done.data["state"] == "cancelled" and done.data["is_final"]


@pytest.mark.parametrize("verb", ["cancel", "abort"])
def test_what_shuts_may_be_sent_for_any_version_and_again(client: APIClient, body: dict[str, Any], verb: str) -> None:
    url = f"{client.post('/api/v1/rollouts', body, format='json').data['links']['self']}/{verb}"
    done, again = (client.post(url, {"reason": "No."}, format="json", headers={"If-Match": "*"}).data for _ in range(2))
    assert (done["state"], again["version"]) == ("cancelled", done["version"])


def test_what_a_rollout_cannot_get_past_is_told_with_what_to_do(client: APIClient, body: dict[str, Any]) -> None:
    waits = {**body, "policy": {"preset": "fast", "approvals": {"start": 1}}}
    view = client.post("/api/v1/rollouts", waits, format="json").data
    assert view["blocked"] == {
        "at_stage": "start",
        "code": "nobody_may_approve",
        "message": "Start needs 1 more approval, and no person may approve.",
        "next_step": "Give the role release_manager in team search to a person who neither made the release nor requested "
        "this rollout, or end it.",
    }
    manager = make_user(team="search", role=Role.RELEASE_MANAGER)
    assert client.get(view["links"]["self"]).data["blocked"] is None
    report_for(Rollout.objects.get().candidate)  # its gates ran after it was asked for
    blocked = client.get(view["links"]["self"]).data["blocked"]
    assert blocked["code"] == "report_superseded" and blocked["next_step"].endswith(
        "End this rollout, and start it again."
    )
    refused = do(signed_in(manager), view, "approve")
    assert refused.status_code == 403 and refused.data["code"] == "report_superseded"


def test_strangers_see_and_do_nothing(body: dict[str, Any], client: APIClient) -> None:
    view = client.post("/api/v1/rollouts", body, format="json").data
    stranger = signed_in(make_user(team="elsewhere"))
    assert stranger.get("/api/v1/rollouts").data["results"] == []
    assert stranger.get(view["links"]["self"]).status_code == 404
    assert stranger.post("/api/v1/rollouts", body, format="json").status_code == 404
    verb = stranger.post(f"{view['links']['self']}/abort", {"reason": "x"}, format="json", headers={"If-Match": "1"})
    assert verb.status_code == 404
    assert APIClient().get("/api/v1/rollouts").status_code == 401


def test_nothing_to_roll_back_is_said(client: APIClient, body: dict[str, Any]) -> None:
    answer = client.post(
        f"/api/v1/models/{body['model']}/rollback", {"environment": "production", "reason": "Now."}, format="json"
    )
    assert answer.status_code == 404 and answer.data["code"] == "no_active_rollout"
    rollout = client.post("/api/v1/rollouts", body, format="json").data
    answer = client.post(
        f"/api/v1/models/{body['model']}/rollback", {"environment": "production", "reason": "Now."}, format="json"
    )
    assert answer.status_code == 200 and (answer.data["id"], answer.data["state"]) == (rollout["id"], "cancelled")


def test_observations_and_decisions_are_pages(client: APIClient, body: dict[str, Any]) -> None:
    view = client.post("/api/v1/rollouts", body, format="json").data
    rollout = Rollout.objects.get(pk=view["id"])
    for tick in range(3):
        Observation.objects.create(
            rollout=rollout,
            first_tick=tick,
            tick=tick,
            from_at=rollout.created_at,
            at=rollout.created_at,
            state="shifting",
            weight_bp=500,
            candidate=Counts(tick, tick, {"errors": 0}).to_json(),
            stable=Counts().to_json(),
            evidence={},
        )
    seen = client.get(view["links"]["observations"]).data["results"]
    assert [row["tick"] for row in seen] == [2, 1, 0]
    assert client.get(view["links"]["decisions"]).data["results"][0]["action"] == "request"
    assert client.get("/api/v1/rollouts/999999/decisions").status_code == 404


def test_actor_of_the_request_is_recorded(client: APIClient, body: dict[str, Any]) -> None:
    user = make_user("ci-robot", team="search", role=Role.CI)
    view = signed_in(user).post("/api/v1/rollouts", body, format="json").data
    assert view["requested_by"] == "ci-robot" and view["decisions"][-1]["actor"] == actor_for(user).name


# --- people's verbs ---------------------------------------------------------------------------------------------------


def do(client: APIClient, view: dict[str, Any], verb: str, **body: Any) -> Any:
    url, match = f"{view['links']['self']}/{verb}", {"If-Match": f'"{view["version"]}"'}
    return client.post(url, {"reason": "So.", **body}, format="json", headers=match)


def managers(count: int) -> list[APIClient]:
    return [signed_in(make_user(f"manager-{i}", team="search", role=Role.RELEASE_MANAGER)) for i in range(count)]


def test_approvals_are_counted_listed_and_explained(client: APIClient, body: dict[str, Any]) -> None:
    policy = {"preset": "fast", "approvals": {"start": 2, "promote": 1}}
    first, second = managers(2)
    view = client.post("/api/v1/rollouts", {**body, "policy": policy}, format="json").data
    assert view["state"] == "awaiting_approval" and view["next_approval"] == "start"
    assert view["may_approve"] == ["manager-0", "manager-1"]  # not who asked for it
    own = do(client, view, "approve")
    assert own.status_code == 403 and own.data["code"] == "own_release"
    wrong = do(first, view, "approve", stage="step 2")
    assert wrong.status_code == 422 and wrong.data["errors"][0]["field"] == "stage"
    view = do(first, view, "approve", stage=None).data
    assert view["approval_stages"] == [
        {
            "stage": "start",
            "needed": 2,
            "given": 1,
            "by": ["manager-0"],
            "missing": 1,
            "is_ahead": True,
            "is_entered": False,
        },
        {"stage": "promote", "needed": 1, "given": 0, "by": [], "missing": 1, "is_ahead": True, "is_entered": False},
    ]
    given = view["approvals"][0]
    assert given["counts"] and given["void"] is None and given["stage"] == "start" and given["expires_at"]
    view = do(second, view, "approve").data
    assert view["state"] == "preparing" and view["next_approval"] == "promote"
    User.objects.filter(username="manager-0").update(is_active=False)
    view = client.get(view["links"]["self"]).data
    assert view["approvals"][0]["void"] == "no_longer_may" and "may no longer" in view["approvals"][0]["why_void"]


def test_promote_now_and_supersede_have_doors_with_roles(client: APIClient, body: dict[str, Any]) -> None:
    view = client.post("/api/v1/rollouts", body, format="json").data
    newer = make_release(ServedModel.objects.get(slug=body["model"]))
    early = do(client, view, "promote-now")
    assert early.status_code == 409 and early.data["code"] == "wrong_state"
    robot = signed_in(make_user(team="search", role=Role.CI))
    missing = do(robot, view, "supersede")
    assert missing.status_code == 422 and missing.data["errors"][0]["field"] == "candidate"
    unknown = do(robot, view, "supersede", candidate="r99")
    assert unknown.status_code == 404 and unknown.data["code"] == "no_such_release"
    answer = do(robot, view, "supersede", candidate=newer.name)
    assert answer.status_code == 201 and answer.data["supersedes"] == view["id"]
    assert client.get(view["links"]["self"]).data["superseded_by"] == answer.data["id"]
    assert do(robot, view, "supersede", candidate=newer.name).status_code == 412
    Rollout.objects.filter(pk=answer.data["id"]).update(state="shifting", step_index=0)
    forbidden = do(robot, answer.data, "promote-now")
    assert forbidden.status_code == 403 and forbidden.data["roles"] == ["release_manager"]
    assert do(client, answer.data, "promote-now").data["promote_now"] is True
    assert do(robot, client.get(answer.data["links"]["self"]).data, "roll-back").data["state"] == "rolling_back"


def test_a_freeze_is_a_problem_with_its_end(client: APIClient, body: dict[str, Any]) -> None:
    frozen = {"freeze_windows": [{"why": "Audit"}]}
    answer = client.post("/api/v1/rollouts", {**body, "policy": frozen}, format="json")
    assert answer.status_code == 403 and (answer.data["code"], answer.data["why"]) == ("frozen", "Audit")
    assert "until" in answer.data


# --- preview ----------------------------------------------------------------------------------------------------------


def test_a_preview_tells_what_would_happen_and_creates_nothing(client: APIClient, body: dict[str, Any]) -> None:
    events = Event.objects.count()
    answer = client.post("/api/v1/rollouts/preview", body, format="json")
    assert answer.status_code == 200, answer.data
    assert [stage["name"] for stage in answer.data["stages"]] == ["start", "bake"]
    codes = {one["code"]: one["level"] for one in answer.data["warnings"]}
    assert codes == {
        "report_missing": "warning",
        "no_stable": "warning",
        "no_node": "warning",
        "traffic_unknown": "note",
    }
    assert answer.data["can_start"] and answer.data["traffic"]["source"] == "unknown"
    assert all(one["message"].endswith(".") for one in answer.data["warnings"])
    assert not Rollout.objects.exists() and Event.objects.count() == events


def test_a_preview_reads_as_strictly_as_a_start(client: APIClient, body: dict[str, Any]) -> None:
    for wrong, field in (
        ({"polcy": {}}, "polcy"),
        ({"policy": {"preset": "fats"}}, "preset"),
        ({"policy": 1}, "policy"),
    ):
        answer = client.post("/api/v1/rollouts/preview", {**body, **wrong}, format="json")
        assert answer.status_code == 422 and answer.data["errors"][0]["field"] == field
    stranger = signed_in(make_user(team="elsewhere"))
    assert stranger.post("/api/v1/rollouts/preview", body, format="json").status_code == 404
    assert client.get("/api/v1/rollouts/preview").status_code == 405


# --- replay -----------------------------------------------------------------------------------------------------------


def with_history(client: APIClient, body: dict[str, Any], bad_per_tick: int) -> dict[str, Any]:
    """A rollout of 60 ticks at 5 %: 10 attempts a second of the candidate, 190 of stable, as the engine stores them."""
    stable, candidate = (make_release(ServedModel.objects.get(slug=body["model"])) for _ in range(2))
    admin = actor_for(make_user(is_admin=True))
    environment = Environment.objects.get(slug="production")
    set_route(actor=admin, environment=environment, model=stable.model, stable=stable, reason="test")
    view = client.post("/api/v1/rollouts", {**body, "candidate": candidate.name}, format="json").data
    began, history = 1_700_000_000.0, OpenSegment()
    mark = TickContext("shifting", 0, 500, step_started_at=began)
    for tick in range(1, 61):
        arms = Arms(Counts(10, 10, {"errors": bad_per_tick}), Counts(190, 190, {"errors": 0}))
        history = history.after(TickRecord(mark, tick, began + tick, began + tick, arms))
    block = history.block()
    at = [datetime.fromtimestamp(seconds, UTC) for seconds in (block.from_at, block.at)]
    Observation.objects.create(
        rollout_id=view["id"], first_tick=1, tick=60, from_at=at[0], at=at[1], state="shifting", weight_bp=500,
        ticks=list(block.ticks), candidate=block.arms.candidate.to_json(), stable=block.arms.stable.to_json(), evidence={},
    )  # fmt: skip
    loaded: dict[str, Any] = view
    return loaded


def test_a_stored_rollout_is_judged_again_under_another_policy(client: APIClient, body: dict[str, Any]) -> None:
    view = with_history(client, body, bad_per_tick=1)
    url = view["links"]["replay"]
    strict = client.get(url)
    assert strict.status_code == 200, strict.data
    assert strict.data["is_own_policy"] and strict.data["ticks"] == 60
    back = strict.data["roll_back"]
    assert back["code"] in {"worse_than_stable", "objective_breached"} and 1 < back["tick"] < 60
    tolerant = {
        "guards": [{"indicator": "errors", "max_frac": 0.5, "roll_back_over": {"ratio": 1, "plus_frac": 0.5}}],
        "budget_bad": None,
    }
    mild = client.post(url, {"policy": tolerant}, format="json")
    assert mild.status_code == 200 and mild.data["roll_back"] is None and not mild.data["is_own_policy"]
    assert (
        mild.data["happened"]["state"] == "preparing" and mild.data["happened"]["decisions"][0]["action"] == "request"
    )
    assert client.get(url, {"preset": "careful"}).data["policy"]["preset"] == "careful"


def test_what_cannot_be_replayed_is_said(client: APIClient, body: dict[str, Any]) -> None:
    view = client.post("/api/v1/rollouts", body, format="json").data
    url = view["links"]["replay"]
    assert client.get(url).data["code"] == "no_history"
    assert client.get(url, {"preset": "yolo"}).data["errors"][0]["field"] == "preset"
    assert client.post(url, {}, format="json").data["errors"][0]["field"] == "policy"
    assert client.post(url, {"policy": 3}, format="json").status_code == 422
    assert signed_in(make_user(team="elsewhere")).get(url).status_code == 404
