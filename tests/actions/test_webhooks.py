"""Webhooks: what they get and how it is signed, who may manage them, and what their forms refuse."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from accounts.core.access import Actor, Role
from audit.queries import visible_events
from ledger.core.errors import DomainError, Invalid, NotFound, Refused, Stale, StateChanged
from ledger.core.verbs import EventVerb
from ledger.models import Event
from notifications import actions
from notifications.actions import deliveries
from notifications.dispatcher import outbound_message, rounds
from notifications.models import Delivery, Webhook
from notifications.queries import deliveries_of, get_delivery, get_webhook, webhooks_of
from tests.support.servers.receiver import Receiver
from tests.support.worlds.factories import make_actor, make_model, make_team
from tests.support.worlds.webhook_setup import (  # noqa: F401
    ENGINE,
    S,
    _private,
    admin,
    happen,
    move_clock,
    only,
    receiver,
    send_all,
    subscribe,
)

pytestmark = pytest.mark.django_db


class TestSending:
    def test_one_event_is_one_signed_post(self, receiver: Receiver) -> None:
        row, secret = actions.create_webhook(actor=ENGINE, team=None, target=receiver.url, verbs=["rollout.*"])
        event = happen("rollout.rolled_back", from_state="rolling_back", to_state="rolled_back", reason="slow")
        assert send_all() == 1
        (got,) = receiver.got
        assert got.path == "/hook" and got.is_signed_with(secret) and not got.is_signed_with("whsec_" + "A" * 44)
        delivery = only()
        assert (delivery.state, delivery.attempts, delivery.event) == (S.DELIVERED, 1, event)
        assert got.id == got.headers["sluicegate-delivery"] == str(delivery.pk)
        assert got.headers["content-type"] == "application/json"
        assert got.headers["sluicegate-event"] == "rollout.rolled_back"
        assert got.said["type"] == "rollout.rolled_back"
        assert got.said["data"]["seq"] == event.seq and got.said["data"]["hash"] == event.hash
        (tried,) = delivery.tries.all()
        assert (tried.number, tried.status_code, tried.error) == (1, 204, "")
        assert tried.ended_at is not None and tried.duration_ms is not None
        assert send_all() == 0 and row.pk == delivery.webhook_id

    def test_a_webhook_for_rollouts_gets_one_delivery_for_each_of_their_events(self, receiver: Receiver) -> None:
        subscribe(receiver.url)
        verbs = [verb for verb in EventVerb if verb.startswith("rollout.")]
        wanted = [happen(verb).seq for verb in verbs for _ in range(2)]
        happen("route.set"), happen("model.created")
        assert send_all() == len(wanted)
        assert receiver.seqs == wanted
        assert Delivery.objects.filter(state=S.DELIVERED).count() == len(wanted)
        assert len({got.id for got in receiver.got}) == len(wanted)

    def test_it_starts_with_what_happens_after_it_was_made(self, receiver: Receiver) -> None:
        happen()
        subscribe(receiver.url)
        assert send_all() == 0
        event = happen()
        send_all()
        assert receiver.seqs == [event.seq]

    def test_an_event_that_was_undone_is_not_told(self, receiver: Receiver) -> None:
        subscribe(receiver.url)
        with transaction.atomic():
            happen()
            transaction.set_rollback(True)
        assert send_all() == 0

    def test_one_that_is_off_gets_nothing_then_and_nothing_of_it_later(self, receiver: Receiver) -> None:
        row = subscribe(receiver.url)
        row = actions.change_webhook(
            actor=ENGINE, webhook=row, expected_version=row.version, changes={"is_active": False}
        )
        missed = happen()
        assert send_all() == 0
        row = actions.change_webhook(
            actor=ENGINE, webhook=row, expected_version=row.version, changes={"is_active": True}
        )
        assert send_all() == 0
        later = happen()
        send_all()
        assert receiver.seqs == [later.seq]
        assert actions.replay_since(actor=ENGINE, webhook=row, since=missed.at) == 2
        send_all()
        assert receiver.seqs == [later.seq, missed.seq, later.seq]

    def test_both_secrets_sign_until_the_old_one_has_had_its_time(self, receiver: Receiver) -> None:
        row, old = actions.create_webhook(actor=ENGINE, team=None, target=receiver.url, verbs=["*"])
        row, new = actions.rotate_secret(actor=ENGINE, webhook=row, expected_version=1, overlap_s=60)
        rounds.send_test(actor=ENGINE, webhook=row)
        Webhook.objects.update(previous_until=timezone.now() - timedelta(seconds=1))
        row.refresh_from_db()
        rounds.send_test(actor=ENGINE, webhook=row)
        during, later = receiver.got
        assert during.is_signed_with(old) and during.is_signed_with(new)
        assert later.is_signed_with(new) and not later.is_signed_with(old)
        row, newest = actions.rotate_secret(actor=ENGINE, webhook=row, expected_version=row.version, overlap_s=0)
        rounds.send_test(actor=ENGINE, webhook=row)
        assert receiver.got[-1].is_signed_with(newest) and not receiver.got[-1].is_signed_with(new)

    def test_the_database_holds_no_secret(self, receiver: Receiver) -> None:
        row, old = actions.create_webhook(actor=ENGINE, team=None, target=receiver.url, verbs=["*"])
        row, new = actions.rotate_secret(actor=ENGINE, webhook=row, expected_version=1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT row_to_json(s)::text FROM notifications_webhook s")
            stored = cursor.fetchone()[0]
        told = str(list(Event.objects.values("facts", "reason")))
        assert not any(secret[6:] in text for secret in (old, new) for text in (stored, told))
        assert outbound_message.secrets_of(row) == (new, old)
        assert new not in repr(outbound_message.message_of(Delivery(webhook=row, created_at=timezone.now())))

    def test_another_key_of_the_installation_is_a_sentence(self, receiver: Receiver, settings: Any) -> None:
        row = subscribe(receiver.url)
        known, settings.SECRET_KEY = settings.SECRET_KEY, "another one altogether, quite long enough"
        tried = rounds.send_test(actor=ENGINE, webhook=row).tries.get()
        assert "SLUICEGATE_SECRET_KEY" in tried.error and "Rotate the secret" in tried.error
        settings.SECRET_KEY_FALLBACKS = [known]
        assert rounds.send_test(actor=ENGINE, webhook=row).state == S.DELIVERED


class TestTestButton:
    def test_it_sends_at_once_and_shows_how_it_went(self, receiver: Receiver) -> None:
        row, secret = actions.create_webhook(actor=ENGINE, team=None, target=receiver.url, verbs=["rollout.*"])
        delivery = rounds.send_test(actor=ENGINE, webhook=row)
        (got,) = receiver.got
        assert got.said["type"] == "webhook.test" and got.said["data"]["seq"] is None and got.is_signed_with(secret)
        assert (delivery.state, delivery.tries.get().status_code) == (S.DELIVERED, 204)

    def test_it_is_tried_once(self, receiver: Receiver) -> None:
        row = subscribe(receiver.url)
        receiver.always = 500
        delivery = rounds.send_test(actor=ENGINE, webhook=row)
        assert delivery.state == S.GAVE_UP
        move_clock(days=1)
        assert send_all() == 0
        assert not Event.objects.filter(verb="webhook.gave_up").exists()

    def test_one_that_nobody_recorded_is_sent_by_the_worker(self, receiver: Receiver) -> None:
        row = subscribe(receiver.url)
        deliveries.start_test(actor=ENGINE, webhook=row)
        assert send_all() == 0
        move_clock(minutes=2)
        assert send_all() == 1
        assert Delivery.objects.get().state == S.DELIVERED


class TestScope:
    def test_a_team_gets_what_it_may_read(self, receiver: Receiver) -> None:
        make_model("sentiment", team=make_team("search"))
        make_model("prices", team=make_team("ads"))
        subscribe(receiver.url, team="search", verbs=["*"])
        ours = [happen(model="sentiment"), happen("model.changed", subject_type="model", subject_id="sentiment")]
        happen(model="prices")
        happen("model.changed", subject_type="model", subject_id="prices")
        happen("team.created")
        happen("rollout.paused", actor=Actor(name="team:search"))
        send_all()
        made, *seqs = receiver.seqs
        assert seqs == [event.seq for event in ours]
        assert Event.objects.get(seq=made).verb == "webhook.created"

    def test_everybodys_gets_everything(self, receiver: Receiver) -> None:
        subscribe(receiver.url, verbs=["*"])
        make_model("prices", team=make_team("ads"))
        wanted = [happen(model="prices").seq, happen("job.failed").seq]
        send_all()
        assert receiver.seqs[-2:] == wanted

    def test_who_may_manage_it(self, receiver: Receiver, admin: Actor) -> None:
        member, manager = make_actor(Role.MODEL_TEAM), make_actor(Role.RELEASE_MANAGER)
        robot, other = make_actor(Role.CI), make_actor(Role.MODEL_TEAM, team="ads")
        ours = subscribe("https://example.com/a", team="search")
        everybodys = subscribe("https://example.com/b")
        for actor in (member, manager):
            assert list(webhooks_of(actor)) == [ours]
            assert get_webhook(actor, ours.pk) == ours
        assert list(webhooks_of(admin)) == [ours, everybodys]
        for actor, row in ((robot, ours), (other, ours), (member, everybodys)):
            with pytest.raises(NotFound, match="that you may manage"):
                get_webhook(actor, row.pk)
        for actor in (robot, other):
            with pytest.raises(Refused, match="model_team"):
                actions.create_webhook(actor=actor, team="search", target="https://example.com/c", verbs=["*"])
            for verb in (
                lambda actor=actor: actions.delete_webhook(actor=actor, webhook=ours, expected_version=1),
                lambda actor=actor: actions.rotate_secret(actor=actor, webhook=ours, expected_version=1),
                lambda actor=actor: actions.change_webhook(actor=actor, webhook=ours, expected_version=1, changes={}),
                lambda actor=actor: actions.replay_since(actor=actor, webhook=ours, since=timezone.now()),
                lambda actor=actor: rounds.send_test(actor=actor, webhook=ours),
            ):
                with pytest.raises(Refused):
                    verb()
        with pytest.raises(Invalid, match="Name your team"):
            actions.create_webhook(actor=manager, team=None, target="https://example.com/c", verbs=["*"])

    def test_only_administrators_name_private_addresses(self, receiver: Receiver, admin: Actor) -> None:
        member = make_actor(Role.MODEL_TEAM)
        with pytest.raises(Invalid, match="private address"):
            actions.create_webhook(actor=member, team="search", target=receiver.url, verbs=["*"])
        row, _ = actions.create_webhook(actor=admin, team="search", target=receiver.url, verbs=["*"])
        assert rounds.send_test(actor=member, webhook=row).state == S.DELIVERED
        row = actions.change_webhook(actor=member, webhook=row, expected_version=1, changes={"verbs": ["rollout.*"]})
        with pytest.raises(Invalid, match="private address"):
            actions.change_webhook(
                actor=member, webhook=row, expected_version=2, changes={"target": "http://10.0.0.1/"}
            )

    def test_a_member_sees_the_events_of_the_teams_webhooks(self) -> None:
        member, other = make_actor(Role.MODEL_TEAM), make_actor(Role.MODEL_TEAM, team="ads")
        subscribe("https://example.com/secret-path", team="search")
        seen = visible_events(member).filter(verb="webhook.created")
        assert [event.facts["receiver"] for event in seen] == ["example.com"]
        assert not visible_events(other).filter(verb="webhook.created").exists()


class TestForms:
    @pytest.mark.parametrize(
        ("over", "field"),
        [
            ({"target": "ftp://x"}, "target"),
            ({"verbs": ["rollout.exploded"]}, "verbs"),
            ({"verbs": []}, "verbs"),
            ({"title": "x" * 121}, "title"),
            ({"team": "nobody"}, "team"),
            ({"kind": "email", "target": "a@example.com"}, "target"),
        ],
    )
    def test_what_is_wrong_and_what_to_do(self, over: dict[str, Any], field: str) -> None:
        given = {"team": None, "target": "https://example.com/", "verbs": ["rollout.*"], **over}
        with pytest.raises(Invalid) as caught:
            actions.create_webhook(actor=ENGINE, **given)
        (error,) = caught.value.facts["errors"]
        assert error["field"] == field and error["message"] and error["fix"]
        assert not Webhook.objects.exists()

    def test_one_target_is_one_webhook(self) -> None:
        first, _ = actions.create_webhook(actor=ENGINE, team=None, target="https://example.com/", verbs=["*"])
        second = subscribe("https://example.com/2")
        with pytest.raises(StateChanged, match="already"):
            actions.create_webhook(actor=ENGINE, team=None, target="https://example.com/", verbs=["rollout.*"])
        with pytest.raises(StateChanged, match="already"):
            actions.change_webhook(actor=ENGINE, webhook=second, expected_version=1, changes={"target": first.target})
        subscribe("https://example.com/", team=make_team("search").slug)

    def test_there_is_an_end_to_how_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("notifications.actions.webhooks.MOST_PER_TEAM", 2)
        subscribe("https://example.com/1"), subscribe("https://example.com/2")
        with pytest.raises(Invalid, match="Delete an unused"):
            subscribe("https://example.com/3")

    def test_every_change_takes_the_version_that_was_seen_and_is_told(self) -> None:
        row = subscribe("https://example.com/secret-path", verbs=["rollout.*"])
        verbs: list[Any] = [
            lambda version: actions.change_webhook(
                actor=ENGINE, webhook=row, expected_version=version, changes={"title": "on call"}
            ),
            lambda version: actions.rotate_secret(actor=ENGINE, webhook=row, expected_version=version),
            lambda version: actions.delete_webhook(actor=ENGINE, webhook=row, expected_version=version),
        ]
        for version, verb in enumerate(verbs, start=1):
            with pytest.raises(Stale, match=f"version {version}, not 99"):
                verb(99)
            verb(version)
        with pytest.raises(StateChanged, match="deleted meanwhile"):
            verbs[0](3)
        told = list(Event.objects.filter(subject_type="webhook").order_by("seq"))
        assert [event.verb for event in told] == [
            "webhook.created", "webhook.changed", "webhook.rotated", "webhook.deleted",
        ]  # fmt: skip
        assert "secret-path" not in str([event.facts for event in told])

    def test_nothing_is_told_where_nothing_changes(self) -> None:
        row = subscribe("https://example.com/")
        row = actions.change_webhook(
            actor=ENGINE, webhook=row, expected_version=1, changes={"verbs": ["rollout.*"], "is_active": True}
        )
        assert row.version == 1 and not Event.objects.filter(verb="webhook.changed").exists()

    def test_an_overlap_that_cannot_be(self) -> None:
        row = subscribe("https://example.com/")
        for overlap_s in (-1.0, 1e9):
            with pytest.raises(Invalid, match="0 to 604800"):
                actions.rotate_secret(actor=ENGINE, webhook=row, expected_version=1, overlap_s=overlap_s)

    def test_a_delivery_of_another_webhook_is_not_found(self, receiver: Receiver) -> None:
        ours, other = subscribe(receiver.url), subscribe("https://example.com/")
        delivery = rounds.send_test(actor=ENGINE, webhook=ours)
        assert get_delivery(ours, delivery.pk) == delivery
        with pytest.raises(NotFound, match="has no delivery"):
            get_delivery(other, delivery.pk)
        assert not deliveries_of(other).exists()

    def test_every_refusal_is_a_domain_error_with_a_next_step(self) -> None:
        with pytest.raises(DomainError) as caught:
            actions.create_webhook(actor=ENGINE, team=None, target="http://169.254.169.254/", verbs=["*"])
        assert "Name the receiver's own address" in caught.value.message
