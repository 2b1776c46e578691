"""A delivery as it is sent: who gets which bytes, in which form, signed with which secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from ledger.adapters.secret_encryption import Unreadable, decrypt
from ledger.models import Event
from ledger.queries.chain_verification import link_of
from notifications.core.delivery import ReceiverKind
from notifications.core.formats import WebhookFormat, address_in, body_in, readable
from notifications.core.mail import Asked, approval_mail, mail_of, rollback_mail
from notifications.core.note import EXAMPLE, Note, note_of, note_of_test
from notifications.core.webhook import TEST, body_of, body_of_test
from notifications.models import Delivery, Webhook
from notifications.queries.recipients import Recipients, recipients_of


@dataclass(frozen=True)
class OutboundMessage:
    """Everything that sending takes, so that a sender needs no database. Its representation holds no secret."""

    delivery_id: UUID
    number: int  # of the attempt
    kind: ReceiverKind
    format: str  # of a webhook
    target: str = field(repr=False)  # the address that is called
    may_be_private: bool
    verb: str
    body: bytes = field(default=b"", repr=False)  # of a webhook
    mail: tuple[str, str] = ("", "")  # subject and text
    secrets: tuple[str, ...] = field(default=(), repr=False)  # that sign
    problem: str = ""  # why it cannot be sent at all
    is_withdrawn: bool = False  # whether its recipient no longer needs it


def message_of(delivery: Delivery, *, asked_by: str = "") -> OutboundMessage:
    """The message of a claimed delivery; `asked_by` is who asked for a test."""
    row, event = delivery.webhook, delivery.event
    if row.kind == ReceiverKind.PEOPLE:
        return _to_a_person(delivery, asked_by)
    target, secrets, problem = row.target, tuple[str, ...](), ""
    try:
        secrets = secrets_of(row)
        target = decrypt(row.secret_target) if row.secret_target else row.target
    except Unreadable as error:
        problem = f"The secret cannot be read: {error}. {_REPAIRS[row.format == WebhookFormat.SIGNED]}"
    mail, body = ("", ""), b""
    if row.kind == ReceiverKind.EMAIL:
        mail = _mail_of(delivery, asked_by)
    elif not problem:
        body = _body_of(delivery, asked_by, secrets)
    return OutboundMessage(
        delivery.pk, delivery.attempts, ReceiverKind(row.kind), row.format, target_of(row, target), row.may_be_private,
        event.verb if event else TEST, body, mail, secrets, problem,
    )  # fmt: skip


def target_of(row: Webhook, target: str) -> str:
    """The address that a message is sent to; of a mail, the mailbox."""
    return address_in(WebhookFormat(row.format), target) if row.format else target


def _to_a_person(delivery: Delivery, asked_by: str) -> OutboundMessage:
    """A mail of one's own. Who may have it is asked once more: minutes may have passed, and the answer may have been given."""
    event, person = delivery.event, delivery.person
    problem, mail, is_withdrawn = "", ("", ""), False
    if event is None:
        mail = (TEST, f"{asked_by} asked for this test. It arrived.\n")
        problem = (
            "" if person and person.email else "You have no e-mail address. Write one on the page of your account."
        )
    else:
        found = recipients_of(event)
        mine = found is not None and found.need == delivery.need and person in found.people
        if found is None or not mine:
            problem, is_withdrawn = "Not sent: nothing waits for this person any more, or they switched it off.", True
        else:
            mail = _personal_mail(event, found)
    return OutboundMessage(
        delivery.pk, delivery.attempts, ReceiverKind.PEOPLE, "", person.email if person else "", False,
        event.verb if event else TEST, mail=mail, problem=problem, is_withdrawn=is_withdrawn,
    )  # fmt: skip


def _personal_mail(event: Event, found: Recipients) -> tuple[str, str]:
    if found.approval is None:
        return rollback_mail(note_of(link_of(event), public_url=settings.PUBLIC_URL), public_url=settings.PUBLIC_URL)
    waiting, rollout = found.approval, found.approval.rollout
    asked = Asked(
        rollout=rollout.pk, model=rollout.model.slug, candidate=rollout.candidate.name, release=rollout.candidate.number or 0,
        environment=rollout.environment.title, stage=waiting.stage, needed=waiting.needed, by=waiting.by,
        asked_by=rollout.requested_by.username if rollout.requested_by else "the system", since=waiting.since, due_at=rollout.due_at,
        will=waiting.will, plan=waiting.plan, changes=waiting.changes,
    )  # fmt: skip
    return approval_mail(asked, public_url=settings.PUBLIC_URL)


#: Fix for an unreadable secret: whether it signs → the sentence.
_REPAIRS = {
    True: "Rotate the secret, and give the new secret to the receiver.",
    False: "Write the address or the routing key into the webhook anew.",
}


def _mail_of(delivery: Delivery, asked_by: str) -> tuple[str, str]:
    row, event = delivery.webhook, delivery.event
    why = f"Webhook {row.pk} {row.title} sends this to {row.target}. Turn it off or delete it on the page Webhooks."
    note = _note_of(delivery, asked_by)
    if event is None:
        return TEST, "\n".join(
            [f"{asked_by} asked for this test. It arrived.", *([note.url] if note.url else []), "", "-- ", why, ""]
        )
    return mail_of(link_of(event), why=why, url=note.url)


def _body_of(delivery: Delivery, asked_by: str, secrets: tuple[str, ...]) -> bytes:
    row, event = delivery.webhook, delivery.event
    note = _note_of(delivery, asked_by)
    if row.format != WebhookFormat.SIGNED:
        key = "".join(secrets[:1])
        return body_in(WebhookFormat(row.format), note, routing_key=key, source=installation(), now=timezone.now())
    if event is None:
        at = delivery.created_at.isoformat(timespec="microseconds")
        return body_of_test(row.pk, at, asked_by, url=note.url)
    return body_of(link_of(event), url=note.url)


def _note_of(delivery: Delivery, asked_by: str) -> Note:
    if delivery.event is None:
        at = delivery.created_at
        return note_of_test(delivery.webhook_id, at=at, asked_by=asked_by, public_url=settings.PUBLIC_URL)
    return note_of(link_of(delivery.event), public_url=settings.PUBLIC_URL)


def installation() -> str:
    """Name of this installation, for receivers with several."""
    return urlsplit(settings.PUBLIC_URL).hostname or "Sluicegate"


def example_of(row: Webhook) -> str:
    """Example of a stuck rollback for this webhook's receiver, as text without secrets."""
    note = note_of(EXAMPLE, public_url=settings.PUBLIC_URL)
    if row.format == WebhookFormat.SIGNED:
        return readable(body_of(EXAMPLE, url=note.url))
    return readable(body_in(WebhookFormat(row.format), note, routing_key="…", source=installation()))


def secrets_of(row: Webhook) -> tuple[str, ...]:
    """The secrets that sign now: the newest first, then the previous secret during its overlap. Raises Unreadable."""
    found = [row.secret] if row.secret else []
    if row.previous_secret and row.previous_until and row.previous_until > timezone.now():
        found.append(row.previous_secret)
    return tuple(decrypt(secret) for secret in found)
