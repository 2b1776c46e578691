"""Deliveries to a real receiver that fails: tried again, given up, recorded and sent again, whoever dies meanwhile."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.utils import timezone

from ledger.core.errors import Invalid
from ledger.models import ChainHead, Event, Job
from ledger.queries import first_seq_since
from ledger.tasks import run_job
from notifications import actions
from notifications.actions import deliveries
from notifications.actions.deliveries import wake_dispatcher
from notifications.adapters import webhook_sender
from notifications.core.delivery import BACK_OFF_S, JITTER_FRAC, Outcome
from notifications.dispatcher import outbound_message, rounds
from notifications.models import Attempt, Delivery, Webhook
from sluicegate.scheduler import look
from tests.support.servers.receiver import Receiver, hangs_up, never_ends, replies, says_nothing, trickles
from tests.support.worlds.factories import make_model, make_team
from tests.support.worlds.webhook_setup import (  # noqa: F401
    ENGINE,
    S,
    _private,
    happen,
    move_clock,
    only,
    receiver,
    send_all,
    subscribe,
    waits_s,
)

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # rounds of two senders, and receivers that wait


class TestFailing:
    @pytest.mark.parametrize(
        ("answer", "status", "says"),
        [
            (replies(500, "out of\x00 paper"), 500, "answered 500"),
            (replies(404), 404, "answered 404"),
            (replies(302, Location="http://127.0.0.1:1/elsewhere"), 302, "not followed"),
            (replies(307, Location="/elsewhere"), 307, "not followed"),
            (says_nothing, None, "within 0.5 s"),
            (trickles, None, "within 0.5 s"),
            (hangs_up, None, "No answer"),
        ],
    )
    @pytest.mark.takes("delivery: pending → failed", "delivery: failed → delivered")
    def test_what_the_receiver_does_is_in_the_log_and_tried_again(
        self, receiver: Receiver, settings: Any, answer: Any, status: int | None, says: str
    ) -> None:
        subscribe(receiver.url)
        happen()
        receiver.answers = [answer]
        patient_s = settings.WEBHOOK_TIMEOUT_S
        settings.WEBHOOK_TIMEOUT_S = 0.5 if "0.5 s" in says else patient_s
        assert send_all() == 1  # though the receiver would be silent, or trickle, for ever
        settings.WEBHOOK_TIMEOUT_S = patient_s
        delivery = only()
        (tried,) = delivery.tries.all()
        assert (delivery.state, tried.status_code) == (S.FAILED, status) and says in tried.error
        assert (1 - JITTER_FRAC) * BACK_OFF_S[0] <= waits_s() < (1 - JITTER_FRAC) * BACK_OFF_S[1]
        move_clock(minutes=-1)  # so that none of its seconds pass here
        assert send_all() == 0
        receiver.wait_for(1)  # its thread may come to the request only now
        move_clock(seconds=70)
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

    def test_an_answer_without_end_is_good_once_its_status_is_known(self, receiver: Receiver, settings: Any) -> None:
        settings.WEBHOOK_TIMEOUT_S = 3.0  # all of it is waited; the status must come within it on a busy machine, too
        subscribe(receiver.url)
        happen()
        receiver.answers = [never_ends]
        send_all()
        assert only().state == S.DELIVERED

    def test_a_receiver_may_ask_for_time(self, receiver: Receiver) -> None:
        subscribe(receiver.url)
        happen()
        receiver.answers = [replies(429, Retry_After="300")]
        send_all()
        assert 300 <= waits_s() < 330

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
        """The dead one says its first word when the other one has got everything."""

        def waits_for_the_other(request: Any) -> None:
            receiver.wait_for(5)
            replies(500)(request)

        with Receiver(always=waits_for_the_other) as dead:
            subscribe(dead.url)
            subscribe(receiver.url)
            wanted = [happen().seq for _ in range(5)]
            assert send_all() == 10
            assert receiver.seqs == dead.seqs == wanted and dead.most_at_once == 1
        assert set(Attempt.objects.values_list("status_code", flat=True)) == {204, 500}

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
        move_clock(seconds=settings.WEBHOOK_TIMEOUT_S + 6)
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
        move_clock(minutes=-1)
        assert not wake_dispatcher()
        move_clock(seconds=70)
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
        with pytest.raises(Invalid, match="Send a new test"):
            actions.replay_delivery(actor=ENGINE, delivery=rounds.send_test(actor=ENGINE, webhook=row))
        row = actions.change_webhook(
            actor=ENGINE, webhook=row, expected_version=row.version, changes={"is_active": False}
        )
        delivery = Delivery.objects.filter(event=events[0]).get()
        with pytest.raises(Invalid, match="Turn it on"):
            actions.replay_delivery(actor=ENGINE, delivery=delivery)
        assert not Delivery.objects.filter(state=S.PENDING).exists()
