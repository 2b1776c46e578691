"""Incidents: opened by alarms and people, with the evidence of that moment, and closed with a result."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Role
from insights.actions.incidents import add_note, close, open_for_alarms, open_incident
from insights.models import Incident
from insights.queries.incidents import incidents_for, timeline
from ledger.core.errors import Invalid, Refused, Stale, StateChanged
from ledger.models import Event
from rollouts.core.recent_traffic import RecentTraffic
from rollouts.models import Rollout, TrafficRecord
from serving.models import ServerLog
from tests.support.worlds.alarm_setup import burning
from tests.support.worlds.factories import make_actor, make_environment, make_replica, make_server, make_team
from tests.support.worlds.rollout_setup import promoted

pytestmark = pytest.mark.django_db


@pytest.fixture
def rollout() -> Rollout:
    return promoted()[0]


def manager() -> Any:
    return make_actor(Role.RELEASE_MANAGER)


def test_an_alarm_that_pages_opens_one_incident_with_the_evidence_of_that_moment(rollout: Rollout) -> None:
    now = timezone.now()
    traffic = RecentTraffic().after(now.timestamp() - 60, 120, 7, RecentTraffic().classes, 3)
    TrafficRecord.objects.create(
        environment=rollout.environment, model=rollout.model, traffic=traffic.to_json(), at=timezone.now()
    )
    server = make_server(make_replica(rollout.candidate, rollout.environment, state="ready"))
    ServerLog.objects.create(server=server, text="x" * 20_000 + "the end", at=now)
    burning(rollout.model, objective="slow_250ms", tier="ticket")
    open_for_alarms()
    assert not Incident.objects.exists()
    burning(rollout.model)
    open_for_alarms()
    open_for_alarms()
    incident = Incident.objects.get()
    assert (incident.title, incident.release, incident.opened_by) == (
        "errors at 4.0 times the objective", rollout.candidate, "system:alarms",
    )  # fmt: skip
    kept = incident.kept
    assert [(one["requests"], one["errors"], one["shed"]) for one in kept["minutes"]] == [(120, 7, 3)]
    assert {(one["tier"], one["bad"]) for one in kept["alarms"]} == {("page", 48), ("ticket", 48)}
    assert kept["log"]["text"].endswith("the end") and len(kept["log"]["text"]) == 16_000
    assert kept["replicas"][0]["ordinal"] == 0


def test_an_incident_that_a_person_closed_does_not_open_again_for_the_same_alarm(rollout: Rollout) -> None:
    alarm = burning(rollout.model)
    open_for_alarms()
    close(actor=manager(), incident=Incident.objects.get(), expected_version=1, reason="A disk was full.")
    open_for_alarms()
    incident = Incident.objects.get()
    assert (incident.state, incident.result) == ("closed", "A disk was full.")
    alarm.opened_at = timezone.now() + timedelta(seconds=5)  # it burns again
    alarm.save()
    open_for_alarms()
    assert Incident.objects.count() == 2


def test_a_person_opens_notes_and_closes(rollout: Rollout) -> None:
    where = {"model": rollout.model, "environment": rollout.environment}
    with pytest.raises(Refused):
        open_incident(actor=make_actor(Role.VIEWER), title="It is slow.", **where)
    with pytest.raises(Invalid):
        open_incident(actor=manager(), title=" \n ", **where)
    incident = open_incident(actor=manager(), title="It is\n slow.", **where)
    assert incident.title == "It is slow."
    with pytest.raises(StateChanged) as refused:
        open_incident(actor=manager(), title="It is slow again.", **where)
    assert refused.value.facts["incident"] == incident.pk and Incident.objects.count() == 1
    with pytest.raises(Stale):
        add_note(actor=manager(), incident=incident, expected_version=2, reason="gpu-3 is hot.")
    add_note(actor=manager(), incident=incident, expected_version=1, reason="gpu-3 is hot.")
    with pytest.raises(Invalid):
        close(actor=manager(), incident=incident, expected_version=2, reason=" ")
    close(actor=manager(), incident=incident, expected_version=2, reason="A fan was broken.")
    with pytest.raises(StateChanged):
        close(actor=manager(), incident=incident, expected_version=3, reason="Twice.")
    add_note(actor=manager(), incident=incident, expected_version=3, reason="The fan was replaced.")
    told = Event.objects.filter(subject_type="incident").order_by("seq").values_list("verb", "reason")
    assert list(told) == [
        ("incident.opened", "It is slow."), ("incident.noted", "gpu-3 is hot."), ("incident.closed", "A fan was broken."),
        ("incident.noted", "The fan was replaced."),
    ]  # fmt: skip


def test_the_timeline_has_what_happened_to_the_model_there_and_what_was_noted_later(rollout: Rollout) -> None:
    alarm = burning(rollout.model)
    open_for_alarms()
    incident = Incident.objects.get()
    elsewhere = make_environment("staging")
    other = open_incident(actor=manager(), model=rollout.model, environment=elsewhere, title="Staging is slow.")
    close(actor=manager(), incident=incident, expected_version=1, reason="A disk was full.")
    incident.refresh_from_db()
    add_note(actor=manager(), incident=incident, expected_version=2, reason="The disk is new.")
    verbs = [one.verb for one in timeline(incident)]
    assert verbs[-3:] == ["incident.opened", "incident.closed", "incident.noted"]
    assert "alarm.opened" in verbs and str(alarm.pk) in [one.subject_id for one in timeline(incident)]
    assert "alarm.opened" not in [one.verb for one in timeline(other)]


def test_who_does_not_see_the_model_sees_no_incident(rollout: Rollout) -> None:
    burning(rollout.model)
    open_for_alarms()
    make_team("others")
    assert not incidents_for(make_actor(Role.MODEL_TEAM, team="others")).exists()
    assert incidents_for(manager()).exists()


def test_an_alarm_that_came_while_an_incident_was_open_opens_none_when_that_is_closed(rollout: Rollout) -> None:
    first = open_incident(actor=manager(), model=rollout.model, environment=rollout.environment, title="It is slow.")
    burning(rollout.model)
    open_for_alarms()
    close(actor=manager(), incident=first, expected_version=1, reason="A disk was full.")
    open_for_alarms()
    assert Incident.objects.count() == 1


def test_a_muted_alarm_opens_none(rollout: Rollout) -> None:
    alarm = burning(rollout.model)
    alarm.muted_until = timezone.now() + timedelta(hours=1)
    alarm.save()
    open_for_alarms()
    assert not Incident.objects.exists()
