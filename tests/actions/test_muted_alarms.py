"""A muted alarm: nothing but its end is sent, it unmutes by itself, and who may acknowledge may mute."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.actions.jobs import enqueue
from ledger.core.errors import Invalid, Refused, Stale, StateChanged
from ledger.models import Event, Job
from ledger.queries import clock
from ledger.tasks import run_job
from notifications.actions import create_webhook, wake_alerts
from notifications.actions.alerts import ALERTS_JOB
from notifications.core.formats import ALERT_EVERY_S
from rollouts.actions.alarms import LONGEST_MUTE, end_alarm, end_mutes, mute, unmute
from rollouts.models import Alarm
from tests.support.servers.receiver import Receiver
from tests.support.worlds.alarm_setup import burning
from tests.support.worlds.factories import make_actor
from tests.support.worlds.rollout_setup import with_stable
from tests.support.worlds.webhook_setup import ENGINE, _private, receiver, send_all, subscribe  # noqa: F401

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def alarm() -> Alarm:
    return burning(with_stable()[1].model)


def muted(alarm: Alarm, actor: Actor = ENGINE, **over: Any) -> Alarm:
    given = {"expected_version": alarm.version, "reason": "known", "until": timezone.now() + HOUR, **over}
    return mute(actor=actor, alarm=alarm, **given)


def said(receiver: Receiver) -> list[str]:
    send_all()
    return [got.said["type"] for got in receiver.got]


def again(alarm: Alarm) -> Alarm:
    """Closed by the watch, and burning again at once."""
    end_alarm(alarm, at=clock.now(), reason="errors of r1 is within the objective again.")
    return burning(alarm.model)


def test_only_the_end_of_a_muted_alarm_is_sent(alarm: Alarm, receiver: Receiver) -> None:
    subscribe(receiver.url, verbs=["alarm.*"])
    alarm = again(muted(alarm))
    assert alarm.is_muted and said(receiver) == ["alarm.muted", "alarm.closed"]
    Alarm.objects.update(muted_until=timezone.now() - HOUR)
    end_mutes(), end_mutes()
    alarm.refresh_from_db()
    assert (alarm.muted_until, alarm.muted_by) == (None, "")
    assert said(receiver)[2:] == ["alarm.unmuted"] and Event.objects.get(verb="alarm.unmuted").actor == "system:watch"


def test_pagerduty_hears_when_a_mute_is_over(alarm: Alarm, receiver: Receiver) -> None:
    key = "0123456789abcdef0123456789ABCDEF"
    subscribe(receiver.url, verbs=["alarm.*"], format="pagerduty", routing_key=key)
    alarm = again(muted(alarm))
    send_all()
    assert [got.said["event_action"] for got in receiver.got] == ["resolve"]
    unmute(actor=ENGINE, alarm=alarm, expected_version=alarm.version, reason="repaired?")
    send_all()
    assert [got.said["event_action"] for got in receiver.got[1:]] == ["trigger"]
    assert len({got.said["dedup_key"] for got in receiver.got}) == 1


@pytest.mark.parametrize("until", [timedelta(0), -HOUR, LONGEST_MUTE + HOUR])
def test_a_mute_is_for_seven_days_at_most(alarm: Alarm, until: timedelta) -> None:
    with pytest.raises(Invalid):
        muted(alarm, until=timezone.now() + until)


def test_who_may_acknowledge_may_mute_with_a_reason(alarm: Alarm) -> None:
    team = alarm.model.team
    with pytest.raises(Refused):
        muted(alarm, make_actor(Role.CI, team=team))
    developer = make_actor(Role.MODEL_TEAM, team=team)
    with pytest.raises(Invalid):
        muted(alarm, developer, reason=" ")
    with pytest.raises(Stale):
        muted(alarm, developer, expected_version=9)
    found = muted(alarm, developer)
    assert found.is_muted and found.muted_by == developer.name
    event = Event.objects.get(verb="alarm.muted")
    assert event.facts["muted_until"] and developer.name in event.reason
    found = unmute(actor=developer, alarm=found, expected_version=found.version, reason="seen")
    with pytest.raises(StateChanged):
        unmute(actor=developer, alarm=found, expected_version=found.version, reason="seen")
    end_alarm(alarm, at=clock.now(), reason="errors of r1 is within the objective again.")
    alarm.refresh_from_db()
    with pytest.raises(StateChanged):
        muted(alarm, developer)


def test_alertmanager_is_told_each_minute_while_an_alarm_is_open(alarm: Alarm, receiver: Receiver) -> None:
    wake_alerts()
    assert not Job.objects.filter(kind=ALERTS_JOB["kind"]).exists()
    with pytest.raises(Invalid):
        create_webhook(actor=ENGINE, team=None, format="alertmanager", target=receiver.url, verbs=["rollout.*"])
    subscribe(receiver.url, verbs=["alarm.*"], format="alertmanager")
    wake_alerts(), wake_alerts()
    job = Job.objects.get(kind=ALERTS_JOB["kind"])
    run_job(str(job.pk))
    job.refresh_from_db()
    (got,) = receiver.got
    assert got.path == "/hook/api/v2/alerts" and got.said[0]["labels"]["severity"] == "page"
    assert job.state == "queued" and 50 < (job.due_at - timezone.now()).total_seconds() <= ALERT_EVERY_S
    muted(alarm)
    enqueue(**ALERTS_JOB, args={})
    Job.objects.filter(pk=job.pk).update(due_at=timezone.now())
    run_job(str(job.pk))
    job.refresh_from_db()
    assert job.state != "queued" and len(receiver.got) == 1
