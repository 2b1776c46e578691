"""What Slack, Teams and PagerDuty take, as JSON schemas written from their public documentation, closed against what they do not know.

Slack: docs.slack.dev, "Sending messages using incoming webhooks" and the Block Kit reference. Teams: learn.microsoft.com, "Post a workflow
when a webhook request is received", and the schema of Adaptive Cards 1.4 (adaptivecards.io). PagerDuty: developer.pagerduty.com,
Events API v2, "Send an alert event".
"""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator


def _closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def _text(most: int, least: int = 1) -> dict[str, Any]:
    return {"type": "string", "minLength": least, "maxLength": most}


_URL = {"type": "string", "pattern": "^https?://[^ ]+$", "maxLength": 3000}


def _plain(most: int) -> dict[str, Any]:
    return _closed(["type", "text"], type={"const": "plain_text"}, text=_text(most), emoji={"type": "boolean"})


def _mrkdwn(most: int) -> dict[str, Any]:
    # & begins an entity, and < > stand nowhere: whatever else they would begin is Slack's own
    text = {**_text(most), "pattern": "^(?:[^<>&]|&amp;|&lt;|&gt;)*$"}
    return _closed(["type", "text"], type={"const": "mrkdwn"}, text=text, verbatim={"type": "boolean"})


_BUTTON = _closed(["type", "text", "url"], type={"const": "button"}, text=_plain(75), url=_URL, action_id=_text(255))
_BLOCKS = {
    "oneOf": [
        _closed(["type", "text"], type={"const": "header"}, text=_plain(150)),
        _closed(["type", "text"], type={"const": "section"}, text=_mrkdwn(3000)),
        _closed(
            ["type", "fields"],
            type={"const": "section"},
            fields={"type": "array", "minItems": 1, "maxItems": 10, "items": _mrkdwn(2000)},
        ),
        _closed(
            ["type", "elements"],
            type={"const": "actions"},
            elements={"type": "array", "minItems": 1, "maxItems": 25, "items": _BUTTON},
        ),
        _closed(
            ["type", "elements"],
            type={"const": "context"},
            elements={"type": "array", "minItems": 1, "maxItems": 10, "items": _mrkdwn(3000)},
        ),
    ]
}
SLACK = _closed(
    ["text", "blocks"],
    text={**_text(40_000), "pattern": "^(?:[^<>&]|&amp;|&lt;|&gt;)*$"},
    blocks={"type": "array", "minItems": 1, "maxItems": 50, "items": _BLOCKS},
)

_RUN = _closed(
    ["type", "text"], type={"const": "TextRun"}, text=_text(28_000), weight={"enum": ["Lighter", "Default", "Bolder"]},
    size={"enum": ["Small", "Default", "Medium", "Large", "ExtraLarge"]}, isSubtle={"type": "boolean"},
)  # fmt: skip
_FACT = _closed(["title", "value"], title=_text(200), value={**_text(2000, 0), "pattern": r"^[^\[\]]*$"})
_CARD = _closed(
    ["$schema", "type", "version", "body"],
    **{"$schema": {"const": "http://adaptivecards.io/schemas/adaptive-card.json"}},
    type={"const": "AdaptiveCard"},
    version={"enum": ["1.2", "1.3", "1.4"]},
    fallbackText=_text(28_000),
    msteams=_closed([], width={"const": "Full"}),
    body={
        "type": "array",
        "minItems": 1,
        "items": {
            "oneOf": [
                _closed(
                    ["type", "inlines"],
                    type={"const": "RichTextBlock"},
                    inlines={"type": "array", "minItems": 1, "items": _RUN},
                ),
                _closed(["type", "facts"], type={"const": "FactSet"}, facts={"type": "array", "items": _FACT}),
            ]
        },
    },
    actions={
        "type": "array",
        "maxItems": 6,
        "items": _closed(["type", "title", "url"], type={"const": "Action.OpenUrl"}, title=_text(200), url=_URL),
    },
)
TEAMS = _closed(
    ["type", "attachments"],
    type={"const": "message"},
    attachments={
        "type": "array",
        "minItems": 1,
        "maxItems": 1,
        "items": _closed(
            ["contentType", "content"],
            contentType={"const": "application/vnd.microsoft.card.adaptive"},
            contentUrl={"type": "null"},
            content=_CARD,
        ),
    },
)

_KEYS = {"routing_key": {"type": "string", "pattern": "^[0-9A-Za-z]{32}$"}, "dedup_key": _text(255)}
PAGERDUTY = {
    "oneOf": [
        _closed(["routing_key", "event_action", "dedup_key"], **_KEYS, event_action={"const": "resolve"}),
        _closed(
            ["routing_key", "event_action", "dedup_key", "payload"],
            **_KEYS,
            event_action={"const": "trigger"},
            payload=_closed(
                ["summary", "source", "severity"],
                **{"class": {"type": "string"}},
                summary=_text(1024),
                source=_text(255),
                severity={"enum": ["critical", "error", "warning", "info"]},
                timestamp={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$"},
                component={"type": "string"},
                group={"type": "string"},
                custom_details={"type": "object"},
            ),
            client={"type": "string"},
            client_url=_URL,
            links={"type": "array", "items": _closed(["href", "text"], href=_URL, text=_text(255))},
        ),
    ]
}
_INSTANT = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$"}
_LABELS = {
    "type": "object",
    "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
    "additionalProperties": {"type": "string", "minLength": 1},
}
#: `postableAlerts` of Alertmanager's API v2.
ALERTMANAGER = {
    "type": "array",
    "minItems": 1,
    "items": _closed(
        ["labels"],
        labels={**_LABELS, "required": ["alertname"]},
        annotations=_LABELS,
        startsAt=_INSTANT,
        endsAt=_INSTANT,
        generatorURL=_URL,
    ),
}
SCHEMAS = {"slack": SLACK, "teams": TEAMS, "pagerduty": PAGERDUTY, "alertmanager": ALERTMANAGER}
#: Bytes of a message that a Teams workflow takes.
TEAMS_BYTES = 28 * 1024


def problems(form: str, body: Any) -> list[str]:
    """What the service would not take of this body, one line each."""
    return [f"{one.json_path}: {one.message[:300]}" for one in Draft202012Validator(SCHEMAS[form]).iter_errors(body)]
