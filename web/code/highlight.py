"""Which colour each piece of a text has, by Pygments, within bounds of length and of work.

The lexer is chosen by the file's name from a list of our own and never guessed. A text that is too long, or makes too many tokens, is
shown plain. Source of the bounds: measured, 10 kB of Python take 0.1 s and 293 kB of JSON make 2.8 MB of HTML.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES, Token

LONGEST_BYTES: Final = 128 << 10
MOST_LINES: Final = 3_000
#: Tokens of one text. Text that makes more of them is made to.
MOST_TOKENS: Final = 40_000
#: A longer line makes a regular expression look back too far.
_LONGEST_LINE: Final = 2_000
#: Without .pbtxt and .proto: their lexer reads on to the text's end from each `//` in a line that ends in a backslash.
_LEXERS: Final = {
    ".py": "python", ".pyi": "python", ".json": "json", ".jsonl": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml",
    ".ini": "ini", ".cfg": "ini", ".sh": "bash", ".md": "markdown",
}  # fmt: skip
#: Of each line, pieces (class of the sheet or "", length) that make up the whole of it.
Pieces = tuple[tuple[tuple[str, int], ...], ...]


def lexer_of(path: str) -> str:
    """The name of the lexer for a file of this name; empty where its text is shown plain."""
    return _LEXERS.get(PurePosixPath(path).suffix.lower(), "")


def pieces_of(lines: list[str], path: str) -> Pieces | None:
    """The pieces of each line; None if the text is shown plain."""
    lexer = lexer_of(path)
    if not lexer or len(lines) > MOST_LINES:
        return None
    if sum(map(len, lines)) + len(lines) > LONGEST_BYTES or any(len(line) > _LONGEST_LINE for line in lines):
        return None
    return _lexed("\n".join(lines), lexer)


def lexed(text: str, lexer: str, most_tokens: int = MOST_TOKENS) -> Pieces:
    """The pieces of each of the text's lines, by at most this number of tokens; a line beyond them is a single plain piece."""
    found: list[list[tuple[str, int]]] = [[]]
    at = 0
    for begin, kind, piece in islice(get_lexer_by_name(lexer).get_tokens_unprocessed(text), most_tokens):
        if begin != at:  # tokens follow each other without a gap, or the lexer is not to be trusted
            break
        at += len(piece)
        _add(found, _class_of(kind), piece)
    _add(found, "", text[at:])
    return tuple(tuple(line) for line in found)


_lexed = lru_cache(maxsize=24)(lexed)


def _add(found: list[list[tuple[str, int]]], name: str, piece: str) -> None:
    """Tokens are cut at newlines, so that each line closes its own; neighbours of one class are one piece."""
    for number, part in enumerate(piece.split("\n")):
        if number:
            found.append([])
        line = found[-1]
        if part and line and line[-1][0] == name:
            line[-1] = name, line[-1][1] + len(part)
        elif part:
            line.append((name, len(part)))


def _class_of(kind: Any) -> str:
    """The sheet's class of a token, such as `k-kd`: of its nearest ancestor with a colour."""
    while kind is not Token:
        short = STANDARD_TYPES.get(kind)
        if short:
            return "" if short in _PLAIN else f"k-{short[:1]}" if short[:1] in _SHORTENED else f"k-{short}"
        kind = kind.parent
    return ""


#: Classes whose first letter says enough: keywords, comments, strings are `s` but for their escapes, numbers are `m`.
_SHORTENED: Final = frozenset("kcsmg")
_PLAIN: Final = frozenset({"n", "w", "p", "x", "esc", "err", "nx", "nn", "py"})
