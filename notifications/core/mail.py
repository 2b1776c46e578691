"""An event as an e-mail."""

from __future__ import annotations

import json

from ledger.core.chain import Link


def mail_of(event: Link, *, why: str, url: str = "") -> tuple[str, str]:
    """(subject, text). `why` says to whom this is sent and how to end it; `url` is the page that shows it, where one is known."""
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
