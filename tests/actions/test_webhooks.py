"""Webhooks: what they get, how it is sent, tried again, recorded and sent again, against a real HTTP receiver."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

import notifications.tasks  # noqa: F401 - registers the handler, as Celery does
from accounts.core.access import Actor, Role
from audit.queries import visible_events
from ledger.actions import append_event
from ledger.core.errors import DomainError, Invalid, NotFound, Refused, Stale, StateChanged
from ledger.core.verbs import EventVerb
from ledger.models import ChainHead, Event, Job
from ledger.queries import first_seq_since
from ledger.tasks import run_job
from notifications import actions
from notifications.actions import deliveries
from notifications.actions.deliveries import wake_dispatcher
from notifications.adapters import webhook_sender
from notifications.core.delivery import BACK_OFF_S, DeliveryState, Outcome
from notifications.dispatcher import outbound_message, rounds
from notifications.models import Attempt, Delivery, Webhook
from notifications.queries import deliveries_of, get_delivery, get_webhook, webhooks_of
from sluicegate.scheduler import look
from tests.factories import make_actor, make_admin, make_model, make_team
from tests.receiver import Receiver, replies, says_nothing_for, trickles

pytestmark = pytest.mark.django_db
ENGINE = Actor.system("engine")
S = DeliveryState


@pytest.fixture(autouse=True)
def _private(settings: Any) -> None:
    settings.WEBHOOKS_ALLOW_PRIVATE = True
    settings.WEBHOOK_TIMEOUT_S = 0.5


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def admin() -> Actor:
    return make_admin("root")


def subscribe(target: str, *, team: str | None = None, verbs: list[str] | None = None, **over: Any) -> Webhook:
    return actions.create_webhook(actor=ENGINE, team=team, target=target, verbs=verbs or ["rollout.*"], **over)[0]


def happen(verb: str = "rollout.held", *, model: str = "", **over: Any) -> Event:
    facts = {"model": model} if model else {}
    return append_event(
        **{"verb": verb, "subject_type": "rollout", "subject_id": 17, "actor": ENGINE, "facts": facts, **over}
    )


def send_all() -> int:
    return rounds.run_round(lambda: True)


def move_clock(**by: float) -> None:
    """Everything that waits has waited this much longer."""
    for delivery in Delivery.objects.all():
        Delivery.objects.filter(pk=delivery.pk).update(due_at=delivery.due_at - timedelta(**by))


def only() -> Delivery:
    return Delivery.objects.select_related("webhook").get(event__isnull=False)


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
        assert "SLUICEGATE_SECRET_KEY" in tried.error and "Rotate it" in tried.error
        settings.SECRET_KEY_FALLBACKS = [known]
        assert rounds.send_test(actor=ENGINE, webhook=row).state == S.DELIVERED


class TestFailing:
    @pytest.mark.parametrize(
        ("answer", "status", "says"),
        [
            (replies(500, "out of\x00 paper"), 500, "answered 500"),
            (replies(404), 404, "answered 404"),
            (replies(302, Location="http://127.0.0.1:1/elsewhere"), 302, "not followed"),
            (replies(307, Location="/elsewhere"), 307, "not followed"),
            (says_nothing_for(1.0), None, "within 0.5 s"),
            (trickles, None, "within 0.5 s"),
            (says_nothing_for(0.0), None, "No answer"),
        ],
    )
    @pytest.mark.takes("delivery: pending → failed", "delivery: failed → delivered")
    def test_what_the_receiver_does_is_in_the_log_and_tried_again(
        self, receiver: Receiver, answer: Any, status: int | None, says: str
    ) -> None:
        subscribe(receiver.url)
        happen()
        receiver.answers = [answer]
        began = time.monotonic()
        assert send_all() == 1
        assert time.monotonic() - began < 3
        delivery = only()
        (tried,) = delivery.tries.all()
        assert (delivery.state, tried.status_code) == (S.FAILED, status) and says in tried.error
        assert 3 < (delivery.due_at - timezone.now()).total_seconds() < 7
        assert send_all() == 0
        move_clock(seconds=10)
        assert send_all() == 1
        assert only().state == S.DELIVERED
        assert {got.path for got in receiver.got} == {"/hook"}
        assert len({got.id for got in receiver.got}) == 1 and len({got.body for got in receiver.got}) == 1
        assert [got.headers["sluicegate-attempt"] for got in receiver.got] == ["1", "2"]

    def test_nobody_listens(self) -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            subscribe(f"http://127.0.0.1:{bound.getsockname()[1]}/")
            happen()
            send_all()
        assert "refused" in only().tries.get().error

    def test_a_name_that_is_nobodys(self) -> None:
        subscribe("http://nobody.invalid/")
        happen()
        send_all()
        assert "cannot be resolved" in only().tries.get().error

    def test_the_answers_beginning_is_kept(self, receiver: Receiver) -> None:
        subscribe(receiver.url)
        happen()
        receiver.answers = [replies(500, "a\x00b" + "é" * 5000)]
        send_all()
        snippet = only().tries.get().snippet
        assert snippet.startswith("a\ufffdbé") and len(snippet) == 500

    def test_an_answer_without_end_is_good_once_its_status_is_known(self, receiver: Receiver) -> None:
        def endless(request: Any) -> None:
            request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            request.wfile.flush()
            time.sleep(1)

        subscribe(receiver.url)
        happen()
        receiver.answers = [endless]
        send_all()
        assert only().state == S.DELIVERED

    def test_a_receiver_may_ask_for_time(self, receiver: Receiver) -> None:
        subscribe(receiver.url)
        happen()
        receiver.answers = [replies(429, Retry_After="300")]
        send_all()
        assert 290 < (only().due_at - timezone.now()).total_seconds() <= 300

    @pytest.mark.takes("delivery: failed → failed", "delivery: failed → gave_up")
    def test_after_a_day_it_is_given_up_and_an_event_says_so(self, receiver: Receiver) -> None:
        row = subscribe(receiver.url, team=make_team("search").slug)
        make_model("sentiment", team=make_team("search"))
        event = happen("rollout.stuck", model="sentiment")
        receiver.always = 503
        for _ in range(len(BACK_OFF_S)):
            assert send_all() == 1
            assert only().state == S.FAILED
            move_clock(hours=10)
        assert send_all() == 1
        assert only().state == S.GAVE_UP and only().ended_at is not None
        move_clock(days=10)
        assert send_all() == 0
        assert [tried.number for tried in only().tries.all()] == list(range(len(BACK_OFF_S) + 1, 0, -1))
        told = Event.objects.get(verb="webhook.gave_up")
        assert told.subject_id == str(row.pk) and told.actor == "system:notifications"
        assert told.facts == {"team": "search", "delivery": str(only().pk), "event": event.seq}
        assert "rollout.stuck" in told.reason and "503" in told.reason and "/hook" not in told.reason

    def test_two_broken_webhooks_do_not_tell_of_each_other_for_ever(self, receiver: Receiver) -> None:
        subscribe(receiver.url, verbs=["*"])
        subscribe(f"{receiver.url}/2", verbs=["*"])
        receiver.always = 500
        happen()
        for _ in range(5 * len(BACK_OFF_S)):
            move_clock(hours=10)
            if not send_all():
                break
        assert not Delivery.objects.filter(state__in=[S.PENDING, S.FAILED]).exists()
        ours = Event.objects.filter(verb="webhook.gave_up")
        # each of what was about something else (the second webhook's making is about webhooks)
        assert ours.count() == 2

    @pytest.mark.takes("delivery: pending → gave_up")
    def test_gone_turns_it_off(self, receiver: Receiver) -> None:
        row = subscribe(receiver.url)
        happen(), happen()
        receiver.answers = [410]
        assert send_all() == 1
        row.refresh_from_db()
        assert not row.is_active and row.version == 2
        assert "410" in Event.objects.get(verb="webhook.changed").reason
        assert sorted(Delivery.objects.values_list("state", flat=True)) == [S.GAVE_UP, S.PENDING]

    def test_a_dead_receiver_holds_up_nobody_else(self, receiver: Receiver) -> None:
        with Receiver(always=says_nothing_for(3)) as dead:
            subscribe(dead.url)
            subscribe(receiver.url)
            wanted = [happen().seq for _ in range(5)]
            began = time.monotonic()
            assert send_all() == 10
            assert receiver.seqs == wanted and dead.most_at_once <= 5
            assert time.monotonic() - began < 4

    def test_what_cannot_be_sent_for_a_fault_of_ours_is_an_attempt_too(
        self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: Any, **__: Any) -> Outcome:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(webhook_sender, "post", broken)
        subscribe(receiver.url)
        happen()
        assert send_all() == 1
        assert only().state == S.FAILED and "RuntimeError" in only().tries.get().error


class TestAddressesThatAreRefused:
    def test_a_name_that_leads_to_a_private_address(self, receiver: Receiver) -> None:
        row = subscribe(receiver.url.replace("127.0.0.1", "localhost"))
        assert rounds.send_test(actor=ENGINE, webhook=row).state == S.DELIVERED
        Webhook.objects.update(may_be_private=False)
        row.refresh_from_db()
        tried = rounds.send_test(actor=ENGINE, webhook=row).tries.get()
        assert "private address" in tried.error and len(receiver.got) == 1

    def test_the_setting_closes_them_for_everybody(self, receiver: Receiver, settings: Any) -> None:
        row = subscribe(receiver.url)
        settings.WEBHOOKS_ALLOW_PRIVATE = False
        tried = rounds.send_test(actor=ENGINE, webhook=row).tries.get()
        assert "private address" in tried.error and not receiver.got
        with pytest.raises(Invalid, match="private address"):
            subscribe(f"{receiver.url}/2")

    def test_what_was_checked_is_what_is_connected_to(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A name that leads to a public address when it is checked, and to this machine when it is asked again."""
        asked: list[str] = []
        connected: list[str] = []

        def resolve(host: str, port: int, **_: Any) -> list[Any]:
            asked.append(host)
            where = "93.184.216.34" if len(asked) == 1 else "127.0.0.1"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (where, port))]

        def connect(address: tuple[str, int], **_: Any) -> socket.socket:
            connected.append(address[0])
            raise ConnectionRefusedError("here the test ends")

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        monkeypatch.setattr(socket, "create_connection", connect)
        out = webhook_sender.post("http://rebinding.example/", b"{}", {}, timeout_s=1, may_be_private=False)
        assert (asked, connected) == (["rebinding.example"], ["93.184.216.34"]) and "ends" in out.error

    def test_of_several_addresses_only_public_ones_are_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        connected: list[str] = []
        names = ["10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "8.8.8.8", "8.8.4.4"]
        rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, 80)) for name in names]

        def connect(address: tuple[str, int], **_: Any) -> socket.socket:
            connected.append(address[0])
            raise ConnectionRefusedError("no")

        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
        monkeypatch.setattr(socket, "create_connection", connect)
        webhook_sender.post("http://several.example/", b"{}", {}, timeout_s=1, may_be_private=False)
        assert connected == ["8.8.8.8", "8.8.4.4"]


class TestCrashes:
    def test_sent_but_not_recorded_is_sent_again(self, receiver: Receiver, settings: Any) -> None:
        """The worker is killed after the receiver has answered, before that was written down."""
        settings.JOB_LEASE_S = 5.0
        subscribe(receiver.url)
        happen()
        deliveries.collect()
        delivery = deliveries.claim_delivery(only().pk)
        assert delivery is not None
        assert rounds.send(outbound_message.message_of(delivery)).is_ok
        assert send_all() == 0  # the lease holds
        move_clock(seconds=6)
        assert send_all() == 1
        assert only().state == S.DELIVERED and only().attempts == 2
        assert len({got.id for got in receiver.got}) == 1 and len(receiver.got) == 2
        first, second = only().tries.order_by("number")
        assert (first.ended_at, second.status_code) == (None, 204)

    def test_the_one_who_comes_late_records_nothing(self, receiver: Receiver) -> None:
        subscribe(receiver.url)
        happen()
        deliveries.collect()
        late = deliveries.claim_delivery(only().pk)
        move_clock(minutes=5)
        now = deliveries.claim_delivery(only().pk)
        assert late is not None and now is not None
        assert not deliveries.record_attempt(late.pk, late.attempts, Outcome("late"))
        assert deliveries.record_attempt(now.pk, now.attempts, Outcome())
        assert not deliveries.record_attempt(now.pk, now.attempts, Outcome("twice"))
        assert only().state == S.DELIVERED

    def test_collected_but_the_cursor_not_moved_makes_no_second_row(self, receiver: Receiver) -> None:
        row = subscribe(receiver.url)
        seq = row.last_seq
        events = [happen() for _ in range(3)]
        assert deliveries.collect() == 3
        Webhook.objects.update(last_seq=seq)
        deliveries.collect()
        assert sorted(Delivery.objects.values_list("event_id", flat=True)) == [event.seq for event in events]
        with pytest.raises(IntegrityError):
            Delivery.objects.create(webhook=row, event=events[0], due_at=timezone.now())

    def test_a_webhook_that_is_deleted_while_it_is_sent_to(self, receiver: Receiver) -> None:
        row = subscribe(receiver.url)

        def delete(request: Any) -> None:
            replies(200)(request)

        receiver.answers = [delete]
        happen()
        deliveries.collect()
        delivery = deliveries.claim_delivery(only().pk)
        assert delivery is not None
        actions.delete_webhook(actor=ENGINE, webhook=row, expected_version=1)
        assert not deliveries.record_attempt(delivery.pk, delivery.attempts, Outcome())
        assert send_all() == 0

    def test_long_backlogs_are_taken_in_pieces(self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deliveries, "SCAN", 7)
        monkeypatch.setattr(deliveries, "BATCH", 3)
        row = subscribe(receiver.url)
        wanted = []
        for n in range(40):
            event = happen("rollout.held" if n % 3 else "route.set")
            wanted += [event.seq] if n % 3 else []
        assert deliveries.collect() == len(wanted)
        row.refresh_from_db()
        assert row.last_seq == ChainHead.objects.get().seq
        assert sorted(Delivery.objects.values_list("event_id", flat=True)) == wanted


class TestJob:
    def test_the_scheduler_wakes_the_dispatcher_only_when_there_is_work(
        self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ledger.actions.job_dispatch.send", lambda job: None)
        assert not wake_dispatcher() and not Job.objects.exists()
        subscribe(receiver.url)
        assert wake_dispatcher()  # its own making is an event as well, which it looks at
        job = Job.objects.get()
        run_job(str(job.pk))
        assert not wake_dispatcher()
        happen()
        look()
        run_job(str(job.pk))
        assert len(receiver.got) == 1
        job.refresh_from_db()
        assert (job.state, job.attempts) == ("queued", 0) and job.due_at > timezone.now()
        assert not wake_dispatcher()
        assert Job.objects.count() == 1

    def test_a_failed_delivery_calls_it_when_it_is_due(self, receiver: Receiver) -> None:
        subscribe(receiver.url)
        happen()
        receiver.answers = [500]
        send_all()
        deliveries.collect()
        assert not wake_dispatcher()
        move_clock(seconds=10)
        assert wake_dispatcher()

    def test_a_job_that_was_taken_away_sends_no_more(self, receiver: Receiver) -> None:
        subscribe(receiver.url)
        happen()
        assert rounds.run_round(lambda: False) == 0
        assert not receiver.got

    def test_looking_costs_two_cheap_queries(self, receiver: Receiver, django_assert_num_queries: Any) -> None:
        subscribe(receiver.url)
        send_all()
        with django_assert_num_queries(2):
            wake_dispatcher()

    def test_appending_an_event_costs_as_many_queries_as_without_webhooks(
        self, receiver: Receiver, django_assert_num_queries: Any
    ) -> None:
        happen()  # the first one also makes the head of the chain
        with connection.execute_wrapper(counter := Counter()):
            happen()
        for n in range(20):
            subscribe(f"{receiver.url}/{n}", verbs=["*"])
        with django_assert_num_queries(counter.count):
            happen()

    def test_what_ended_long_ago_is_dropped_and_can_be_made_again(self, receiver: Receiver) -> None:
        row = subscribe(receiver.url)
        event = happen()
        send_all()
        assert deliveries.drop_old() == 0
        Delivery.objects.update(ended_at=timezone.now() - deliveries.KEPT_FOR - timedelta(seconds=1))
        assert deliveries.drop_old() == 1 and not Attempt.objects.exists()
        assert send_all() == 0
        assert actions.replay_since(actor=ENGINE, webhook=row, since=event.at) == 1


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, execute: Any, *args: Any) -> Any:
        self.count += 1
        return execute(*args)


class TestReplay:
    @pytest.mark.takes("delivery: gave_up → pending", "delivery: delivered → pending", "delivery: pending → delivered")
    def test_one_delivery_with_the_same_id_and_all_attempts_anew(self, receiver: Receiver) -> None:
        subscribe(receiver.url)
        happen()
        receiver.always = 500
        for _ in range(len(BACK_OFF_S) + 1):
            send_all()
            move_clock(hours=10)
        assert only().state == S.GAVE_UP
        assert actions.replay_delivery(actor=ENGINE, delivery=only())
        assert send_all() == 1
        assert only().state == S.FAILED  # not given up at once
        receiver.always = 200
        move_clock(hours=10)
        send_all()
        assert only().state == S.DELIVERED and len({got.id for got in receiver.got}) == 1
        assert actions.replay_delivery(actor=ENGINE, delivery=only())
        assert not actions.replay_delivery(actor=ENGINE, delivery=only())  # it is on its way
        send_all()
        assert only().state == S.DELIVERED and only().attempts == len(BACK_OFF_S) + 4

    def test_everything_since_a_time(self, receiver: Receiver) -> None:
        before = happen()
        row = subscribe(receiver.url)
        events = [happen() for _ in range(6)]
        happen("route.set")
        send_all()
        assert first_seq_since(events[2].at) == events[2].seq
        assert actions.replay_since(actor=ENGINE, webhook=row, since=events[2].at) == 4
        assert actions.replay_since(actor=ENGINE, webhook=row, since=events[2].at) == 0
        send_all()
        assert receiver.seqs == [e.seq for e in events] + [e.seq for e in events[2:]]
        assert Delivery.objects.count() == 6
        send_all()
        assert actions.replay_since(actor=ENGINE, webhook=row, since=before.at) == 7  # also what was before its time
        assert actions.replay_since(actor=ENGINE, webhook=row, since=timezone.now() + timedelta(days=1)) == 0

    def test_it_is_refused_where_it_cannot_be(self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        row = subscribe(receiver.url)
        events = [happen() for _ in range(3)]
        send_all()
        monkeypatch.setattr(deliveries, "MOST_REPLAYED", 2)
        with pytest.raises(Invalid, match="later time"):
            actions.replay_since(actor=ENGINE, webhook=row, since=events[0].at)
        with pytest.raises(Invalid, match="Send a new one"):
            actions.replay_delivery(actor=ENGINE, delivery=rounds.send_test(actor=ENGINE, webhook=row))
        row = actions.change_webhook(
            actor=ENGINE, webhook=row, expected_version=row.version, changes={"is_active": False}
        )
        delivery = Delivery.objects.filter(event=events[0]).get()
        with pytest.raises(Invalid, match="Turn it on"):
            actions.replay_delivery(actor=ENGINE, delivery=delivery)
        assert not Delivery.objects.filter(state=S.PENDING).exists()


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
        with pytest.raises(Invalid, match="Delete one"):
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


class TestTls:
    def test_a_certificate_that_nobody_vouches_for_is_refused(self, tmp_path: Any) -> None:
        chain = self_signed(tmp_path, "localhost")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        with Receiver() as receiver:
            receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
            out = webhook_sender.post(
                receiver.url.replace("http:", "https:"), b"{}", {}, timeout_s=2, may_be_private=True
            )
        assert "certificate" in out.error and not receiver.got

    def test_one_that_is_vouched_for_is_taken(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        chain = self_signed(tmp_path, "localhost")
        monkeypatch.setenv("SSL_CERT_FILE", str(chain))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        with Receiver(always=says_nothing_for(0.0), answers=[204]) as receiver:
            receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
            url = f"https://localhost:{receiver.port}/hook"
            assert webhook_sender.post(url, b"{}", {}, timeout_s=2, may_be_private=True).is_ok
            assert receiver.got[0].headers["host"] == f"localhost:{receiver.port}"
            wrong = url.replace("localhost", "127.0.0.1")
            assert "certificate" in webhook_sender.post(wrong, b"{}", {}, timeout_s=2, may_be_private=True).error

    def test_a_handshake_that_never_comes_ends_in_time(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            began = time.monotonic()
            url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
            out = webhook_sender.post(url, b"{}", {}, timeout_s=0.3, may_be_private=True)
        assert "within 0.3 s" in out.error and time.monotonic() - began < 1


def self_signed(folder: Any, name: str) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = timezone.now()
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "chain.pem"
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path
