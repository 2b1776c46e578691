"""An event as an e-mail."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from ledger.core.chain import Link
from notifications.core.note import Note


def mail_of(event: Link, *, why: str, url: str = "") -> tuple[str, str]:
    """(subject, text). `why`: recipient, and how to end these mails; `url`: its page, if known."""
    facts = event.facts if isinstance(event.facts, dict) else {}
    named = [str(facts[name]) for name in ("model", "candidate", "environment") if facts.get(name)]
    subject = f"{event.verb}: {' '.join(named) or f'{event.subject_type} {event.subject_id}'}"
    rows = {
        "See": url,
        "State": f"{event.from_state or '–'} → {event.to_state}" if event.to_state else "",
        "Reason": event.reason,
        "Subject": f"{event.subject_type} {event.subject_id}",
        "By": event.actor,
        "At": event.at.isoformat(timespec="seconds"),
        **{name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()},
        "Event": f"{event.seq}, hash {event.hash}",
    }
    lines = [f"{name}: {text}" for name, text in rows.items() if text]
    return subject, "\n".join([*lines, "", "-- ", why, ""])


@dataclass(frozen=True)
class Asked:
    """A requested approval. `due_at`: the stage's deadline, or None."""

    rollout: int
    model: str
    candidate: str
    release: int  # the candidate's number
    environment: str
    stage: str
    needed: int
    by: tuple[str, ...]  # who gave theirs
    asked_by: str
    since: datetime
    due_at: datetime | None
    will: str
    plan: str
    changes: tuple[str, ...]


def approval_mail(asked: Asked, *, public_url: str) -> tuple[str, str]:
    """(subject, text): the approval, the requester, the deadline, and the page for the answer."""
    until = (
        f"{asked.due_at:%Y-%m-%d %H:%M} UTC, this stage's deadline"
        if asked.due_at
        else "no deadline; it waits for people"
    )
    given = f", given by {', '.join(asked.by)}" if asked.by else ""
    lines = [
        f"{asked.candidate} of {asked.model} waits for your approval of {asked.stage} in {asked.environment}.",
        "",
        f"What follows: {asked.will}",
        *(f"What changes: {change}" for change in asked.changes),
        f"Plan: {asked.plan}",
        f"Approvals: {len(asked.by)} of {asked.needed}{given}",
        f"Asked by: {asked.asked_by}",
        f"Since: {asked.since:%Y-%m-%d %H:%M} UTC",
        f"Until: {until}",
    ]
    if public_url:
        lines += [
            "",
            f"Approve or reject it: {public_url}/approvals/",
            f"The comparison: {public_url}/models/{asked.model}/r/{asked.release}/diff/",
            f"The rollout: {public_url}/rollouts/{asked.rollout}/",
        ]
    subject = f"{asked.model} {asked.candidate} in {asked.environment} waits for your approval ({asked.stage})"
    return subject, "\n".join([*lines, *_why("you may approve it", public_url)])


def rollback_mail(note: Note, *, public_url: str) -> tuple[str, str]:
    """(subject, text) of a rollback, for the owners of the model."""
    facts = [f"{label}: {text}" for label, text in note.facts]
    lines = [f"{note.headline}.", "", note.sentence, "", *facts, f"At: {note.at:%Y-%m-%d %H:%M:%S} UTC"]
    return note.headline, "\n".join(
        [*lines, *([f"See: {note.url}"] if note.url else []), *_why("it is yours", public_url)]
    )


def _why(reason: str, public_url: str) -> list[str]:
    where = f": {public_url}/account/#mails" if public_url else "."
    return ["", "-- ", f"You get this because {reason}. Choose your mails on the page of your account{where}", ""]
