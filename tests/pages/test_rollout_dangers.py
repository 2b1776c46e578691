"""Where a page could hurt: shutting that fails, opening by accident, saying what is not so, hiding what was."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Role
from rollouts import actions
from rollouts.actions.transitions import record
from rollouts.models import Approval, Rollout
from rollouts.queries import view_of
from rollouts.queries.rolled_back import rolled_back_before
from serving.models import Environment, Route
from sluicegate.cli.rollout import _Printed, status_line, status_lines
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_admin, make_user
from tests.support.worlds.rollout_setup import (
    awaiting,
    production,
    promoted,
    put,
    release_of,
    report_for,
    serves,
    with_stable,
)

pytestmark = pytest.mark.django_db


def manager() -> Client:
    client = Client()
    client.force_login(make_user(team="search", role=Role.RELEASE_MANAGER))
    return client


def page_of(client: Client, rollout: Rollout) -> str:
    return squeezed(client.get(reverse("rollout", args=[rollout.pk])).content.decode())


def press(client: Client, rollout: Rollout, verb: str, **form: Any) -> str:
    answer = client.post(reverse("rollout_act", args=[rollout.pk, verb]), form, follow=True)
    rollout.refresh_from_db()
    return squeezed(answer.content.decode())


# --- shutting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "state"), [("pause", "paused"), ("abort", "rolling_back"), ("cancel", "rolling_back")]
)
def test_what_shuts_needs_neither_the_version_nor_a_reason(verb: str, state: str) -> None:
    rollout, _ = with_stable()
    page = press(manager(), rollout, verb, version="1")
    assert rollout.state == state and "no reason was given." in rollout.reason
    assert f"The rollout is {state.replace('_', ' ')} now." in page
    before = rollout.version
    press(manager(), rollout, verb, reason="Me too.")  # somebody was faster
    assert (rollout.state, rollout.version) == (state, before)


def test_a_rollout_that_was_promoted_in_that_moment_goes_back_while_it_can() -> None:
    rollout, stable = promoted()
    press(manager(), rollout, "abort", reason="Errors.")
    assert rollout.state == "reverted" and Route.objects.get(model=rollout.model).stable_id == stable.pk
    rollout, stable = promoted(warm_s=-1, is_ready=False)
    said = press(manager(), rollout, "abort")
    assert (
        rollout.state == "promoted" and f"{stable.name}, the release before, is no longer warm: start a rollout" in said
    )


@pytest.mark.parametrize("state", ["shifting", "paused", "baking", "awaiting_approval", "rolling_back"])
def test_no_form_of_a_rollout_sends_anything_by_the_enter_key(state: str) -> None:
    rollout, _ = with_stable(approvals={"bake": 1})
    release_of(rollout.model)
    put(rollout, state, resume_state="shifting" if state == "paused" else "")
    page = page_of(manager(), rollout)
    forms = re.findall(r"<form[^>]*method=\"post\"[^>]*>.*?</form>", page.partition("<main")[2])
    assert len(forms) >= 1
    for form in forms:
        first = re.search(r"<button[^>]*>", form)
        assert first is not None and "disabled hidden" in first[0], form
    opening = [form for form in forms if re.search("/(approve|resume|advance|promote_now)/", form)]
    assert all(form.count("<button") == 3 for form in opening)  # that one, the verb, and not now


def test_every_button_is_there_in_every_state() -> None:
    rollout, _ = with_stable(approvals={"bake": 1})
    client, seen = manager(), []
    for state in ("shadowing", "shifting", "paused", "baking", "rolling_back", "stuck"):
        put(rollout, state)
        page = page_of(client, rollout)
        verbs = page[page.index('class="verbs"') : page.index('class="sentence"')]
        seen.append(
            re.findall(r'formaction="[^"]*/(\w+)/"', verbs) + re.findall(r'popovertarget="([\w-]+)"(?! pop)', verbs)
        )
    assert all(one == seen[0] for one in seen) and seen[0][:2] == ["abort", "pause"]


@pytest.mark.parametrize(
    ("address", "page"),
    [
        ("/rollouts/{pk}/abort/", "/rollouts/{pk}/"),
        ("/rollouts/{pk}/supersede/", "/rollouts/{pk}/"),
        ("/models/{slug}/roll-back/", "/models/{slug}/"),
        ("/models/{slug}/r/1/start/", "/models/{slug}/r/1/rollout/"),
        ("/models/{slug}/r/1/preview/", "/models/{slug}/r/1/rollout/"),
        ("/models/{slug}/r/1/waive/", "/models/{slug}/r/1/"),
        ("/webhooks/new/", "/webhooks/"),
    ],
)
def test_the_address_of_a_form_leads_to_its_page(address: str, page: str) -> None:
    rollout, _ = with_stable()
    named = {"pk": rollout.pk, "slug": rollout.model.slug}
    answer = manager().get(address.format(**named))
    assert answer.status_code == 302 and answer["Location"] == page.format(**named)
    assert manager().put(address.format(**named)).status_code == 405
    rollout.refresh_from_db()
    assert rollout.state == "shifting"


# --- what is so -------------------------------------------------------------------------------------------------------


def superseded() -> Rollout:
    """Proven up to the bake, which needs an approval, when its gates were run again."""
    rollout, _ = with_stable(approvals={"bake": 1})
    make_user("mia", team="search", role=Role.RELEASE_MANAGER)
    put(
        rollout,
        "shifting",
        step_index=len(rollout.effective_policy.steps) - 1,
        report=report_for(rollout.candidate),
        reason="Ready to go on, but bake needs 1 more approval.",
    )
    assert view_of(rollout)["blocked"] is None
    report_for(rollout.candidate)
    return rollout


def test_a_rollout_whose_gates_ran_again_says_that_it_cannot_go_on() -> None:
    rollout, client = superseded(), manager()
    blocked = view_of(rollout)["blocked"]
    assert blocked["code"] == "report_superseded" and "no further stage can be approved" in blocked["message"]
    page = page_of(client, rollout)
    assert "It cannot go on." in page and blocked["next_step"] in page
    assert (
        'id="sheet-approve"' not in page and 'id="sheet-promote_now"' not in page and page.count("Ready to go on") == 0
    )
    start = reverse("release_rollout", args=[rollout.model.slug, rollout.candidate.number])
    assert f'href="{start}">start it again' in page and "Roll back to r1</button>" in page
    assert f"It cannot go on: {blocked['message']}" in status_line(view_of(rollout))
    refused = press(client, rollout, "approve", version=rollout.version, reason="Yes.", stage="bake")
    assert "(report_superseded)" in refused and not Approval.objects.exists()
    put(rollout, "rolled_back")
    assert view_of(rollout)["blocked"] is None


@pytest.mark.parametrize("code", ["report_superseded", "nobody_may_approve"])
def test_what_only_a_later_stage_lacks_is_a_notice_and_the_rollout_goes_on(code: str) -> None:
    rollout, _ = with_stable(approvals={"bake": 1})
    put(rollout, "shifting", report=report_for(rollout.candidate), reason="Holding at 25 %: 40 of 100 samples.")
    client = manager() if code == "report_superseded" else Client()
    if code == "report_superseded":
        report_for(rollout.candidate)
    else:
        client.force_login(make_user(team="search", role=Role.MODEL_TEAM))
    assert (
        len(rollout.effective_policy.steps) > rollout.step_index + 1
    )  # the next stage is a step, and needs no approval
    for state, resume_state in (("shifting", ""), ("paused", "shifting")):
        put(rollout, state, resume_state=resume_state)
        view = view_of(rollout)
        assert view["blocked"] is None
        assert (view["will_stop"]["at_stage"], view["will_stop"]["code"]) == ("bake", code)
        page = page_of(client, rollout)
        assert "cannot go on" not in page and "Holding at 25 %: 40 of 100 samples." in page
        assert f"It will stop before bake: {view['will_stop']['message'].split('(')[0]}" in page
        assert 'id="sheet-approve"' not in page and 'id="sheet-promote_now"' not in page
        said = status_lines(view)
        assert said[0].endswith("Holding at 25 %: 40 of 100 samples.")
        assert said[1].startswith(f"  It will stop before bake: {view['will_stop']['message']}")
        assert next(_Printed().news(view, 0.0)) == said[1]
    put(rollout, "shifting", step_index=len(rollout.effective_policy.steps) - 1)
    view = view_of(rollout)
    assert (view["blocked"]["code"], view["will_stop"]) == (code, None)


def test_what_nobody_may_approve_cannot_go_on_either() -> None:
    rollout, _, other = awaiting(approvals={"start": 2})
    assert view_of(rollout)["blocked"]["code"] == "nobody_may_approve"
    make_user("mia", team="search", role=Role.RELEASE_MANAGER)
    assert view_of(rollout)["blocked"] is None
    actions.approve(actor=other, rollout=rollout, expected_version=rollout.version)
    assert view_of(Rollout.objects.get())["blocked"] is None  # mia may give the second


def test_a_pinned_report_that_is_not_as_it_was_signed_is_told() -> None:
    rollout, _, _ = awaiting()
    Environment.objects.update(needs_passed_report=True)
    put(
        rollout,
        "awaiting_approval",
        report=report_for(rollout.candidate, forged={"verdict": "passed", "signature": "x"}),
    )
    rollout = Rollout.objects.get()
    assert view_of(rollout)["blocked"]["code"] == "report_not_valid"


def test_a_closed_undo_window_says_what_to_do_instead() -> None:
    rollout, stable = promoted(warm_s=600)
    client = manager()
    live = reverse("rollout_live", args=[rollout.pk])
    assert 'hx-trigger="refresh"' in client.get(live).content.decode()
    put(rollout, "promoted", undo_until=timezone.now() - timedelta(seconds=1))
    start = reverse("release_rollout", args=[rollout.model.slug, stable.number])
    for address in (live, reverse("model", args=[rollout.model.slug])):
        page = squeezed(client.get(address).content.decode())
        assert "The undo window has closed." in page and f'href="{start}">{stable.name}' in page
        assert "Roll back to" not in page
    assert "hx-get" not in client.get(live).content.decode()
    serves(stable)  # another way back was found
    assert "The undo window" not in client.get(live).content.decode()


def test_fragments_of_an_ended_session_are_no_sign_in_pages() -> None:
    rollout, _ = with_stable()
    for name, args in (("rollout_live", [rollout.pk]), ("overview_live", []), ("model_live", [rollout.model.slug])):
        answer = Client().get(reverse(name, args=args))
        assert answer.status_code == 401 and answer.content == b"" and "Location" not in answer
        assert manager().get(reverse(name, args=args)).status_code == 200


def test_a_fragment_brings_the_title_of_the_tab() -> None:
    rollout, _ = with_stable()
    client = manager()
    assert client.get(reverse("rollout_live", args=[rollout.pk])).content.decode().count("<title>▸ shifting · ") == 1
    assert page_of(client, rollout).count("<title>") == 1
    put(rollout, "rolled_back")
    assert "<title>✕ rolled back · " in client.get(reverse("rollout_live", args=[rollout.pk])).content.decode()


# --- what was ---------------------------------------------------------------------------------------------------------


def test_an_ended_rollout_is_in_no_stage_and_tells_who_let_it_in() -> None:
    rollout, requester, other = awaiting(approvals={"start": 1, "bake": 1})
    actions.approve(actor=other, rollout=rollout, expected_version=rollout.version)
    rollout = Rollout.objects.get()
    record(rollout, actor=requester, action="start", reason="Begun.", facts={"to_index": 0})
    put(rollout, "rolled_back", step_index=0, report=report_for(rollout.candidate))  # what made the yes void
    view = view_of(rollout)
    assert [(one["stage"], one["is_entered"], one["given"], one["by"]) for one in view["approval_stages"]] == [
        ("start", True, 1, [other.name]), ("bake", False, 0, []),
    ]  # fmt: skip
    assert [step["is_current"] for step in view["steps"]] == [False] * len(view["steps"])
    assert [step["ended_here"] for step in view["steps"]] == [True] + [False] * (len(view["steps"]) - 1)
    (approval,) = view["approvals"]
    assert approval["was_used"] and not approval["counts"]
    page = page_of(manager(), rollout)
    assert 'aria-current="step"' not in page and "ended here:" in page
    assert page.count(">entered<") == 1 and page.count(">never entered<") == 1 and "it let r2 in" in page


def test_a_promoted_rollout_entered_every_stage() -> None:
    rollout, _ = promoted()
    put(rollout, "promoted", ended_at=timezone.now(), policy={**rollout.policy, "approvals": {"bake": 1, "promote": 1}})
    view = view_of(rollout)
    assert all(one["is_entered"] for one in view["approval_stages"]) and all(step["is_done"] for step in view["steps"])


def test_a_tripped_guard_does_not_look_like_a_proven_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout, _ = with_stable()
    live = view_of(rollout)
    (tripped, proven, *_) = live["guards"] * 2
    live["guards"] = [
        {**tripped, "worse_progress": 1.0, "is_worse": True, "fine_progress": 0.0},
        {**proven, "worse_progress": 0.0, "fine_progress": 1.0, "is_fine": True},
    ]
    monkeypatch.setattr("web.pages.rollouts.view_with", lambda *_: live)
    bad, fine = page_of(manager(), rollout).split('class="guards"')[1].split("</li>")[:2]
    assert 'progress class="bad"' in bad and "</svg> worse</span> than stable" in bad and "fine</span>" not in bad
    assert 'progress class="ok"' in fine and "</svg> fine</span>" in fine and "worse</span>" not in fine


def rolled_back_once() -> Rollout:
    rollout, _ = with_stable()
    record(rollout, actor=make_admin(), action="roll_back", reason="Errors are worse: 15 of 95.")
    return put(rollout, "rolled_back", reason="Errors are worse: 15 of 95. Every gateway has acknowledged weight 0.")


def test_a_release_that_was_rolled_back_in_is_marked_wherever_it_is_chosen() -> None:
    rollout, client = rolled_back_once(), manager()
    slug, number = rollout.model.slug, rollout.candidate.number
    rows = squeezed(client.get(reverse("model", args=[slug])).content.decode()).split("<tr>")[1:]
    (row,) = [row for row, _, _ in (one.partition("</tr>") for one in rows) if "/r/2/" in row and "sealed" in row]
    assert f'<a href="/rollouts/{rollout.pk}/"><span class="word bad">' in row and "in production" in row
    page = squeezed(client.get(reverse("release", args=[slug, number])).content.decode())
    assert "rolled this release back" in page and "Errors are worse: 15 of 95." in page
    form = {"environment": "production", "policy": "own"}
    preview = squeezed(client.post(reverse("release_preview", args=[slug, number]), form).content.decode())
    assert "<code>rolled_back_before</code>" in preview and "Errors are worse: 15 of 95." in preview
    # r1 was not
    assert "rolled_back_before" not in client.post(reverse("release_preview", args=[slug, 1]), form).content.decode()


def test_a_later_promotion_makes_up_for_it_and_other_environments_are_their_own() -> None:
    rollout = rolled_back_once()
    (before,) = rolled_back_before(rollout.candidate, production())
    assert (before.rollout, before.environment, before.why) == (rollout.pk, "production", "Errors are worse: 15 of 95.")
    other = Environment.objects.create(slug="canary", title="Canary")
    assert rolled_back_before(rollout.candidate, other) == []
    columns = {"model": rollout.model, "candidate": rollout.candidate, "policy": {}, "policy_digest": ""}
    Rollout.objects.create(environment=other, state="promoted", **columns)
    assert rolled_back_before(rollout.candidate)  # made up for elsewhere alone
    Rollout.objects.create(environment=production(), state="promoted", **columns)
    assert rolled_back_before(rollout.candidate) == []


def test_a_first_release_that_was_ended_was_not_rolled_back_in() -> None:
    rollout, _ = with_stable()
    put(rollout, "rolled_back", stable=None)
    assert rolled_back_before(rollout.candidate) == []


def test_the_release_that_serves_everything_is_not_offered_in_blue() -> None:
    release = release_of()
    production()
    serves(release)
    page = squeezed(manager().get(reverse("release", args=[release.model.slug, 1])).content.decode())
    assert "r1 serves production already" in page and "Roll it out" not in page
