"""Slack, Teams and PagerDuty at the other end: what arrives there, what is kept secret, and in which order alerts go."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from typing import Any

import pytest

from accounts.core.access import Role
from ledger.core.errors import Invalid, StateChanged
from ledger.models import Event
from notifications import actions
from notifications.dispatcher import outbound_message, rounds
from notifications.models import Delivery, Webhook
from tests.support.house.notification_schemas import problems
from tests.support.servers.receiver import Receiver
from tests.support.worlds.factories import make_actor, make_team
from tests.support.worlds.webhook_setup import ENGINE, S, _private, happen, move_clock, receiver, send_all  # noqa: F401

pytestmark = pytest.mark.django_db
KEY = "0123456789abcdef0123456789ABCDEF"
AT = "https://sluicegate.example.com"
FORMATS = ["slack", "teams", "pagerduty"]


def subscribe(form: str, receiver: Receiver, **over: Any) -> Webhook:
    key = {"routing_key": KEY} if form == "pagerduty" else {}
    given = {"team": None, "format": form, "target": receiver.url, "verbs": ["rollout.*"], **key, **over}
    row, secret = actions.create_webhook(actor=ENGINE, **given)
    assert secret == "", "nothing is signed, so there is nothing to show"
    return row


@pytest.mark.parametrize("form", FORMATS)
def test_what_arrives_is_what_the_service_takes_and_is_not_signed(form: str, receiver: Receiver, settings: Any) -> None:
    settings.PUBLIC_URL = AT
    subscribe(form, receiver)
    happen("rollout.stuck", reason="<b>& the way back</b>", facts={"model": "sentiment", "candidate": "r2"})
    assert send_all() == 1
    (got,) = receiver.got
    assert problems(form, got.said) == []
    assert got.path == "/hook" and got.headers["content-type"] == "application/json"
    assert not [name for name in got.headers if name.startswith(("webhook-", "sluicegate-"))]
    assert f"{AT}/rollouts/17/" in got.body.decode() and "sentiment r2 is stuck" in got.body.decode()


@pytest.mark.parametrize("form", FORMATS)
def test_a_test_is_in_its_form_and_a_replay_sends_the_same_bytes(form: str, receiver: Receiver) -> None:
    row = subscribe(form, receiver)
    assert rounds.send_test(actor=ENGINE, webhook=row).state == S.DELIVERED
    happen("rollout.stuck")
    send_all()
    assert actions.replay_delivery(actor=ENGINE, delivery=Delivery.objects.get(event__isnull=False))
    send_all()
    test, first, again = receiver.got
    assert problems(form, test.said) == [] and first.body == again.body != test.body
    assert (test.said["event_action"] if form == "pagerduty" else "resolve") == "resolve"


@pytest.mark.parametrize("form", FORMATS)
def test_the_secret_is_nowhere_but_encrypted(form: str, receiver: Receiver) -> None:
    row = subscribe(form, receiver)
    secret = KEY if form == "pagerduty" else "/hook"
    happen("rollout.stuck")
    send_all()
    stored = " ".join(str(value) for value in Webhook.objects.values_list().get(pk=row.pk))
    assert secret not in stored and len(row.fingerprint) == 8
    assert secret not in " ".join(str(list(Event.objects.values_list("facts", "reason"))))
    message = outbound_message.message_of(Delivery.objects.select_related("webhook", "event").get())
    assert secret not in repr(message) and secret not in outbound_message.example_of(row)
    assert problems(form, receiver.got[0].said) == []


@pytest.mark.parametrize("form", ["slack", "teams"])
def test_two_channels_are_told_apart_and_one_is_taken_once(form: str, receiver: Receiver) -> None:
    one = subscribe(form, receiver, target=f"{receiver.url}/one")
    two = subscribe(form, receiver, target=f"{receiver.url}/two")
    assert one.target == two.target == f"http://127.0.0.1:{receiver.port}/…" and one.fingerprint != two.fingerprint
    with pytest.raises(StateChanged, match="this target already"):
        subscribe(form, receiver, target=f"{receiver.url}/one")
    changed = actions.change_webhook(
        actor=ENGINE, webhook=one, expected_version=1, changes={"target": f"{receiver.url}/three"}
    )
    assert changed.version == 2 and changed.fingerprint not in {one.fingerprint, two.fingerprint}
    rounds.send_test(actor=ENGINE, webhook=changed)
    assert receiver.got[-1].path == "/hook/three"


def test_another_key_takes_the_place_of_the_first(receiver: Receiver) -> None:
    row = subscribe("pagerduty", receiver)
    actions.change_webhook(actor=ENGINE, webhook=row, expected_version=1, changes={"routing_key": KEY[::-1]})
    row.refresh_from_db()
    rounds.send_test(actor=ENGINE, webhook=row)
    assert receiver.got[-1].said["routing_key"] == KEY[::-1] and row.target == receiver.url


def test_pagerduty_s_own_address_is_taken_where_none_is_named(receiver: Receiver) -> None:
    row, _ = actions.create_webhook(
        actor=ENGINE, team=None, format="pagerduty", routing_key=KEY, verbs=["rollout.stuck"]
    )
    assert row.target == "https://events.pagerduty.com/v2/enqueue"


def test_only_what_wakes_and_its_end_go_to_pagerduty(receiver: Receiver) -> None:
    row = subscribe("pagerduty", receiver, verbs=["*"])
    for verb in (
        "rollout.held",
        "rollout.rolling_back",
        "rollout.stuck",
        "rollout.approval_requested",
        "rollout.rolled_back",
    ):
        happen(verb)
    send_all()
    assert [got.said["event_action"] for got in receiver.got] == ["trigger", "resolve"]
    assert actions.replay_since(actor=ENGINE, webhook=row, since=row.created_at) == 2


def test_no_trigger_comes_after_its_resolve(receiver: Receiver) -> None:
    """The first attempt fails and waits; what ends it must wait as well, and another rollout's alert must not."""
    subscribe("pagerduty", receiver)
    receiver.answers = [503]
    happen("rollout.stuck"), happen("rollout.rolled_back"), happen("rollout.stuck", subject_id=18)
    send_all()
    assert [(got.said["event_action"], got.said["dedup_key"][-2:]) for got in receiver.got] == [
        ("trigger", "17"), ("trigger", "18"),
    ]  # fmt: skip
    move_clock(minutes=1)
    send_all()
    assert [got.said["event_action"] for got in receiver.got[2:]] == ["trigger", "resolve"]
    assert not Delivery.objects.exclude(state=S.DELIVERED).exists()


def test_the_alarms_of_an_objective_go_in_their_order(receiver: Receiver) -> None:
    """They share an alert, so an end must not come after the next beginning."""
    subscribe("pagerduty", receiver, verbs=["alarm.*"])
    receiver.answers = [503]
    for verb, number in (("alarm.opened", 7), ("alarm.closed", 7), ("alarm.opened", 8)):
        happen(verb, subject_type="alarm", subject_id=number)
    send_all()
    move_clock(minutes=1)
    send_all()
    assert [got.said["event_action"] for got in receiver.got] == ["trigger", "trigger", "resolve", "trigger"]


def test_a_secret_that_cannot_be_read_says_what_to_do(receiver: Receiver, settings: Any) -> None:
    row = subscribe("slack", receiver)
    settings.SECRET_KEY = "another one, which is long enough to be one"
    tried = rounds.send_test(actor=ENGINE, webhook=row).tries.get()
    assert "Write the address or the routing key into the webhook anew" in tried.error and receiver.got == []


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"format": "slack", "target": "https://hooks.slack.com/triggers/1"}, "no incoming webhook of Slack"),
        ({"format": "teams", "target": "https://example.com"}, "has no path"),
        ({"format": "pagerduty", "routing_key": "short"}, "32 letters and digits"),
        ({"format": "pagerduty", "routing_key": KEY, "verbs": ["rollout.promoted"]}, "pages for none"),
        ({"format": "slack", "target": "https://a.example/x", "routing_key": KEY}, "Only PagerDuty"),
        ({"kind": "email", "format": "slack", "target": "a@example.com"}, "An e-mail has no format"),
        ({"format": "slack", "target": "http://169.254.169.254/latest"}, "never connects to"),
        ({"format": "teams", "target": "https://10.0.0.7/x"}, "private address"),
        ({"format": "pagerduty", "target": "http://127.0.0.1:9/x", "routing_key": KEY}, "private address"),
    ],
)
def test_what_is_refused(over: dict[str, Any], says: str) -> None:
    actor = make_actor(Role.MODEL_TEAM, team=make_team("search"))
    with pytest.raises(Invalid, match=says):
        actions.create_webhook(actor=actor, **{"team": "search", "verbs": ["rollout.*"], **over})
    assert not Webhook.objects.exists()


def test_where_a_name_leads_is_looked_at_when_it_is_sent(receiver: Receiver, settings: Any) -> None:
    row = subscribe("slack", receiver, target=f"http://localhost:{receiver.port}/hook")
    settings.WEBHOOKS_ALLOW_PRIVATE = False
    tried = rounds.send_test(actor=ENGINE, webhook=row).tries.get()
    assert "is a private address" in tried.error and receiver.got == []


def test_nothing_of_a_service_can_be_rotated_here(receiver: Receiver) -> None:
    row = subscribe("slack", receiver)
    with pytest.raises(Invalid, match="not signed"):
        actions.rotate_secret(actor=ENGINE, webhook=row, expected_version=1)
