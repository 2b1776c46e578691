"""The words of an event as the database indexes them, and of what people look for: runs of letters and digits, in small."""

from __future__ import annotations

import re
from typing import Final

#: Characters of an event that are indexed; what comes after them is found by nobody.
INDEXED_CHARACTERS: Final = 8000
#: Words of one search.
MOST_WORDS: Final = 12
_BETWEEN: Final = '_/.:-@{}[](),="|+'
#: The expression that the index holds, in PostgreSQL's terms. A migration made the index of just this text.
INDEXED: Final = (
    "to_tsvector('simple'::regconfig, translate(left(verb || ' ' || subject_type || ' ' || subject_id || ' ' || actor || ' ' "
    f"|| reason || ' ' || facts::text, {INDEXED_CHARACTERS}), '{_BETWEEN}', '{' ' * len(_BETWEEN)}'))"
)


def query_of(text: str) -> str:
    """The text as PostgreSQL's `to_tsquery` takes it: every word must be there, and each may go on, but for numbers and names
    such as r4. Empty where it has no word."""
    words = re.findall(r"\w+", text.replace("_", " "))[:MOST_WORDS]
    return " & ".join(f"'{word}'" if re.fullmatch("r?[0-9]+", word) else f"'{word}':*" for word in words)
