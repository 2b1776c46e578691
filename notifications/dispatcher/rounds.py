"""One round of the dispatcher: collects new events and delivers what is due, to several receivers concurrently."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from django.conf import settings

from accounts.core.access import Actor
from notifications.actions.deliveries import claim_delivery, collect, drop_old, next_due, record_attempt, start_test
from notifications.adapters import mail_sender, webhook_sender
from notifications.core.delivery import Outcome, ReceiverKind
from notifications.core.formats import WebhookFormat
from notifications.core.webhook import signatures
from notifications.dispatcher.outbound_message import OutboundMessage, message_of
from notifications.models import Delivery, Webhook

log = logging.getLogger(__name__)
#: Receivers served concurrently, each with one delivery at a time: a slow receiver delays only itself.
SENDERS = 8
#: The worker's thread is then free for other jobs; the scheduler makes the job due again for the rest.
LONGEST_ROUND_S = 20.0
#: While messages are being sent, new events are looked for this often.
LOOK_EVERY_S = 1.0


def run_round(is_ours: Callable[[], bool]) -> int:
    """Number of attempts until nothing was due, the time was up, or `is_ours()` returned False."""
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
        self.busy: dict[Future[Outcome], tuple[int, OutboundMessage]] = {}

    def run(self) -> int:
        with ThreadPoolExecutor(SENDERS, thread_name_prefix="deliver") as pool:
            while True:
                self._look()
                for webhook, message in self._messages() if self.may_send else []:
                    self.made += 1
                    self.last_turn[webhook] = self.made
                    self.busy[pool.submit(send, message)] = (webhook, message)
                if not self.busy:
                    return self.made
                for done in wait(self.busy, timeout=LOOK_EVERY_S, return_when=FIRST_COMPLETED).done:
                    _, message = self.busy.pop(done)
                    _record(message, done.result())

    def _look(self) -> None:
        """Whether to go on, and what happened meanwhile; not more often than it is worth."""
        now = time.monotonic()
        if now < self.look_at:
            return
        self.look_at = now + LOOK_EVERY_S
        self.may_send = self.may_send and now < self.until and self.is_ours()
        if self.may_send:
            collect()

    def _messages(self) -> list[tuple[int, OutboundMessage]]:
        """The next messages to send: at most one for each free sender and each webhook."""
        busy = {webhook for webhook, _ in self.busy.values()}
        waiting = [pair for pair in next_due() if pair[0] not in busy]
        waiting.sort(key=lambda pair: self.last_turn.get(pair[0], 0))
        claimed = [(webhook, claim_delivery(pk)) for webhook, pk in waiting[: SENDERS - len(busy)]]
        return [(webhook, message_of(delivery)) for webhook, delivery in claimed if delivery is not None]


def send_test(*, actor: Actor, webhook: Webhook) -> Delivery:
    """A test delivery that was sent just now, whether it arrived or not; its `tries` hold the outcome. Raises Refused."""
    delivery = start_test(actor=actor, webhook=webhook)
    message = message_of(delivery, asked_by=actor.name)
    _record(message, send(message))
    return Delivery.objects.prefetch_related("tries").select_related("webhook", "event", "person").get(pk=delivery.pk)


def send(message: OutboundMessage) -> Outcome:
    """One attempt, with every error in its outcome."""
    try:
        if message.problem:
            return Outcome(message.problem, is_withdrawn=message.is_withdrawn)
        return _post(message) if message.kind is ReceiverKind.WEBHOOK else _mail(message)
    except Exception as error:  # one message that cannot be sent must not delay the others
        log.exception("delivery %s cannot be sent", message.delivery_id)
        return Outcome(f"It cannot be sent: {type(error).__name__}. See the worker's log.")


def _post(message: OutboundMessage) -> Outcome:
    headers = {
        "Content-Type": "application/json",
        **(_signed(message) if message.format == WebhookFormat.SIGNED else {}),
    }
    return webhook_sender.post(
        message.target,
        message.body,
        headers,
        timeout_s=settings.WEBHOOK_TIMEOUT_S,
        may_be_private=message.may_be_private and settings.WEBHOOKS_ALLOW_PRIVATE,
    )


def _signed(message: OutboundMessage) -> dict[str, str]:
    """The headers by which the receiver knows us; chat and paging services know us by a secret of their own."""
    message_id, timestamp = str(message.delivery_id), int(time.time())
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signatures(message.secrets, message_id, timestamp, message.body),
        "Sluicegate-Delivery": message_id,
        "Sluicegate-Event": message.verb,
        "Sluicegate-Attempt": str(message.number),
    }


def _mail(message: OutboundMessage) -> Outcome:
    subject, text = message.mail
    return mail_sender.send(message.target, f"[Sluicegate] {subject}", text, message_id=str(message.delivery_id))


def _record(message: OutboundMessage, outcome: Outcome) -> None:
    if not record_attempt(message.delivery_id, message.number, outcome):
        log.warning("delivery %s, attempt %d ended here, but was taken over", message.delivery_id, message.number)
    elif not outcome.is_ok and not outcome.is_withdrawn:
        log.info("delivery %s, attempt %d: %s", message.delivery_id, message.number, outcome.error)
