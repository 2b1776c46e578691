"""The post office: collects what happened, and sends what is due, to several receivers at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from django.conf import settings

from accounts.core.access import Actor
from ledger import mail_sender, webhook_sender
from ledger.actions.deliveries import claim_delivery, collect, drop_old, next_due, record_attempt, start_test
from ledger.core.delivery import Kind, Outcome
from ledger.core.webhook import signatures
from ledger.letters import Letter, letter_of
from ledger.models import Delivery, Subscription

log = logging.getLogger(__name__)
#: So many receivers are sent to at a time, each one delivery after the other: a slow one holds up itself alone.
SENDERS = 8
#: Then the worker's thread is free for other jobs; the sweep calls again for what is left.
LONGEST_ROUND_S = 20.0
#: While letters are on their way, new events are looked for this often.
LOOK_EVERY_S = 1.0


def run_round(is_ours: Callable[[], bool]) -> int:
    """How many attempts were made until nothing was due, the time was up, or `is_ours()` said no."""
    drop_old()
    return _Round(is_ours).run()


class _Round:
    def __init__(self, is_ours: Callable[[], bool]) -> None:
        self.is_ours = is_ours
        self.made = 0
        self.until = time.monotonic() + LONGEST_ROUND_S
        self.look_at = 0.0
        self.may_send = True
        self.last_turn: dict[int, int] = {}  # webhook → when it last had a turn, so that each has one in turn
        self.busy: dict[Future[Outcome], tuple[int, Letter]] = {}

    def run(self) -> int:
        with ThreadPoolExecutor(SENDERS, thread_name_prefix="notify") as pool:
            while True:
                self._look()
                for webhook, letter in self._letters() if self.may_send else []:
                    self.made += 1
                    self.last_turn[webhook] = self.made
                    self.busy[pool.submit(send, letter)] = (webhook, letter)
                if not self.busy:
                    return self.made
                for done in wait(self.busy, timeout=LOOK_EVERY_S, return_when=FIRST_COMPLETED).done:
                    _, letter = self.busy.pop(done)
                    _record(letter, done.result())

    def _look(self) -> None:
        """Whether to go on, and what happened meanwhile; not more often than it is worth."""
        now = time.monotonic()
        if now < self.look_at:
            return
        self.look_at = now + LOOK_EVERY_S
        self.may_send = self.may_send and now < self.until and self.is_ours()
        if self.may_send:
            collect()

    def _letters(self) -> list[tuple[int, Letter]]:
        """The next letters to send: as many as there are free senders, no two to one webhook."""
        busy = {webhook for webhook, _ in self.busy.values()}
        waiting = [pair for pair in next_due() if pair[0] not in busy]
        waiting.sort(key=lambda pair: self.last_turn.get(pair[0], 0))
        claimed = [(webhook, claim_delivery(pk)) for webhook, pk in waiting[: SENDERS - len(busy)]]
        return [(webhook, letter_of(delivery)) for webhook, delivery in claimed if delivery is not None]


def send_test(*, actor: Actor, webhook: Subscription) -> Delivery:
    """A test delivery that was sent just now, whether it arrived or not; its `tries` say how it went. Raises Refused."""
    delivery = start_test(actor=actor, webhook=webhook)
    letter = letter_of(delivery, asked_by=actor.name)
    _record(letter, send(letter))
    return Delivery.objects.prefetch_related("tries").select_related("subscription", "event").get(pk=delivery.pk)


def send(letter: Letter) -> Outcome:
    """One attempt; whatever goes wrong is in the outcome."""
    try:
        if letter.problem:
            return Outcome(letter.problem)
        return _mail(letter) if letter.kind is Kind.EMAIL else _post(letter)
    except Exception as error:  # one letter that cannot be sent must not hold up the others
        log.exception("delivery %s cannot be sent", letter.delivery_id)
        return Outcome(f"It cannot be sent: {type(error).__name__}. The worker's log tells more.")


def _post(letter: Letter) -> Outcome:
    message_id, timestamp = str(letter.delivery_id), int(time.time())
    headers = {
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signatures(letter.secrets, message_id, timestamp, letter.body),
        "Sluicegate-Delivery": message_id,
        "Sluicegate-Event": letter.verb,
        "Sluicegate-Attempt": str(letter.number),
    }
    return webhook_sender.post(
        letter.target,
        letter.body,
        headers,
        timeout_s=settings.WEBHOOK_TIMEOUT_S,
        may_be_private=letter.may_be_private and settings.WEBHOOKS_ALLOW_PRIVATE,
    )


def _mail(letter: Letter) -> Outcome:
    subject, text = letter.mail
    return mail_sender.send(letter.target, f"[Sluicegate] {subject}", text, message_id=str(letter.delivery_id))


def _record(letter: Letter, outcome: Outcome) -> None:
    if not record_attempt(letter.delivery_id, letter.number, outcome):
        log.warning("delivery %s, attempt %d ended here, but was taken over", letter.delivery_id, letter.number)
    elif not outcome.is_ok:
        log.info("delivery %s, attempt %d: %s", letter.delivery_id, letter.number, outcome.error)
