"""The pages of rollouts: asking for one, approving it, the undo window, judging it again."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Actor, Role
from accounts.models import User
from registry.models import Release
from rollouts import actions
from rollouts.actions import engine_effects
from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.engine_state import EngineState
from rollouts.models import Mismatch, Rollout
from rollouts.queries import view_of
from serving.models import Route
from sluicegate.cli.rollout import status_lines
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_actor, make_model, make_release, make_user
from tests.support.worlds.rollout_setup import (
    OBJECTIVES,
    awaiting,
    frozen_now,
    production,
    promoted,
    put,
    release_of,
    report_for,
    serves,
    started,
    with_stable,
)
from tests.support.worlds.rollout_story import Story
from web.pages import rollouts as rollouts_page

pytestmark = pytest.mark.django_db


def signed_in(user: User | Actor) -> Client:
    client = Client()
    client.force_login(user if isinstance(user, User) else User.objects.get(pk=user.user_id))
    return client


def manager() -> Client:
    return signed_in(make_user(team="search", role=Role.RELEASE_MANAGER))


def page_of(client: Client, rollout: Rollout) -> str:
    answer = client.get(reverse("rollout", args=[rollout.pk]))
    assert answer.status_code == 200
    return answer.content.decode()


def press(client: Client, rollout: Rollout, verb: str, **fields: Any) -> str:
    url = reverse("rollout_act", args=[rollout.pk, verb])
    form = {"version": rollout.version, "reason": "So.", **fields}
    answer = client.post(url, form, follow=True)
    rollout.refresh_from_db()
    return answer.content.decode()


# --- an engine that is silent ------------------------------------------------------------------------------------------


def test_a_rollout_that_the_engine_does_not_look_at_shows_since_when_and_no_green_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story(bake={"min_s": 600, "min_samples": 40, "deadline_s": 1200})
    story.until("baking")
    story.turn()
    client = manager()
    page = page_of(client, story.rollout)
    assert "The engine has not looked" not in page
    assert "word ok" in page.partition("Which of them follow the route")[0] and "evidence ok" in squeezed(page)
    monkeypatch.setattr(rollouts_page, "MISSED", timedelta(0))  # as if that time had passed
    page = page_of(client, story.rollout)
    assert "The engine has not looked at this rollout since" in page and "nothing is decided" in page
    assert "word ok" not in page.partition("Which of them follow the route")[0] and "evidence ok" not in squeezed(page)
    put(story.rollout, "promoted")
    assert "The engine has not looked" not in page_of(client, story.rollout)


# --- asking for one ---------------------------------------------------------------------------------------------------


@pytest.fixture
def candidate() -> Release:
    """r2 of sentiment, beside r1, which serves production."""
    production()
    stable = make_release(make_model("sentiment", objectives=OBJECTIVES))
    serves(stable)
    return make_release(stable.model)


def url(name: str, release: Release) -> str:
    return reverse(name, args=[release.model.slug, release.number])


def test_the_form_offers_what_the_person_may_choose(candidate: Release) -> None:
    form = signed_in(make_user(team="search")).get(url("release_rollout", candidate)).content.decode()
    assert "preset careful" in form and "policy_json" in form and "demo" not in form and "creates nothing" in form
    robot = signed_in(make_user(team="search", role=Role.CI)).get(url("release_rollout", candidate)).content.decode()
    assert "policy_json" not in robot and "model&#x27;s own policy" in robot.replace("'", "&#x27;")
    outsider = signed_in(make_user(team="elsewhere")).get(url("release_rollout", candidate))
    assert outsider.status_code == 404


def test_a_preview_shows_stages_and_warnings_and_creates_nothing(candidate: Release) -> None:
    client = signed_in(make_user(team="search"))
    form = {"environment": "production", "policy": "careful", "reason": "A fix."}
    answer = client.post(url("release_preview", candidate), form)
    page = answer.content.decode()
    assert answer.status_code == 200 and not Rollout.objects.exists()
    assert "no_capacity_for_rollback" in page and "step 5" in page and "traffic_unknown" in page
    assert "One step goes back to r1 for " in page
    assert 'value="careful" selected' in page and 'value="A fix."' in page  # nothing that was typed is lost
    Rollout.objects.create(
        model=candidate.model, environment=production(), candidate=release_of(candidate.model), policy={},
        policy_digest="sha256:0", state="shifting",
    )  # fmt: skip
    page = client.post(url("release_preview", candidate), form).content.decode()
    assert "This rollout can't start." in page and "rollout_active" in page


def test_a_start_under_a_policy_of_its_own_leads_to_the_rollout(candidate: Release) -> None:
    policy = json.dumps({"preset": "fast", "approvals": {"start": 1}})
    form = {"environment": "production", "policy": "json", "policy_json": policy, "reason": "A fix."}
    answer = signed_in(make_user(team="search")).post(url("release_start", candidate), form)
    rollout = Rollout.objects.get()
    assert answer.status_code == 302 and answer["Location"] == reverse("rollout", args=[rollout.pk])
    assert rollout.effective_policy.approvals == {"start": 1} and rollout.decisions.get().reason == "A fix."


@pytest.mark.parametrize(
    ("form", "status", "says"),
    [
        ({"policy": "json", "policy_json": "{"}, 422, "The policy is not JSON"),
        ({"policy": "json", "policy_json": "[]"}, 422, "one JSON object"),
        ({"policy": "json", "policy_json": '{"steps": []}'}, 422, "<code>steps</code>"),
        ({"policy": "yolo"}, 422, "is not a preset"),
        ({"environment": "nowhere"}, 422, "Choose the environment"),
        ({"reason": "x" * 2001}, 422, "2000 are the most"),
        ({"policy": "json", "policy_json": json.dumps(frozen_now())}, 403, "Changes are frozen until"),
    ],
)
def test_a_form_that_cannot_be_comes_back_with_its_mistakes(
    candidate: Release, form: dict[str, str], status: int, says: str
) -> None:
    client = signed_in(make_user(team="search"))
    whole = {"environment": "production", "policy": "own", "reason": "Why not.", **form}
    answer = client.post(url("release_start", candidate), whole)
    assert answer.status_code == status and says in answer.content.decode()
    assert not Rollout.objects.exists()
    if "reason" not in form:
        assert "Why not." in answer.content.decode()


# --- approvals --------------------------------------------------------------------------------------------------------


def test_approvals_show_who_said_yes_what_is_missing_and_who_may() -> None:
    rollout, requester, other = awaiting(approvals={"start": 2, "bake": 1})
    waits = page_of(signed_in(other), rollout)
    assert "Approve start" in waits and "0 of 2" in waits and other.name in waits
    assert "Approve start" not in page_of(signed_in(requester), rollout)
    press(signed_in(other), rollout, "approve", stage="start")
    page = page_of(signed_in(other), rollout)
    assert "1 of 2" in page and "sheet-approve" in page and 'id="sheet-approve"' not in page  # nobody twice
    assert "Approve start" in page_of(manager(), rollout)
    User.objects.filter(pk=other.user_id).update(is_active=False)
    assert "Its giver may no longer approve" in page_of(manager(), rollout)


def test_a_later_stage_can_be_approved_or_rejected_from_the_page() -> None:
    rollout, stable = with_stable(approvals={"bake": 1})
    client = manager()
    page = page_of(client, rollout)
    assert "Approve bake" in page and "Reject" in page and "Promote now" in page
    press(client, rollout, "approve", stage="bake")
    assert rollout.state == "shifting"
    assert 'id="sheet-approve"' not in page_of(client, rollout)
    press(client, rollout, "reject")
    assert rollout.state == "rolling_back" and f"Rolling back to {stable.name}" in rollout.reason


def test_without_gates_there_is_nothing_to_approve_or_reject() -> None:
    rollout, _ = with_stable()
    page = page_of(manager(), rollout)
    assert "Approve" not in page and "Reject" not in page and "Skip the wait" in page


def test_promote_now_is_a_button_of_release_managers() -> None:
    rollout, _ = with_stable()
    assert "Promote now" not in page_of(signed_in(make_user(team="search")), rollout)
    client = manager()
    press(client, rollout, "promote_now")
    assert (rollout.state, rollout.promote_now) == ("baking", True)
    assert 'id="sheet-promote_now"' not in page_of(client, rollout)


def test_who_approves_finds_the_gates_the_difference_and_the_policy_beside_the_button() -> None:
    rollout, _, other = awaiting()
    report = report_for(rollout.candidate)
    put(rollout, "awaiting_approval", report=report)
    page = page_of(signed_in(other), rollout)
    sheet = page[page.index('id="sheet-approve"') :]
    assert "Look at" in sheet[: sheet.index("</form>")]
    assert page.count(reverse("gate_run", args=[report.gate_run_id])) == 3
    assert f"{url('release_diff', rollout.candidate)}?against=r1" in page and 'id="policy"' in page
    assert "start · " in page and "step 1" not in page  # one word for one stage


# --- the numbers ------------------------------------------------------------------------------------------------------


def test_only_guards_count_what_is_bad_and_what_nobody_tried_has_no_rate() -> None:
    rollout, _ = with_stable()
    bad = {"errors": 2, "bytes_512": 991, "slow_50ms": 7557}
    arms = Arms(candidate=Counts(1000, 1000, bad))
    put(rollout, "shifting", engine_state={**EngineState().to_json(), "step": arms.to_json(), "total": arms.to_json()})
    page = page_of(manager(), rollout)
    assert "errors 2" in page and "bytes_512" not in page and "slow_50ms" not in page
    cards = page.split('class="guards"')[1].split("</ul>")[0]
    assert cards.count("<strong>–</strong>") == len(view_of(rollout)["guards"]) and "0 of 0" not in cards
    assert view_of(rollout)["clock"]["bad_candidate_attempts_by_guard"] == {"errors": 2}


def test_a_guard_that_is_over_its_limit_and_no_worse_than_stable_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout, _ = with_stable()
    shared = "what both share is to blame"
    assert shared not in page_of(manager(), rollout)
    live = view_of(rollout)
    for guard in live["guards"]:
        guard |= {"worse_progress": 1.0, "fine_progress": 1.0}
    monkeypatch.setattr("web.pages.rollouts.view_with", lambda *_: live)
    assert shared in page_of(manager(), rollout)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_another_release_takes_the_place_of_a_rollout_without_traffic() -> None:
    rollout, _, _ = awaiting()
    newer = release_of(rollout.model)
    client = signed_in(make_user(team="search", role=Role.CI))
    page = page_of(client, rollout)
    assert "Supersede" in page and f"<option>{newer.name}</option>" in page
    form = {"version": rollout.version, "candidate": newer.name, "reason": "Newer."}
    answer = client.post(reverse("rollout_supersede", args=[rollout.pk]), form, follow=True)
    new = Rollout.objects.get(supersedes=rollout)
    assert answer.redirect_chain[-1][0] == reverse("rollout", args=[new.pk])
    assert "In the place of" in answer.content.decode()
    assert f'Rollout <a href="{reverse("rollout", args=[new.pk])}">' in page_of(client, rollout)
    again = client.post(reverse("rollout_supersede", args=[rollout.pk]), form, follow=True)
    assert "(stale)" in again.content.decode() and Rollout.objects.count() == 2


def test_a_refused_supersede_keeps_the_release_and_the_reason() -> None:
    rollout, _, _ = awaiting()
    newer, newest = release_of(rollout.model), release_of(rollout.model)
    form = {"version": "99", "candidate": newer.name, "reason": "It has the fix."}
    page = manager().post(reverse("rollout_supersede", args=[rollout.pk]), form).content.decode()
    assert f"<option selected>{newer.name}</option>" in page and f"<option>{newest.name}</option>" in page
    assert page.count('value="It has the fix."') == 1


def test_the_undo_window_is_on_the_pages_of_the_rollout_and_the_model_while_it_is_open() -> None:
    rollout, stable = promoted(warm_s=7300)
    client = signed_in(make_user(team="search", role=Role.CI))
    model_page = reverse("model", args=[rollout.model.slug])
    for page in (page_of(client, rollout), client.get(model_page).content.decode()):
        assert f"Roll back to {stable.name}" in page and "closes <time" in page and "in 2 h" in page
    form = {"environment": "production", "reason": "Conversion fell."}
    answer = client.post(reverse("model_roll_back", args=[rollout.model.slug]), form)
    assert answer.headers["Location"] == reverse("rollout", args=[rollout.pk])  # where one watches it
    assert Route.objects.get(model=rollout.model).stable_id == stable.pk
    for page in (page_of(client, rollout), client.get(model_page).content.decode()):
        assert "Roll back to" not in page and "Conversion fell." in page


def test_what_was_reverted_is_not_told_as_promoted() -> None:
    rollout, _ = promoted()
    client, form = manager(), {"environment": "production", "reason": "Conversion fell."}
    client.post(reverse("model_roll_back", args=[rollout.model.slug]), form)
    assert view_of(Rollout.objects.get())["state"] == "reverted"
    for page in (
        page_of(client, rollout),
        *(client.get(reverse(name)).content.decode() for name in ("overview", "rollouts")),
    ):
        assert "</svg> reverted</span>" in page and "</svg> promoted</span>" not in page


def test_the_rollout_of_a_first_release_is_ended_and_never_rolled_back() -> None:
    rollout = put(started(), "paused", weight_bp=10_000)
    client = manager()
    assert "End the rollout" in page_of(client, rollout) and "Roll back" not in page_of(client, rollout)
    page = press(client, rollout, "abort", reason="Nobody else acts.")
    assert rollout.state == "rolling_back" and ": Nobody else acts. r1 keeps its traffic until another" in page
    engine_effects.finish_rollback(rollout, confirmed_at=None, fence=rollout.fence)
    rollout.refresh_from_db()
    assert "</svg> ended</span>" in page_of(client, rollout) and "rolled back" not in page_of(client, rollout)


def test_a_closed_undo_window_is_not_offered() -> None:
    rollout, _ = promoted(warm_s=-1)
    assert "Roll back to" not in page_of(manager(), rollout)


def test_a_freeze_and_wrong_answers_are_shown() -> None:
    rollout, _ = with_stable()
    for item, is_stable_wrong in (("cat instead of dog", False), ("which nobody knows", True)):
        facts = {"is_stable_wrong": is_stable_wrong}
        Mismatch.objects.create(rollout=rollout, at=timezone.now(), source="golden", summary=item, facts=facts)
    assert "Wrong answers" not in page_of(manager(), rollout)  # no guard watches them
    guards = [*rollout.policy["guards"], {"indicator": "wrong", "max_frac": 0.1}]
    put(rollout, "shadowing", policy={**rollout.policy, **frozen_now("Black Friday"), "guards": guards})
    page = page_of(manager(), rollout)
    assert "Changes are frozen" in page and "Black Friday" in page
    assert "cat instead of dog" in page and "which nobody knows" not in page  # stable misses that one too
    assert "Changes are frozen until" in press(manager(), rollout, "advance")


def test_judging_again_without_a_history_says_so(candidate: Release) -> None:
    rollout = actions.start_rollout(actor=make_actor(), candidate=candidate, environment=production())
    answer = manager().get(reverse("rollout_replay", args=[rollout.pk]), {"preset": "careful"})
    assert answer.status_code == 200 and "nothing to judge again" in answer.content.decode()
    assert signed_in(make_user(team="elsewhere")).get(reverse("rollout_replay", args=[rollout.pk])).status_code == 404


def test_a_second_look_is_told_with_its_crossing_and_begins_by_hand() -> None:
    second = {"looks": 2, "after_s": 3600, "alpha_second": 0.05}
    story = Story(second_look=second)
    story.until("shifting")
    story.turn()
    story.gateway.set_arm(str(story.candidate.digest), error_frac=0.6)
    rollout = story.until("second_look")
    boss = signed_in(story.admin)
    text = squeezed(page_of(boss, rollout))
    assert "second look" in text and "Look 1 of 2: Traffic taken away at 25 %:" in text
    assert "Begin now" in text and "The gateways still take its traffic away." in text
    for _ in range(10):
        rollout = story.turn()
        if "Begins again" in rollout.reason:
            break
    text = squeezed(page_of(boss, rollout))
    assert "Begins again" in text and "Its traffic was taken away for another look." in text  # why nothing advances
    assert any("look 1 of 2: Traffic taken away at 25 %:" in line for line in status_lines(view_of(rollout)))
    seen = view_of(rollout)["second_look"]
    assert seen["is_waiting"] and seen["begins_at"] is not None
    answer = Client(headers={"accept": "application/json"})
    answer.force_login(User.objects.get(pk=story.admin.user_id))
    assert answer.get(f"/api/v1/rollouts/{rollout.pk}").json()["second_look"]["look"] == 2
