"""A delivery as it is sent: who gets which bytes, signed with which secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from django.utils import timezone

from ledger.adapters.secret_encryption import Unreadable, decrypt
from ledger.queries.chain_verification import link_of
from notifications.core.delivery import ReceiverKind
from notifications.core.mail import mail_of
from notifications.core.webhook import TEST, body_of, body_of_test
from notifications.models import Delivery, Webhook


@dataclass(frozen=True)
class OutboundMessage:
    """Everything that sending takes, so that a sender needs no database."""

    delivery_id: UUID
    number: int  # of the attempt
    kind: ReceiverKind
    target: str
    may_be_private: bool
    verb: str
    body: bytes = b""  # of a webhook
    mail: tuple[str, str] = ("", "")  # subject and text
    secrets: tuple[str, ...] = field(default=(), repr=False)
    problem: str = ""  # why it cannot be sent at all


def message_of(delivery: Delivery, *, asked_by: str = "") -> OutboundMessage:
    """The message of a claimed delivery; `asked_by` is who asked for a test."""
    row, event = delivery.webhook, delivery.event
    kind = ReceiverKind(row.kind)
    problem, secrets = "", tuple[str, ...]()
    try:
        secrets = secrets_of(row)
    except Unreadable as error:
        problem = f"The secret cannot be read: {error}. Rotate it, and give the receiver the new one."
    why = f"Webhook {row.pk} {row.title} sends this to {row.target}. Turn it off or delete it on the page Webhooks."
    if event is None:
        mail = (TEST, f"{asked_by} asked for this test. It arrived.\n\n-- \n{why}\n")
        body = body_of_test(row.pk, delivery.created_at.isoformat(timespec="microseconds"), asked_by)
    else:
        mail, body = mail_of(link_of(event), why=why), body_of(link_of(event))
    return OutboundMessage(
        delivery.pk, delivery.attempts, kind, row.target, row.may_be_private, event.verb if event else TEST,
        body, mail, secrets, problem,
    )  # fmt: skip


def secrets_of(row: Webhook) -> tuple[str, ...]:
    """The secrets that sign now: the newest first, then the one before for as long as it overlaps. Raises Unreadable."""
    found = [row.secret] if row.secret else []
    if row.previous_secret and row.previous_until and row.previous_until > timezone.now():
        found.append(row.previous_secret)
    return tuple(decrypt(secret) for secret in found)
