"""An event as people read it: a headline, a sentence, facts, and where to look. Slack, Teams, PagerDuty and mails are made from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from ledger.core.chain import Link

#: Predicate of each verb; its subject stands before it. A verb without an entry keeps its own word: `rollout.held` → "held".
_PHRASES: Final[dict[str, str]] = {
    "rollout.requested": "was requested",
    "rollout.approval_requested": "waits for an approval",
    "rollout.approved": "was approved",
    "rollout.blind": "cannot be judged: the counters are not there",
    "rollout.overdue": "is past its deadline",
    "rollout.paused": "is paused",
    "rollout.second_look": "lost its traffic, and gets another look",
    "rollout.rolling_back": "is being rolled back",
    "rollout.rolled_back": "was rolled back",
    "rollout.reverted": "was taken back after its promotion",
    "rollout.stuck": "is stuck: the way back did not work",
    "rollout.promoted": "was promoted",
    "rollout.undo_held": "stays open to be undone",
    "rollout.undo_closed": "can no longer be undone in one step",
    "alarm.opened": "misses an objective",
    "alarm.acknowledged": "misses an objective, and a person looks after it",
    "alarm.muted": "misses an objective, and is muted",
    "alarm.unmuted": "still misses an objective, and is muted no longer",
    "alarm.closed": "had an alarm that is closed now",
    "gate_run.finished": "its gates have ended",
    "webhook.gave_up": "a notification was given up",
    "webhook.test": "a test, and nothing else",
}
#: Labels of the buttons that lead to a page.
_BUTTONS: Final[dict[str, str]] = {
    "rollout": "Open the rollout",
    "alarm": "Open the alarm",
    "gate_run": "Open the gates",
    "model": "Open the model",
    "release": "Open the release",
    "webhook": "Open the webhook",
}
#: Facts that come first, with their labels.
_FACTS: Final[dict[str, str]] = {
    "model": "Model",
    "candidate": "Candidate",
    "stable": "Stable",
    "release": "Release",
    "environment": "Environment",
    "objective": "Objective",
    "tier": "Tier",
    "stage": "Stage",
    "on_call": "On call",
    "runbook_url": "Runbook",
    "escalation": "Escalation",
}

#: The event of the example message.
EXAMPLE: Final = Link(
    seq=812, at=datetime(2026, 3, 1, 12, 0, 0, 250000, tzinfo=UTC), act_id="0f4c", verb="rollout.stuck", subject_type="rollout",
    subject_id="17", actor="system:engine", from_state="rolling_back", to_state="stuck",
    reason="Gateway eu-1 has not taken the route back within 60 s; r2 may still get 5 % of the traffic.",
    facts={"model": "sentiment", "candidate": "r2", "stable": "r1", "environment": "production", "on_call": "#search-on-call"},
    prev_hash="b" * 64, hash="c" * 64,
)  # fmt: skip


@dataclass(frozen=True)
class Note:
    """`facts` are (label, text). `url` is empty if the public address of the pages is not set."""

    verb: str
    seq: int | None  # of the event; None for a test
    subject: str  # as in `rollout 17`; of an alarm with its objective in place of its number
    headline: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    at: datetime
    url: str
    button: str


def note_of(event: Link, *, public_url: str) -> Note:
    """The event in words. `public_url` is the address of the pages without a slash at its end, or empty: then there is no link."""
    facts = event.facts if isinstance(event.facts, dict) else {}
    rows = [(label, str(facts[name])) for name, label in _FACTS.items() if facts.get(name)]
    return Note(
        verb=event.verb,
        seq=event.seq,
        subject=f"{event.subject_type} {_key(event, facts)}",
        headline=f"{_what(event, facts)} {_PHRASES.get(event.verb) or event.verb.partition('.')[2].replace('_', ' ')}",
        sentence=event.reason,
        facts=(*rows, ("By", event.actor)),
        at=event.at,
        url=public_url + path_of(event) if public_url else "",
        button=_BUTTONS.get(event.subject_type, "Open it in the log"),
    )


def _key(event: Link, facts: dict[str, Any]) -> str:
    """The same for all alarms of an objective and tier, so that a rollback begins no second alert."""
    if event.subject_type != "alarm":
        return event.subject_id
    return "/".join(str(facts.get(name, "")) for name in ("environment", "model", "objective", "tier"))


def note_of_test(webhook: int, *, at: datetime, asked_by: str, public_url: str) -> Note:
    """Note of a test delivery."""
    return Note(
        verb="webhook.test", seq=None, subject=f"webhook {webhook}", headline=f"Webhook {webhook}: a test, and nothing else",
        sentence=f"{asked_by} asked for it. It arrived.", facts=(("By", asked_by),), at=at,
        url=f"{public_url}/webhooks/{webhook}/" if public_url else "", button=_BUTTONS["webhook"],
    )  # fmt: skip


def path_of(event: Link) -> str:
    """Page of the event's subject, or else the event's own page in the log."""
    facts = event.facts if isinstance(event.facts, dict) else {}
    if event.subject_type == "rollout" and event.subject_id.isdecimal():
        return f"/rollouts/{event.subject_id}/"
    if event.subject_type == "alarm" and event.subject_id.isdecimal():
        return f"/alarms/{event.subject_id}/"
    if event.subject_type == "gate_run" and event.subject_id.isdecimal():
        return f"/gate-runs/{event.subject_id}/"
    if event.subject_type == "webhook" and event.subject_id.isdecimal() and event.verb != "webhook.deleted":
        return f"/webhooks/{event.subject_id}/"
    if event.subject_type == "model":
        return f"/models/{quote(event.subject_id, safe='')}/"
    number = re.fullmatch(r"r([0-9]+)", str(facts.get("release") or ""))
    if event.subject_type == "release" and number and facts.get("model"):
        return f"/models/{quote(str(facts['model']), safe='')}/r/{number[1]}/"
    return f"/audit/{event.seq}/"


def _what(event: Link, facts: dict[str, Any]) -> str:
    """`sentiment r2 in production`, or else the subject."""
    named = " ".join(str(facts[name]) for name in ("model", "candidate", "release") if facts.get(name))
    if not named:
        return f"{event.subject_type.replace('_', ' ').capitalize()} {event.subject_id}:"
    where = facts.get("environment")
    return f"{named} in {where}" if where else named
