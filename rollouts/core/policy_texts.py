"""Texts of a form in rollout policies."""

from __future__ import annotations

from typing import Final

from registry.core.schema import Text

LABEL: Final = Text(
    40,
    pattern=r"[a-z][a-z0-9_]*",
    like="checkout",
    says="a label",
    rule="small letters, digits and _, at most 40 and beginning with a letter",
)
CLOCK: Final = Text(
    5,
    pattern=r"([01]\d|2[0-3]):[0-5]\d|24:00",
    like="16:30",
    says="a time of day in UTC",
    rule="hours and minutes from 00:00 to 24:00, in quotes",
)
DAY: Final = Text(
    10, pattern=r"\d{4}-\d\d-\d\d", like="2026-12-20", says="a day", rule="year, month and day as YYYY-MM-DD"
)
