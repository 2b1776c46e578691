"""Servers' own words without the folders of the machine."""

from __future__ import annotations

import re

_ABSOLUTE_PATH = re.compile(r"(?<![\w/.])/(?:[^\s/:'\"<>|]+/)+([^\s/:'\"<>|]*)")
_LONGEST_MESSAGE = 2000
#: Of the body of an error.
READ_BYTES = 64 << 10


def without_paths(message: str) -> str:
    """The message with the names of files in the place of their paths."""
    return _ABSOLUTE_PATH.sub(r"\1", message)


def redacted(message: str) -> str:
    """The message without folders: a traceback keeps file names and lines, and reveals no path of the machine."""
    short = without_paths(message[:READ_BYTES].strip())
    return short if len(short) <= _LONGEST_MESSAGE else f"{short[:_LONGEST_MESSAGE]} …"


def last_words(message: str) -> str:
    """The same of a log, which says at its end why it ended."""
    short = without_paths(message.strip())
    return short if len(short) <= _LONGEST_MESSAGE else f"… {short[-_LONGEST_MESSAGE:]}"
