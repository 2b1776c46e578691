"""The bodies of webhooks in the forms that chat and paging services take. Every text in them came from elsewhere: none may be markup.

Sources. Slack: docs.slack.dev, incoming webhooks, "Formatting message text" (escaping), Block Kit reference (lengths). Teams:
learn.microsoft.com, "Post a workflow when a webhook request is received"; adaptivecards.io, Adaptive Cards 1.4. PagerDuty:
developer.pagerduty.com, Events API v2, "Send an alert event"; support.pagerduty.com, "Dynamic notifications" (severity and urgency).
Alertmanager: prometheus.io, "Alerting", clients; its OpenAPI of version 2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from ledger.core.canonical import canonical_bytes
from notifications.core.note import Note


class WebhookFormat(StrEnum):
    """`signed` is Sluicegate's own: the whole event, by Standard Webhooks. The others are what these services take."""

    SIGNED = "signed"
    SLACK = "slack"
    TEAMS = "teams"
    PAGERDUTY = "pagerduty"
    ALERTMANAGER = "alertmanager"


F = WebhookFormat
#: Formats with a secret address: anyone with the address can write into the channel.
SECRET_ADDRESS: Final = frozenset({F.SLACK, F.TEAMS})
PAGERDUTY_URL: Final = "https://events.pagerduty.com/v2/enqueue"
#: An integration key of PagerDuty.
_ROUTING_KEY: Final = re.compile(r"[0-9A-Za-z]{32}")
#: Events that page the person on call, with their severity: only a person can go on. A rollback that works pages no person.
WAKES: Final[dict[str, str]] = {
    "rollout.stuck": "critical",
    "rollout.blind": "error",
    "alarm.opened": "critical",
    "alarm.unmuted": "critical",
}
#: Events that end an alert: the rollout has ended, the engine sees again and went on, or the objective is met again.
RESOLVES: Final = frozenset(
    {
        "rollout.rolled_back", "rollout.promoted", "rollout.reverted", "rollout.rejected", "rollout.cancelled",
        "rollout.superseded", "rollout.advanced", "rollout.baking", "alarm.closed",
    }
)  # fmt: skip

#: Of an alert at Alertmanager: its address; seconds between two messages while it is open, and until it ends without another message.
ALERTS_PATH: Final = "/api/v2/alerts"
ALERT_EVERY_S, ALERT_LASTS_S = 60.0, 240.0
#: Alarm events that are sent. Alertmanager has acknowledgement and silence of its own.
_ALERTS: Final = ("alarm.opened", "alarm.closed")
#: Formats in which an alert that comes after its end would stay: the events of one subject go in their order.
IN_ORDER: Final = frozenset({F.PAGERDUTY, F.ALERTMANAGER})

_SLACK_HOSTS: Final = {"hooks.slack.com", "hooks.slack-gov.com"}
_SLACK_PATH: Final = re.compile(r"/services/[A-Za-z0-9]+/[A-Za-z0-9]+/[A-Za-z0-9]+")
#: Lengths, in characters: Slack's header block, a section's text, a field's text; PagerDuty's summary.
_HEADER, _SECTION, _FIELD, _SUMMARY = 150, 3000, 2000, 1024
#: A message to Teams has 28 KB at the most, and a character up to 6 bytes of JSON: headline, sentence, a fact.
_CARD_HEADLINE, _CARD_TEXT, _CARD_FACT = 300, 1500, 200
_MOST_FIELDS: Final = 10


def verbs_for(form: WebhookFormat, verbs: list[str]) -> list[str]:
    """Subset of `verbs` that this format sends. PagerDuty gets events that page and events that end an alert; Alertmanager gets the
    alarms, with their end."""
    if form is F.ALERTMANAGER:
        return list(_ALERTS) if _ALERTS[0] in verbs else []
    if form is not F.PAGERDUTY:
        return verbs
    wakes = [verb for verb in verbs if verb in WAKES]
    return [*wakes, *sorted(RESOLVES)] if wakes else []


def address_problem_of(form: WebhookFormat, url: str) -> str:
    """Problem of an address in this format, beside the general ones, with its fix; empty if there is none."""
    parts = urlsplit(url)
    if form is F.SLACK and parts.hostname in _SLACK_HOSTS:
        if parts.scheme != "https" or not _SLACK_PATH.fullmatch(parts.path):
            return "This is no incoming webhook of Slack. Copy the address that Slack shows: https://hooks.slack.com/services/T…/B…/…"
    elif form in SECRET_ADDRESS and parts.path in ("", "/"):
        return (
            "The address has no path. Copy the whole address that the channel's settings show; it ends in its secret."
        )
    return ""


def routing_key_problem(key: str) -> str:
    """Problem of a PagerDuty integration key, with its fix; empty if there is none."""
    if _ROUTING_KEY.fullmatch(key):
        return ""
    return "A routing key has 32 letters and digits. Copy the integration key of an Events API v2 integration of the service."


def shown_address(url: str) -> str:
    """A secret address as far as it may be shown: `https://hooks.slack.com/…`."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}/…"


# --- Slack ------------------------------------------------------------------------------------------------------------


def slack_body(note: Note) -> dict[str, Any]:
    """A message of blocks with a text for notifications. A text's `verbatim` keeps Slack from making links of what looks like one."""
    facts = [
        {"type": "mrkdwn", "text": f"*{mrkdwn(name, 80)}*\n{mrkdwn(text, _FIELD - 500)}", "verbatim": True}
        for name, text in note.facts[:_MOST_FIELDS]
    ]
    said = f"{note.verb}{f' · event {note.seq}' if note.seq is not None else ''} · {note.at:%Y-%m-%d %H:%M:%S} UTC"
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(note.headline, _HEADER), "emoji": False}}
    ]
    if note.sentence:
        text = {"type": "mrkdwn", "text": mrkdwn(note.sentence, _SECTION), "verbatim": True}
        blocks.append({"type": "section", "text": text})
    blocks.append({"type": "section", "fields": facts})
    if note.url:
        label = {"type": "plain_text", "text": note.button, "emoji": False}
        blocks.append({"type": "actions", "elements": [{"type": "button", "text": label, "url": note.url}]})
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": mrkdwn(said, _FIELD), "verbatim": True}]})
    return {"text": mrkdwn(note.headline, _SECTION), "blocks": blocks}


def mrkdwn(text: str, most: int) -> str:
    """The text with Slack's three control characters escaped, cut to `most` characters with these counted as they are sent.

    Nothing of it can then mention a channel or a person, or be a link with other words.
    """
    out, length = [], 0
    for character in text:
        piece = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(character, character)
        if length + len(piece) > most - 1:
            out.append("…")
            break
        out.append(piece)
        length += len(piece)
    return "".join(out)


# --- Teams ------------------------------------------------------------------------------------------------------------


def teams_body(note: Note) -> dict[str, Any]:
    """An Adaptive Card in a message. What others wrote stands in TextRuns, which know no Markdown: no link has other words."""
    body: list[dict[str, Any]] = [_rich(_cut(note.headline, _CARD_HEADLINE), weight="Bolder", size="Medium")]
    if note.sentence:
        body.append(_rich(note.sentence))
    body.append({"type": "FactSet", "facts": [{"title": name, "value": _no_links(text)} for name, text in note.facts]})
    said = f"{note.verb}{f' · event {note.seq}' if note.seq is not None else ''} · {note.at:%Y-%m-%d %H:%M:%S} UTC"
    body.append(_rich(said, isSubtle=True, size="Small"))
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": _cut(note.headline, _CARD_HEADLINE),
        "msteams": {"width": "Full"},
        "body": body,
    }
    if note.url:
        card["actions"] = [{"type": "Action.OpenUrl", "title": note.button, "url": note.url}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _rich(text: str, **looks: Any) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": _cut(text, _CARD_TEXT), **looks}]}


def _no_links(text: str) -> str:
    """A fact's value is Markdown: without brackets there is no link in it."""
    return _cut(text.replace("[", "(").replace("]", ")"), _CARD_FACT)


# --- PagerDuty --------------------------------------------------------------------------------------------------------


def pagerduty_body(note: Note, *, routing_key: str, source: str) -> dict[str, Any]:
    """A trigger or a resolve of the subject's one alert. `source` names the installation.

    Events that page no person are sent as `resolve`, including test messages.
    """
    dedup_key = f"sluicegate:{note.subject.replace(' ', ':')}"
    severity = WAKES.get(note.verb)
    if severity is None:
        return {"routing_key": routing_key, "event_action": "resolve", "dedup_key": dedup_key}
    severity = "warning" if ("Tier", "ticket") in note.facts else severity
    facts = {name: _cut(text, _SUMMARY) for name, text in note.facts}
    payload: dict[str, Any] = {
        "summary": _cut(f"{note.headline}. {note.sentence}".rstrip(". ") + ".", _SUMMARY),
        "source": source,
        "severity": severity,
        "timestamp": note.at.isoformat(timespec="milliseconds"),
        "class": note.verb,
        "custom_details": {**facts, "Event": str(note.seq)},
    }
    payload |= {
        name: facts[label] for name, label in (("component", "Model"), ("group", "Environment")) if label in facts
    }
    body = {
        "routing_key": routing_key, "event_action": "trigger", "dedup_key": dedup_key, "payload": payload, "client": "Sluicegate",
    }  # fmt: skip
    return {**body, "client_url": note.url, "links": [{"href": note.url, "text": note.button}]} if note.url else body


# --- Alertmanager -----------------------------------------------------------------------------------------------------


def address_in(form: WebhookFormat, target: str) -> str:
    """Address for a message in this format to the webhook's `target`."""
    return target.removesuffix("/").removesuffix(ALERTS_PATH) + ALERTS_PATH if form is F.ALERTMANAGER else target


def alert_of(note: Note, *, now: datetime, source: str) -> dict[str, Any]:
    """One alert. Its labels are its identity, so they are the same when it opens and when it closes. Texts that name no alarm (a
    test) are an alert that has ended.

    An open alert ends later than `now`: it survives one lost message, and ends by itself if Sluicegate stops.
    """
    facts = dict(note.facts)
    names = {"environment": "Environment", "model": "Model", "objective": "Objective", "severity": "Tier"}
    is_open = note.verb == _ALERTS[0]
    labels = {"alertname": "ObjectiveBurning" if "Objective" in facts else "SluicegateTest", "instance": source}
    noted = {"summary": note.headline, "description": note.sentence, "runbook_url": facts.get("Runbook", "")}
    return {
        "labels": labels | {label: facts[name] for label, name in names.items() if name in facts},
        "annotations": {name: text for name, text in noted.items() if text},
        **({"startsAt": note.at.isoformat(timespec="milliseconds")} if is_open else {}),
        "endsAt": (now + timedelta(seconds=ALERT_LASTS_S if is_open else 0)).isoformat(timespec="milliseconds"),
        **({"generatorURL": note.url} if note.url else {}),
    }


def alerts_body(notes: Iterable[Note], *, now: datetime, source: str) -> bytes:
    return canonical_bytes([alert_of(one, now=now, source=source) for one in notes])


def body_in(
    form: WebhookFormat, note: Note, *, routing_key: str = "", source: str = "Sluicegate", now: datetime | None = None
) -> bytes:
    """Request body in a service's format. Equal notes give equal bytes; for Alertmanager also an equal `now`."""
    if form is F.ALERTMANAGER:
        return alerts_body([note], now=now or note.at, source=source)
    makers: dict[WebhookFormat, Callable[[Note], dict[str, Any]]] = {
        F.SLACK: slack_body,
        F.TEAMS: teams_body,
        F.PAGERDUTY: lambda one: pagerduty_body(one, routing_key=routing_key, source=source),
    }
    return canonical_bytes(makers[form](note))


def readable(body: bytes) -> str:
    """A body for people: indented, with characters beyond ASCII unescaped."""
    return json.dumps(json.loads(body), indent=2, ensure_ascii=False)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
