"""The worker that tells webhooks, killed at its writes: every event arrives, at least once and under one number."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone

import notifications.tasks  # noqa: F401 - registers the handler, as Celery does
from ledger.models import Event, Job
from ledger.tasks import run_job
from notifications.actions import create_webhook
from notifications.actions.deliveries import wake_dispatcher
from notifications.models import Delivery, Webhook
from tests.kills import checks, databases
from tests.kills.campaign import Played
from tests.kills.points import Point, Points, sites_in
from tests.kills.process import Child, fork
from tests.kills.stage import Stage
from tests.kills.stories import ADMIN, Story, person

LEASE_S, TIMEOUT_S = 0.6, 1.0
LONGEST_S = 120.0


class _Receiver(BaseHTTPRequestHandler):
    """Notes the number of each delivery that arrives, and the event in it."""

    notes: Path

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.notes.open("a") as notes:
            notes.write(f"{self.headers['webhook-id']} {body['data']['seq']}\n")
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def dispatcher(trace: Path, at: Point | None, job_id: str) -> None:
    """What a Celery worker does when it is handed the dispatcher's job."""
    Points(str(trace), at).watch()
    settings.JOB_LEASE_S, settings.WEBHOOK_TIMEOUT_S = LEASE_S, TIMEOUT_S
    if at is not None and at.is_freeze:  # who goes on after it may wait for its processor for longer
        databases.let_go_after(0.8)
    run_job(job_id)


@dataclass(frozen=True)
class NotifyVictim:
    kind: str = "worker"
    name: str = "worker, webhooks told"
    can_freeze: bool = True
    template: str = "kills_notify"

    def make_template(self) -> None:
        databases.copy(databases.BASE, self.template)
        databases.use(self.template)
        Story("told", "preparing", starts=False).seed()
        create_webhook(actor=person(ADMIN), team=None, target="http://127.0.0.1:9/", verbs=["*"])
        Story.start(person(ADMIN))
        databases.use("postgres")

    def play(self, folder: Path, at: Point | None) -> Played:
        return Telling(folder, at).play()


@dataclass
class Telling(Stage):
    folder: Path
    at: Point | None
    template: str = NotifyVictim.template
    workers: list[Child] = field(default_factory=list)

    def tell(self) -> None:
        Webhook.objects.update(target=self._receiver())
        until = time.monotonic() + LONGEST_S
        while not self._is_done() or Job.objects.filter(state="running").exists():
            wake_dispatcher()  # as the scheduler does
            job = Job.objects.filter(state__in=["queued", "running"], due_at__lte=timezone.now()).first()
            is_free = (
                not self.workers or self.workers[-1].is_over or (self.workers[-1].is_frozen and len(self.workers) == 1)
            )
            if job is not None and is_free:
                self._start(str(job.pk))
            assert time.monotonic() < until, (
                f"after {LONGEST_S:g} s: {list(Delivery.objects.values_list('state', 'attempts'))}"
            )
            time.sleep(0.03)
        first, was_frozen = self.workers[0], False
        for worker in self.workers:
            while not worker.is_over:
                if worker.is_frozen:
                    was_frozen = True
                    worker.thaw()
                assert time.monotonic() < until, f"{worker.name} does not end"
                time.sleep(0.01)
        self.played.was_reached = self.at is None or first.was_killed or was_frozen
        self._check()

    def _receiver(self) -> str:
        server = HTTPServer(("127.0.0.1", 0), _Receiver)
        _Receiver.notes = self.place / "arrived"
        _Receiver.notes.touch()
        self.begin(fork("receiver", server.serve_forever, self.log))
        server.socket.close()
        return f"http://127.0.0.1:{server.server_address[1]}/hook"

    def _is_done(self) -> bool:
        told = Event.objects.filter(seq__gte=self._first_seq()).count()
        return told > 0 and Delivery.objects.filter(state="delivered").count() >= told

    def _first_seq(self) -> int:
        """The first event that it is told of: its own making."""
        return Event.objects.filter(verb="webhook.created").order_by("seq").values_list("seq", flat=True)[0]

    def _start(self, job_id: str) -> None:
        at = self.at if not self.workers else None
        trace = self.place / ("second" if self.workers else "first")
        self.workers.append(self.begin(fork("dispatcher", lambda: dispatcher(trace, at, job_id), self.log)))

    def _check(self) -> None:
        self.played.trace = sites_in(self.place / "first")
        self.played.problems += checks.broken_rules()
        wanted = list(Event.objects.filter(seq__gte=self._first_seq()).order_by("seq").values_list("seq", flat=True))
        rows = list(Delivery.objects.order_by("event").values_list("event", "state"))
        if rows != [(seq, "delivered") for seq in wanted]:
            self.played.problems.append(f"events {wanted} have the deliveries {rows}")
        arrived = [line.split() for line in (self.place / "arrived").read_text().splitlines()]
        ids = {number: str(pk) for pk, number in Delivery.objects.values_list("pk", "event")}
        if {(number, int(seq)) for number, seq in arrived} != {(ids[seq], seq) for seq in wanted}:
            self.played.problems.append(f"events {wanted} were told as {arrived}")
        twice = sum(count - 1 for count in Counter(number for number, _ in arrived).values())
        if twice > (0 if self.at is None else 1):
            self.played.problems.append(f"{twice} deliveries arrived once more")
        self.played.history = {"deliveries": [list(row) for row in rows]}


NOTIFICATIONS = [NotifyVictim()]
