"""How far one text is from another: as it is, normalised, or token by token; and how much longer it is."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

_TOKEN = re.compile(r"\w+|[^\w\s]")
#: Tokens of a text that are compared; what follows is not looked at, since the work grows with the square.
MOST_TOKENS = 2000


def normalised(text: str) -> str:
    """Composed (NFC), without case, each run of white space one space, none at the ends."""
    return " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).split())


def tokens_of(text: str) -> list[str]:
    """Words and single signs of the normalised text, the first 2000."""
    return _TOKEN.findall(normalised(text))[:MOST_TOKENS]


def token_distance(expected: str, got: str) -> float:
    """1 less the share of tokens that both have in the same order, 0 to 1: twice the longest common subsequence over both lengths."""
    a, b = tokens_of(expected), tokens_of(got)
    if not a and not b:
        return 0.0
    shared = sum((Counter(a) & Counter(b)).values())  # never less than the subsequence, and soon told
    return 1.0 - 2 * (_common(a, b) if shared else 0) / (len(a) + len(b))


def length_ratio(expected: str, got: str) -> float:
    """Characters got for each one expected, both counted one too many, so that an empty text has a ratio as well."""
    return (len(got) + 1) / (len(expected) + 1)


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest common subsequence.

    Source: Hyyrö, Bit-parallel LCS-length computation revisited, AWOCA 2004: a row of the table as the bits of one integer.
    """
    places: dict[str, int] = {}
    for at, token in enumerate(a):
        places[token] = places.get(token, 0) | 1 << at
    whole = (1 << len(a)) - 1
    row = whole
    for token in b:
        met = row & places.get(token, 0)
        row = ((row + met) | (row - met)) & whole
    return len(a) - row.bit_count()
