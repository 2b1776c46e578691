"""What notifications cost the log, the sweep and the worker, on a PostgreSQL of its own and a receiver on this machine.

Run `python -m benchmarks.notifications [--events N]`. The log: one `append_event` in a transaction, with and without
webhooks. The sweep: what the engine asks every two seconds when nothing is due, with and without a backlog that waits for
its next attempt. The worker: collecting and sending, to one receiver and to eight.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from benchmarks.stores import database


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1000)
    arguments = parser.parse_args()
    with database(SLUICEGATE_LOG_LEVEL="ERROR", SLUICEGATE_WEBHOOKS_ALLOW_PRIVATE="1"):
        measure(arguments.events)


def measure(events: int) -> None:
    """Prints one line for each figure."""
    from django.db import connection, transaction

    from accounts.core.access import Actor
    from ledger.actions import append_event
    from notifications import actions
    from notifications.actions import deliveries
    from notifications.dispatcher import rounds
    from notifications.models import Delivery, Webhook
    from tests.support.servers.receiver import Receiver

    engine = Actor.system("engine")

    def happen() -> None:
        with transaction.atomic():
            append_event(verb="rollout.held", subject_type="rollout", subject_id=1, actor=engine, facts={"model": "m"})

    def arrived() -> int:
        return Delivery.objects.filter(state="delivered").count()

    def subscribe(target: str) -> None:
        actions.create_webhook(actor=engine, team=None, target=target, verbs=["rollout.*"])

    for _ in range(100):
        happen()
    say("append_event, no webhook", each(happen, events), "ms")
    with Receiver(always=204) as receiver:
        for n in range(50):
            subscribe(f"{receiver.url}/{n}")
        say("append_event, 50 webhooks", each(happen, events), "ms")
        Webhook.objects.filter(pk__gt=Webhook.objects.order_by("pk")[0].pk).delete()
        deliveries.collect()
        say("sending to 1 receiver", rate(lambda: drain(rounds.run_round), arrived), "deliveries/s")
        say("the sweep's look, nothing due", each(deliveries.wake_dispatcher, 300), "ms")
        for n in range(1, 8):
            subscribe(f"{receiver.url}/{n}")
        for _ in range(events // 2):
            happen()
        say("collecting and sending to 8 receivers", rate(lambda: drain(rounds.run_round), arrived), "deliveries/s")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE notifications_delivery SET state = 'failed', due_at = now() + interval '1 hour'")
            waiting = cursor.rowcount
            cursor.execute("ANALYZE notifications_delivery")
        say(f"the sweep's look, {waiting} wait for their next attempt", each(deliveries.wake_dispatcher, 300), "ms")


def drain(run_round: Callable[[Callable[[], bool]], int]) -> None:
    while run_round(lambda: True):
        pass


def rate(work: Callable[[], object], arrived: Callable[[], int]) -> float:
    """How many deliveries arrived a second."""
    before, began = arrived(), time.monotonic()
    work()
    return (arrived() - before) / (time.monotonic() - began)


def each(work: Callable[[], object], times: int) -> float:
    """The median of one call, in milliseconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return 1000 * statistics.median(took)


def say(what: str, figure: float, unit: str) -> None:
    print(f"{what:<60} {figure:10.2f} {unit}")


if __name__ == "__main__":
    main()
