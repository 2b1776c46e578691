"""Arrivals as they were recorded: a file of when requests came, and the gaps between them, which a gate policy holds."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

#: A policy is kept with every report under it, so that a trace is a part of a recording: some seconds or minutes.
MOST_GAPS: Final = 2000
#: The column of a CSV file and the field of a JSON line, in letters of any case.
COLUMN: Final = "timestamp"


def gaps_of(text: str) -> list[float]:
    """The gaps in seconds between the instants of a recording, from 1 to MOST_GAPS.

    It is CSV with a column TIMESTAMP, or lines that are each an instant or JSON with a field `timestamp`; an instant is a number of
    seconds or ISO 8601. Only their distances count. Raises ValueError, which names the line, for what is no instant, is not in order,
    or is too little or too much.
    """
    found: list[float] = []
    try:
        rows = list(_rows(text))
    except csv.Error as error:
        raise ValueError(f"it is no CSV: {error}") from error
    for line, told in rows:
        instant_s = _instant(told)
        if instant_s is None:
            raise ValueError(f"line {line} is no number of seconds and no ISO 8601 instant")
        if found and instant_s < found[-1]:
            raise ValueError(f"line {line} is before the one above it")
        found.append(instant_s)
    if len(found) < 2 or found[0] == found[-1]:
        raise ValueError("it has no two instants")
    if len(found) > MOST_GAPS + 1:
        raise ValueError(f"it has {len(found)} instants, and {MOST_GAPS + 1} are the most: cut a part out of it")
    return [round(after - before, 6) for before, after in pairwise(found)]


def _rows(text: str) -> Iterator[tuple[int, Any]]:
    """(number, what it tells) of each line that is not empty, but for a heading."""
    lines = text.removeprefix("\ufeff").splitlines()
    head = [name.strip().lower() for name in next(csv.reader(lines[:1]), [])]
    if COLUMN in head:
        at, table = head.index(COLUMN), csv.reader(lines)
        next(table)
        # a quoted field may go on in the next line
        yield from ((table.line_num, row[at] if at < len(row) else "") for row in table if row)
        return
    for line, words in enumerate(lines, 1):
        if words.strip():
            yield line, _field(words)


def _field(words: str) -> Any:
    try:
        told = json.loads(words)
    except (ValueError, RecursionError):
        return words
    if not isinstance(told, dict):
        return told
    return next((value for name, value in told.items() if name.lower() == COLUMN), None)


def _instant(told: Any) -> float | None:
    """Seconds of some clock; an instant without a zone is one of UTC."""
    if isinstance(told, bool) or not isinstance(told, (int, float, str)):
        return None
    try:
        seconds = float(told)
    except (ValueError, OverflowError):
        try:
            at = datetime.fromisoformat(str(told).strip())
        except ValueError:
            return None
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return seconds if math.isfinite(seconds) else None
