"""The verbs of webhooks (and e-mail addresses): create, change, rotate the secret, delete."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.db.models import F
from django.db.models.functions import Now

from accounts.actions import lock_team
from accounts.core.access import Actor, Verb, require, require_version
from ledger.actions.events import append_event
from ledger.adapters.secret_encryption import encrypt, fingerprint_of
from ledger.core.errors import Invalid, StateChanged
from ledger.queries import head_seq
from notifications.adapters import mail_sender
from notifications.core.delivery import ReceiverKind, meant_by, pattern_problem
from notifications.core.formats import (
    PAGERDUTY_URL,
    SECRET_ADDRESS,
    WAKES,
    WebhookFormat,
    address_problem_of,
    routing_key_problem,
    shown_address,
    verbs_for,
)
from notifications.core.webhook import LONGEST_TARGET, SECRET_BYTES, secret_text, url_problem
from notifications.models import Webhook

#: Each one is asked about every event of its verbs.
MOST_PER_TEAM = 50
MOST_PATTERNS = 50
_FIXED = "Mails to people go by what each person chose. Turn them off here, or on the page of one's account."
#: Seconds for which the previous secret signs as well: default and maximum.
OVERLAP_S, LONGEST_OVERLAP_S = 86400.0, 7 * 86400.0


@transaction.atomic
def create_webhook(
    *, actor: Actor, team: str | None, kind: str = ReceiverKind.WEBHOOK, format: str = "", target: str = "", verbs: list[str],
    title: str = "", routing_key: str = "",
) -> tuple[Webhook, str]:  # fmt: skip
    """The webhook and its secret, which is never shown again (empty if the format has no signature). It gets events from now on.

    `team` None: every team's events, which takes an administrator. `format` is one of WebhookFormat, empty for `signed`;
    `routing_key` is PagerDuty's, and an empty `target` means PagerDuty's own address. Raises Refused, Invalid, StateChanged.
    """
    _require(actor, team)
    if kind == ReceiverKind.PEOPLE:
        raise _invalid([("kind", "There is one such webhook, which makes itself.", "Name webhook or email.")])
    owner = lock_team(team) if team is not None else None
    if team is not None and owner is None:
        raise _invalid([("team", f"There is no team {team}.", "Name an existing team.")])
    row = Webhook(
        team=owner, kind=ReceiverKind(kind).value, format=_format_of(kind, format), title=title, verbs=verbs,
        may_be_private=_is_trusted(actor), last_seq=head_seq(), created_by=actor.name,
    )  # fmt: skip
    if row.format == WebhookFormat.PAGERDUTY:
        target = target or PAGERDUTY_URL
    given: dict[str, Any] = {"target": target, "verbs": verbs, "title": title, "routing_key": routing_key}
    _check(given, row, may_be_private=row.may_be_private)
    if Webhook.objects.filter(team=owner).count() >= MOST_PER_TEAM:
        raise Invalid("too_many_webhooks", f"There are {MOST_PER_TEAM} webhooks already. Delete an unused webhook.")
    secret = secret_text(secrets.token_bytes(SECRET_BYTES)) if row.format == WebhookFormat.SIGNED else ""
    columns = _stored(row, given) | ({"secret": encrypt(secret)} if secret else {})
    for name, value in columns.items():
        setattr(row, name, value)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        raise StateChanged(
            "webhook_exists", "Another webhook has this target already. Change that webhook, or rotate its secret."
        ) from None
    _tell("webhook.created", row, actor, verbs=verbs)
    return row, secret


@transaction.atomic
def change_webhook(*, actor: Actor, webhook: Webhook, expected_version: int, changes: dict[str, Any]) -> Webhook:
    """The webhook with another `target`, `routing_key`, `verbs`, `title` or `is_active`. Its format never changes.

    A webhook that is off gets no events. Turned on again, it starts with the events from then. Deliveries that were
    pending when it was turned off continue. Raises Refused, Stale, Invalid, StateChanged.
    """
    row = _locked(actor, webhook, expected_version)
    asked = {name: value for name, value in changes.items() if getattr(row, name, None) != value}
    if row.kind == ReceiverKind.PEOPLE and set(asked) - {"is_active"}:
        raise Invalid("people_fixed", _FIXED)
    may_be_private = _is_trusted(actor) if "target" in asked else row.may_be_private
    _check(asked, row, may_be_private=may_be_private)
    columns = _stored(row, asked)
    if not columns:
        return row
    if "target" in asked:
        columns["may_be_private"] = may_be_private
    if columns.get("is_active"):
        columns["last_seq"] = head_seq()
    _changed(row, **columns)
    shown = {name: value for name, value in columns.items() if name in {"verbs", "title", "is_active"}}
    _tell("webhook.changed", row, actor, **shown)
    return row


@transaction.atomic
def rotate_secret(
    *, actor: Actor, webhook: Webhook, expected_version: int, overlap_s: float = OVERLAP_S
) -> tuple[Webhook, str]:
    """The webhook and its new secret, which is never shown again. The one before signs as well for `overlap_s` seconds.

    Raises Refused, Stale, Invalid.
    """
    row = _locked(actor, webhook, expected_version)
    if row.kind != ReceiverKind.WEBHOOK:
        raise Invalid("no_secret", "An e-mail address has no secret; only webhooks are signed.")
    if row.format != WebhookFormat.SIGNED:
        raise Invalid(
            "no_secret",
            f"What goes to {row.format} is not signed. Make a new address or key there, and write it into this webhook.",
        )
    if not 0 <= overlap_s <= LONGEST_OVERLAP_S:
        fix = f"Write 0 to {LONGEST_OVERLAP_S:.0f} seconds; 0 when the secret is known to others."
        raise _invalid([("overlap_s", f"{overlap_s:g} s is no such time.", fix)])
    secret = secret_text(secrets.token_bytes(SECRET_BYTES))
    previous = row.secret if overlap_s else ""
    until = Now() + timedelta(seconds=overlap_s) if overlap_s else None
    _changed(row, secret=encrypt(secret), previous_secret=previous, previous_until=until)
    _tell("webhook.rotated", row, actor, overlap_s=overlap_s)
    return row, secret


@transaction.atomic
def delete_webhook(*, actor: Actor, webhook: Webhook, expected_version: int) -> None:
    """Ends the webhook with everything that is on its way to it, its log and its secret. Raises Refused, Stale."""
    row = _locked(actor, webhook, expected_version)
    if row.kind == ReceiverKind.PEOPLE:
        raise Invalid("people_fixed", _FIXED)
    _tell("webhook.deleted", row, actor)
    row.delete()


def receiver_of(row: Webhook) -> str:
    """Public part of the address: the path may hold a secret, and a mailbox names a person."""
    return (urlsplit(row.target).hostname or "") if row.kind == ReceiverKind.WEBHOOK else row.target.rpartition("@")[2]


def require_manager(actor: Actor, row: Webhook) -> None:
    """Raises Refused unless the actor may manage this webhook."""
    _require(actor, row.team.slug if row.team else None)


def _require(actor: Actor, team: str | None) -> None:
    if team is not None:
        require(actor, Verb.MANAGE_WEBHOOKS, team)
    elif not (actor.is_admin or actor.is_system):
        fix = "Name your team; only administrators leave it out."
        raise _invalid([("team", "A webhook without a team gets the events of every team.", fix)])


def _is_trusted(actor: Actor) -> bool:
    """With private addresses, that is: servers and gateways themselves stand there, and obey any POST."""
    return actor.is_admin or actor.is_system


def _locked(actor: Actor, webhook: Webhook, expected_version: int) -> Webhook:
    row = (
        Webhook.objects.select_for_update(no_key=True, of=("self",))
        .select_related("team")
        .filter(pk=webhook.pk)
        .first()
    )
    if row is None:
        raise StateChanged("webhook_gone", f"Webhook {webhook.pk} was deleted meanwhile. Create another webhook.")
    require_manager(actor, row)
    require_version(row.version, expected_version, f"Webhook {row.pk}")
    return row


def _changed(row: Webhook, **columns: Any) -> None:
    try:
        with transaction.atomic():
            Webhook.objects.filter(pk=row.pk).update(version=F("version") + 1, **columns)
    except IntegrityError:
        raise StateChanged(
            "webhook_exists", "Another webhook has this target already. Change that webhook, or delete it first."
        ) from None
    row.refresh_from_db()


def _tell(verb: str, row: Webhook, actor: Actor, **facts: Any) -> None:
    known = {"team": row.team.slug if row.team else None, "kind": row.kind, "receiver": receiver_of(row)}
    append_event(verb=verb, subject_type="webhook", subject_id=row.pk, actor=actor, facts={**known, **facts})


def _format_of(kind: str, asked: str) -> str:
    """As it is stored. Raises Invalid."""
    if kind == ReceiverKind.WEBHOOK:
        return WebhookFormat(asked or WebhookFormat.SIGNED).value
    if asked:
        raise _invalid([("format", "An e-mail has no format.", "Leave it out, or make a webhook.")])
    return ""


def _stored(row: Webhook, given: dict[str, Any]) -> dict[str, Any]:
    """Columns of the given values. Secrets are encrypted, and compared by their fingerprint."""
    columns = {name: value for name, value in given.items() if name != "routing_key"}
    if "target" in given and row.format in SECRET_ADDRESS:
        address = given["target"]
        columns |= {"target": shown_address(address), "secret_target": encrypt(address)}
        columns |= {"fingerprint": fingerprint_of(address)}
    if given.get("routing_key"):
        columns |= {"secret": encrypt(given["routing_key"]), "fingerprint": fingerprint_of(given["routing_key"])}
    return columns


def _check(given: dict[str, Any], row: Webhook, *, may_be_private: bool) -> None:
    """Raises Invalid with everything that is wrong."""
    found: list[tuple[str, str, str]] = []
    if "target" in given and row.kind == ReceiverKind.EMAIL:
        found += _mail_problems(given["target"])
    elif "target" in given:
        is_open = may_be_private and settings.WEBHOOKS_ALLOW_PRIVATE
        problem = url_problem(given["target"], may_be_private=is_open)
        if problem := problem or address_problem_of(WebhookFormat(row.format), given["target"]):
            found.append(("target", *_halves(problem)))
    if "routing_key" in given:
        found += _key_problems(given["routing_key"], row)
    if "verbs" in given:
        found += _verb_problems(given["verbs"], row)
    if len(given.get("title", "")) > 120:
        found.append(("title", "The title is longer than 120 characters.", "Shorten it."))
    if found:
        raise _invalid(found)


def _key_problems(key: str, row: Webhook) -> list[tuple[str, str, str]]:
    if row.format == WebhookFormat.PAGERDUTY:
        problem = routing_key_problem(key)
        return [("routing_key", *_halves(problem))] if problem else []
    return [("routing_key", "Only PagerDuty has a routing key.", "Leave it out.")] if key else []


def _verb_problems(patterns: list[str], row: Webhook) -> list[tuple[str, str, str]]:
    problems = [pattern_problem(pattern) for pattern in patterns]
    found = [("verbs", *_halves(problem)) for problem in problems if problem]
    if not 1 <= len(patterns) <= MOST_PATTERNS:
        fix = f"Write 1 to {MOST_PATTERNS}, such as rollout.* for every event of rollouts."
        found.append(("verbs", f"There are {len(patterns)} patterns.", fix))
    elif row.format == WebhookFormat.ALERTMANAGER and not verbs_for(WebhookFormat.ALERTMANAGER, meant_by(patterns)):
        found.append(("verbs", "Alertmanager hears of alarms alone.", "Name alarm.* or alarm.opened."))
    elif row.format == WebhookFormat.PAGERDUTY and not verbs_for(WebhookFormat.PAGERDUTY, meant_by(patterns)):
        fix = f"Name {', '.join(WAKES)}, or alarm.* and rollout.* for all."
        found.append(("verbs", "PagerDuty pages for none of these events.", fix))
    return found


def _mail_problems(address: str) -> list[tuple[str, str, str]]:
    if not mail_sender.is_configured():
        fix = "An administrator sets SLUICEGATE_EMAIL_URL (docs/settings.md) and restarts; or use a webhook."
        return [("target", "This installation has no mail server.", fix)]
    try:
        validate_email(address)
    except ValidationError:
        return [("target", f"{address!r} is no e-mail address.", "Write one, such as on-call@example.com.")]
    return [("target", "The address is too long.", "Shorten it.")] if len(address) > LONGEST_TARGET else []


def _halves(problem: str) -> tuple[str, str]:
    """(problem, fix) of a text of one or two sentences."""
    what, stop, fix = problem.partition(". ")
    return (f"{what}.", fix) if stop else ("It cannot be used.", what)


def _invalid(found: list[tuple[str, str, str]]) -> Invalid:
    said = " ".join(f"{field}: {message} {fix}" for field, message, fix in found)
    errors = [{"field": field, "message": message, "fix": fix} for field, message, fix in found]
    return Invalid("webhook_invalid", said, errors=errors)
