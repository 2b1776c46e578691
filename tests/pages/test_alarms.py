"""The pages of alarms, and alarms on other pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.models import Event
from rollouts.actions.alarms import end_alarm
from rollouts.actions.control import begin_control
from rollouts.core.policy import Control
from rollouts.models import Alarm, Rollout, WatchRecord
from tests.pages.clients import signed_in
from tests.pages.markup import squeezed
from tests.support.worlds.alarm_setup import burning, counted
from tests.support.worlds.factories import (
    make_environment,
    make_model,
    make_release,
    make_replica,
    make_server,
    make_team,
    make_user,
)
from tests.support.worlds.rollout_setup import OBJECTIVES, production, promoted, put, serves

pytestmark = pytest.mark.django_db


def as_role(role: Role, team: str = "search") -> Any:
    return signed_in(make_user(team=team, role=role))


def page_of(client: Any, name: str, *args: Any, **query: str) -> str:
    answer = client.get(reverse(name, args=args), query)
    assert answer.status_code == 200
    return squeezed(answer.content.decode())


def test_the_alarm_s_page_leads_back_and_takes_a_person_s_word() -> None:
    rollout, stable = promoted()
    counted(rollout.model, bad=48, attempts=1200)
    alarm = burning(rollout.model)
    client = as_role(Role.RELEASE_MANAGER)
    page = page_of(client, "alarm", alarm.pk)
    assert f"Roll back to {stable.name}" in page and reverse("rollout_act", args=[rollout.pk, "abort"]) in page
    assert "48 of 1200 errors" in page and "burning" in page and "alarm.opened" in page
    refused = client.post(reverse("alarm_acknowledge", args=[alarm.pk]), {"version": 1, "reason": " "})
    assert refused.status_code == 422
    for verb, version, state in (("acknowledge", 1, "acknowledged"), ("close", 2, "closed")):
        form = {"version": version, "reason": "The disk of gpu-3."}
        assert client.post(reverse(f"alarm_{verb}", args=[alarm.pk]), form).status_code == 302
        assert Alarm.objects.get().state == state
        assert "The disk of gpu-3." in page_of(client, "alarm", alarm.pk)
    assert client.post(reverse("alarm_close", args=[alarm.pk]), {"version": 2, "reason": "Again."}).status_code == 412
    assert 'popovertarget="sheet-close"' not in page_of(client, "alarm", alarm.pk)


def test_an_alarm_is_muted_and_unmuted_on_its_page() -> None:
    rollout, _ = promoted()
    alarm = burning(rollout.model)
    client = as_role(Role.MODEL_TEAM)
    assert '<option value="24">24 hours</option>' in page_of(client, "alarm", alarm.pk)
    form = {"version": 1, "reason": "The vendor repairs it.", "hours": "24"}
    assert client.post(reverse("alarm_mute", args=[alarm.pk]), {**form, "hours": "9999"}).status_code == 422
    assert client.post(reverse("alarm_mute", args=[alarm.pk]), form).status_code == 302
    page = page_of(client, "alarm", alarm.pk)
    assert "<dt>Muted</dt>" in page and 'popovertarget="sheet-unmute"' in page and "sheet-mute" not in page
    assert "muted until" in page_of(client, "alarms")
    assert client.post(reverse("alarm_unmute", args=[alarm.pk]), {**form, "version": 2}).status_code == 302
    assert "<dt>Muted</dt>" not in page_of(client, "alarm", alarm.pk)
    assert as_role(Role.VIEWER).post(reverse("alarm_mute", args=[alarm.pk]), form).status_code == 403


def test_a_model_without_requests_says_for_how_long() -> None:
    rollout, _ = promoted()
    record = counted(rollout.model, bad=0, attempts=1200)
    told = {name: {**one, "asked_at": one["asked_at"] - 2400} for name, one in record.objectives.items()}
    WatchRecord.objects.update(objectives=told)
    page = page_of(as_role(Role.VIEWER), "model", rollout.model.slug)
    assert "no requests" in page and "for 40 min" in page


def test_two_clicks_lead_from_the_alarm_to_the_release_before() -> None:
    rollout, _ = promoted()
    alarm = burning(rollout.model)
    client = as_role(Role.RELEASE_MANAGER)
    assert reverse("alarm", args=[alarm.pk]) in page_of(client, "overview")
    client.post(reverse("rollout_act", args=[rollout.pk, "abort"]))
    assert Rollout.objects.get().state == "reverted"


def test_the_list_has_live_alarms_first_and_forgets_closed_ones() -> None:
    rollout, _ = promoted()
    client = as_role(Role.VIEWER)
    assert "No alarm is live" in page_of(client, "alarms") and "the watch reads" in page_of(client, "alarms")
    ticket = burning(rollout.model, tier="ticket")
    end_alarm(ticket, at=timezone.now(), reason="It is met again.")
    alarm = burning(rollout.model)
    page = page_of(client, "alarms")
    live, closed = (page.index(reverse("alarm", args=[pk])) for pk in (alarm.pk, ticket.pk))
    assert live < closed
    assert '<span class="badge bad" title="1 live">' in page
    assert reverse("alarm", args=[alarm.pk]) in page_of(client, "alarms", model=rollout.model.slug)
    assert "No alarm is like that" in page_of(client, "alarms", environment=make_environment("staging").slug)
    Alarm.objects.filter(pk=ticket.pk).update(closed_at=timezone.now() - timedelta(days=31))
    assert reverse("alarm", args=[ticket.pk]) not in page_of(client, "alarms")
    stranger = as_role(Role.RELEASE_MANAGER, team="elsewhere")
    assert reverse("alarm", args=[alarm.pk]) not in page_of(stranger, "alarms")
    assert stranger.get(reverse("alarm", args=[alarm.pk])).status_code == 404


def test_a_model_that_burns_is_shown_as_healthy_nowhere() -> None:
    model = make_model("sentiment", team=make_team("search"), objectives=OBJECTIVES)
    release = make_release(model)
    serves(release)
    make_server(make_replica(release, production(), state="ready"))
    slug, client = model.slug, as_role(Role.VIEWER)
    assert "healthy</span>" in page_of(client, "overview")
    counted(model, bad=0, attempts=4000)
    assert "met</span>" in page_of(client, "model", slug) and "burning" not in page_of(client, "model", slug)
    alarm = burning(model)
    for name, args in (("overview", ()), ("models", ()), ("model", (slug,))):
        page = page_of(client, name, *args)
        assert "burning" in page, name
        assert "healthy" not in page, name
    assert "1 alarm</a>" in page_of(client, "overview")
    page = page_of(client, "model", slug)
    assert "0 of 4000" in page and reverse("alarm", args=[alarm.pk]) in page and "48 of 1200 errors" in page


def test_without_counts_an_objective_is_not_judged() -> None:
    rollout, _ = promoted()
    page = page_of(as_role(Role.VIEWER), "model", rollout.model.slug)
    assert "not judged" in page and "not yet" in page


class TestUndoWindow:
    def held(self) -> Rollout:
        rollout, _ = promoted()
        policy = {**rollout.policy, "instant_window_s": 60, "undo_max_s": 7200}
        began = timezone.now() - timedelta(minutes=10)
        return put(
            rollout, "promoted", policy=policy, ended_at=began, undo_until=timezone.now() + timedelta(seconds=90)
        )

    def test_its_page_states_why_it_is_open_beyond_its_time(self) -> None:
        rollout = self.held()
        counted(rollout.model, bad=1, attempts=300)
        client = as_role(Role.MODEL_TEAM)
        page = page_of(client, "rollout", rollout.pk)
        assert "not every objective is proven to be met yet" in page and "at the latest" in page
        assert "1 of 300 errors" in page and "Close the undo window" not in page
        burning(rollout.model)
        page = page_of(client, "rollout", rollout.pk)
        assert "stays open, because an objective burns" in page and "at the latest" not in page
        assert "closes <time" not in page_of(client, "overview")

    def test_a_release_manager_closes_it_with_a_reason(self) -> None:
        rollout = self.held()
        client = as_role(Role.RELEASE_MANAGER)
        assert "Close the undo window" in page_of(client, "rollout", rollout.pk)
        address = reverse("rollout_act", args=[rollout.pk, "close_undo_window"])
        form = {"version": rollout.version}
        assert client.post(address, {**form, "reason": ""}).status_code == 422
        assert client.post(address, {**form, "reason": "It is night."}).status_code == 302
        reason = Event.objects.get(verb="rollout.undo_closed").reason
        assert reason in page_of(client, "rollout", rollout.pk).replace("&nbsp;", " ")


def test_a_control_is_named_and_only_the_undo_window_offers_the_way_back() -> None:
    rollout, before = promoted()
    begin_control(rollout, Control(500), actor=Actor.system("test"), fence=9)
    page = page_of(as_role(Role.RELEASE_MANAGER), "model", rollout.model.slug)
    assert "as its control" in page and f"Roll back to {before.name}" in page
    assert f"Roll back to {rollout.candidate.name}" not in page
