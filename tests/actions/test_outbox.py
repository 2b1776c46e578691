"""The log as an outbox, across real transactions: nothing that is committed is missed, nothing is made twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from accounts.core.access import Actor
from ledger.actions import append_event
from ledger.models import ChainHead, Event, Job
from notifications import actions
from notifications.actions import deliveries
from notifications.adapters import webhook_sender
from notifications.core.delivery import DeliveryState
from notifications.dispatcher import rounds
from notifications.models import Attempt, Delivery, Webhook
from sluicegate.scheduler import look
from tests.support.servers.receiver import Receiver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # workers that wait for one another
ENGINE = Actor.system("engine")


@pytest.fixture
def receiver(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(rounds, "LONGEST_ROUND_S", 600.0)
    settings.WEBHOOK_TIMEOUT_S = 20.0
    settings.WEBHOOKS_ALLOW_PRIVATE = True
    with Receiver() as running:
        yield running


def subscribe(target: str) -> Webhook:
    return actions.create_webhook(actor=ENGINE, team=None, target=target, verbs=["rollout.*"])[0]


def happen() -> Event:
    with transaction.atomic():
        return append_event(verb="rollout.held", subject_type="rollout", subject_id=1, actor=ENGINE)


def at_once(*functions: Callable[[], Any]) -> None:
    """Runs them in threads with connections of their own; raises the first error of any."""
    errors: list[BaseException] = []

    def run(function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as error:  # shown by the test's own thread
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[function]) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_the_cursor_does_not_pass_a_number_that_is_not_readable_yet(receiver: Receiver) -> None:
    """One writer has its number and is slow to commit; another wants the next one. The second waits, so nothing is skipped."""
    row = subscribe(receiver.url)
    start = row.last_seq
    has_number, may_commit = threading.Event(), threading.Event()

    def slow() -> None:
        with transaction.atomic():
            happen()
            has_number.set()
            may_commit.wait(60)

    def quick() -> None:
        has_number.wait(60)
        happen()

    def collector() -> None:
        has_number.wait(60)
        time.sleep(0.2)
        deliveries.collect()
        row.refresh_from_db()
        assert row.last_seq == ChainHead.objects.get().seq == start + 1  # the webhook's own making; neither of the two
        may_commit.set()

    at_once(slow, quick, collector)
    assert deliveries.collect() == 2
    assert list(Delivery.objects.order_by("event_id").values_list("event_id", flat=True)) == [start + 2, start + 3]


@pytest.mark.slow
def test_every_committed_event_is_one_delivery_whoever_collects(receiver: Receiver) -> None:
    rows = [subscribe(f"{receiver.url}/{n}") for n in range(3)]
    over = threading.Event()
    dice = random.Random(4)
    plans = [[(dice.random() < 0.3, dice.random() * 0.01) for _ in range(25)] for _ in range(3)]
    left = threading.Semaphore(0)

    def writer(plan: list[tuple[bool, float]]) -> Callable[[], None]:
        def write() -> None:
            for is_undone, pause_s in plan:
                with transaction.atomic():
                    happen()
                    time.sleep(pause_s)
                    transaction.set_rollback(is_undone)
            left.release()

        return write

    def collector() -> None:
        while not over.is_set():
            deliveries.collect()

    def watcher() -> None:
        for _ in plans:
            left.acquire(timeout=60)
        over.set()

    at_once(*(writer(plan) for plan in plans), collector, collector, watcher)
    deliveries.collect()
    committed = list(Event.objects.filter(verb="rollout.held").values_list("seq", flat=True))
    assert len(committed) == sum(not is_undone for plan in plans for is_undone, _ in plan)
    for row in rows:
        assert sorted(row.deliveries.values_list("event_id", flat=True)) == committed


def test_two_workers_send_each_delivery_once(receiver: Receiver) -> None:
    subscribe(receiver.url)
    subscribe(f"{receiver.url}/2")
    events = [happen().seq for _ in range(30)]
    at_once(*[lambda: rounds.run_round(lambda: True)] * 3)
    assert Delivery.objects.filter(state=DeliveryState.DELIVERED).count() == len(receiver.got) == 2 * len(events)
    assert Counter(receiver.seqs) == dict.fromkeys(events, 2)
    assert Counter(got.id for got in receiver.got).most_common(1)[0][1] == 1


def test_sending_again_while_it_is_sent_ends_well(receiver: Receiver) -> None:
    row = subscribe(receiver.url)
    first = happen()
    for _ in range(10):
        happen()

    def again() -> None:
        for _ in range(5):
            actions.replay_since(actor=ENGINE, webhook=row, since=first.at)

    at_once(again, again, *[lambda: rounds.run_round(lambda: True)] * 2)
    rounds.run_round(lambda: True)
    assert set(Delivery.objects.values_list("state", flat=True)) == {DeliveryState.DELIVERED}
    assert Delivery.objects.count() == 11
    for delivery in Delivery.objects.prefetch_related("tries"):
        assert delivery.attempts == delivery.tries.count() == delivery.tries.filter(status_code=204).count()


def test_a_rollback_needs_no_broker_and_no_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event of a rollback is written though nothing that notifies answers; it is told once somebody does."""

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("no broker")

    monkeypatch.setattr("ledger.actions.jobs.current_app.signature", away)
    monkeypatch.setattr(webhook_sender, "post", lambda *_, **__: pytest.fail("it is sent to by who rolls back"))
    subscribe("https://example.invalid/")
    event = happen()
    look()
    assert Job.objects.get().sent_at is None  # it waits, and is handed over later
    assert not Attempt.objects.exists()
    assert deliveries.collect() == 1 and Delivery.objects.get().event_id == event.seq
