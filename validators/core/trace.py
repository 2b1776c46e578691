"""Arrivals as they were recorded: a file of when requests came, and the gaps between them, which is all that is kept of it."""

from __future__ import annotations

import csv
import json
import math
import re
from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

#: A recording is kept as a file. At 100 requests a second this is almost three hours.
MOST_GAPS: Final = 1_000_000
#: Of one gap. A longer pause is two recordings.
MOST_GAP_S: Final = 86_400.0
#: The column of a CSV file and the field of a JSON line, in letters of any case.
COLUMN: Final = "timestamp"
_MICROSECONDS: Final = 10**6
_LINE: Final = re.compile(r"[^\r\n]*+(?:\r\n?|\n)|[^\r\n]++")


def gaps_of(text: str) -> Sequence[float]:
    """The gaps in seconds, to the microsecond, between the instants of a recording, from 1 to MOST_GAPS.

    It is CSV with a column TIMESTAMP, or lines that are each an instant or JSON with a field `timestamp`; an instant is a number of
    seconds or ISO 8601. Only their distances count. Raises ValueError, which names the line, for what is no instant, is not in order,
    comes too long after the one before, or is too little or too much.
    """
    gaps, before = array("d"), None
    try:
        for line, told in _rows(text):
            instant_s = _instant(told)
            if instant_s is None:
                raise ValueError(f"line {line} is no number of seconds and no ISO 8601 instant")
            if before is not None:
                if instant_s < before:
                    raise ValueError(f"line {line} is before the one above it")
                if instant_s - before > MOST_GAP_S:
                    raise ValueError(f"line {line} is more than a day after the one above it")
                if len(gaps) == MOST_GAPS:
                    raise ValueError(
                        f"line {line} is one too many, {MOST_GAPS + 1} instants are the most: cut a part out of it"
                    )
                gaps.append(round(instant_s - before, 6))
            before = instant_s
    except csv.Error as error:
        raise ValueError(f"it is no CSV: {error}") from error
    if not any(gaps):
        raise ValueError("it has no two instants")
    return gaps


def kept_bytes(gaps: Sequence[float]) -> bytes:
    """What is stored, and named by its sha256: the gaps as lines of whole microseconds. The same gaps are the same bytes."""
    return b"".join(b"%d\n" % round(gap * _MICROSECONDS) for gap in gaps)


def read_kept(data: bytes) -> Sequence[float]:
    """The gaps in seconds of what `kept_bytes` wrote."""
    return array("d", (int(line) / _MICROSECONDS for line in data.split()))


def read_recording(recording: bytes) -> tuple[bytes, int, float]:
    """(the bytes of `kept_bytes`, the number of gaps, their sum in seconds). Raises ValueError, as `gaps_of` does."""
    try:
        gaps = gaps_of(recording.decode())
    except UnicodeDecodeError as error:
        line = recording.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is no UTF-8 text") from None
    return kept_bytes(gaps), len(gaps), round(math.fsum(gaps), 6)


def _rows(text: str) -> Iterator[tuple[int, Any]]:
    """(number, what it tells) of each line that is not empty, but for a heading."""
    text = text.removeprefix("\ufeff")
    head = [name.strip().lower() for name in next(csv.reader(islice(_lines(text), 1)), [])]
    if COLUMN in head:
        at, table = head.index(COLUMN), csv.reader(_lines(text))
        next(table)
        # a quoted field may go on in the next line
        yield from ((table.line_num, row[at] if at < len(row) else "") for row in table if row)
        return
    for line, words in enumerate(_lines(text), 1):
        if words.strip():
            yield line, _field(words)


def _lines(text: str) -> Iterator[str]:
    """One after another, with their ends: all of them at once are 20 times the text."""
    return (found.group() for found in _LINE.finditer(text))


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
