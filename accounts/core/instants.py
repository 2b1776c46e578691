"""Instants as people write them: `2026-03-01T12:00:00Z`, `2026-03-01 12:00` (UTC), `2026-03-01`, `2h` (2 hours ago)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
#: Examples for a refusal.
EXAMPLES = "2026-03-01T12:00:00Z, 2026-03-01 12:00 (UTC), or 2h for two hours ago"


def read_instant(text: str, now: datetime) -> datetime | None:
    """The instant, aware; None for no text. Raises ValueError for other text, or a time that cannot be stored."""
    text = text.strip()
    if not text:
        return None
    if ago := re.fullmatch(r"([0-9]{1,6}) ?(s|min|m|h|d|w)", text):
        at = now - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
    else:
        at = datetime.fromisoformat(re.sub(r"(T[0-9:.]+) ([0-9:]+)$", r"\1+\2", text))  # a plus that was not escaped
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if not 1970 <= at.year <= 9000:
        raise ValueError(f"{text!r} is out of range")
    return at
