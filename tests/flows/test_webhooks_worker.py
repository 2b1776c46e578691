"""Notifications on real workers over a real broker: told in seconds, and told still when a worker is killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from accounts.core.access import Actor
from ledger.actions import append_event
from ledger.core.lifecycle import JobState
from ledger.models import Event, Job
from ledger.queries import clock
from notifications import actions
from notifications.core.delivery import OPEN, DeliveryState
from notifications.models import Delivery
from sluicegate.scheduler import look
from tests.support.servers.receiver import Receiver, reply

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.real("valkey", "postgres")]
ROOT = Path(__file__).resolve().parents[2]
ENGINE = Actor.system("engine")
#: No machine is so slow that they pass by themselves; for who died, the test lets them pass.
LEASE_S, TIMEOUT_S = 60.0, 30.0


@pytest.fixture
def start_worker(settings: Any, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts one more worker as the stack runs it; all are ended with the test."""
    settings.WEBHOOKS_ALLOW_PRIVATE = True
    found = connection.settings_dict
    url = f"postgresql://{found['USER']}:{found['PASSWORD']}@{found['HOST']}:{found['PORT']}/{found['NAME']}"
    ours = {
        "DATABASE_URL": url,
        "SLUICEGATE_JOB_LEASE_S": str(LEASE_S),
        "SLUICEGATE_WEBHOOK_TIMEOUT_S": str(TIMEOUT_S),
        "SLUICEGATE_WEBHOOKS_ALLOW_PRIVATE": "1",
    }
    argv = [sys.executable, "-m", "celery", "-A", "sluicegate", "worker", "-Q", "default", "-P", "threads", "-c", "2", "-l", "INFO",
            "--without-gossip", "--without-mingle"]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        log = tmp_path / f"worker-{len(started)}.log"
        with log.open("wb") as out:
            name = f"{uuid.uuid4().hex}@test"
            started.append(
                subprocess.Popen([*argv, "-n", name], cwd=ROOT, env={**os.environ, **ours}, stderr=out, stdout=out)
            )
        deadline = time.monotonic() + 120
        while b"ready." not in log.read_bytes():
            assert time.monotonic() < deadline and started[-1].poll() is None, log.read_text()
            time.sleep(0.05)
        return started[-1]

    yield start
    for worker in started:
        worker.kill()
        worker.wait()


def happen() -> Event:
    with transaction.atomic():
        return append_event(verb="rollout.held", subject_type="rollout", subject_id=1, actor=ENGINE)


def look_until(what: Callable[[], Any], most_s: float = 45) -> None:
    """Looks as the scheduler does. Within half the time in which a lease would end by itself."""
    began = time.monotonic()
    while not what():
        shown = [list(Delivery.objects.values()), list(Job.objects.values())]
        assert time.monotonic() - began < most_s, shown
        look()
        time.sleep(0.1)


def let_leases_end() -> None:
    """As if the dead worker's job and delivery had been waited for, which is for the lease and no longer."""
    jobs = Job.objects.filter(state=JobState.RUNNING)
    cut = Delivery.objects.filter(state__in=OPEN, tries__ended_at=None, attempts__gt=0)
    now = clock.now()
    assert all(now < one.lease_until <= now + timedelta(seconds=LEASE_S) for one in jobs if one.lease_until)
    assert [now < one.due_at <= now + timedelta(seconds=LEASE_S + TIMEOUT_S) for one in cut] == [True]
    jobs.update(lease_until=now)
    Delivery.objects.filter(pk__in=[one.pk for one in cut]).update(due_at=now)


def test_a_worker_tells_and_one_that_is_killed_in_the_middle_loses_nothing(
    start_worker: Callable[[], subprocess.Popen[bytes]],
) -> None:
    is_in_the_middle, may_answer = threading.Event(), threading.Event()

    def hesitate(request: Any) -> None:
        is_in_the_middle.set()
        may_answer.wait(TIMEOUT_S)
        reply(request, 200)

    with Receiver() as receiver:
        _, secret = actions.create_webhook(actor=ENGINE, team=None, target=receiver.url, verbs=["rollout.*"])
        worker = start_worker()
        first = happen()
        look_until(lambda: Delivery.objects.filter(state=DeliveryState.DELIVERED).count() == 1)
        assert receiver.seqs == [first.seq] and receiver.got[0].is_signed_with(secret)

        receiver.answers = [hesitate]
        wanted = [happen().seq for _ in range(3)]
        look_until(is_in_the_middle.is_set)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        may_answer.set()  # the receiver has done its part: it got the event, and answered into the void
        start_worker()
        let_leases_end()
        look_until(lambda: Delivery.objects.filter(state=DeliveryState.DELIVERED).count() == 4)

        assert sorted(receiver.seqs) == sorted([first.seq, wanted[0], *wanted])  # one twice, none lost
        twice = [got for got in receiver.got if got.said["data"]["seq"] == wanted[0]]
        assert len({got.id for got in twice}) == 1 and len({got.body for got in twice}) == 1
        assert [got.headers["sluicegate-attempt"] for got in twice] == ["1", "2"]
        cut = Delivery.objects.get(event=wanted[0]).tries.get(number=1)
        assert cut.ended_at is None
        assert Job.objects.filter(kind="notifications.dispatch").count() == 1
