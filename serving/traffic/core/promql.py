"""PromQL of one release's counter: its placeholders, static checks, and its selectors.

Not a parser of PromQL. Only strings, comments and brackets are told apart; what the query means, Prometheus says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from registry.core.schema import Problem

#: Placeholders that a query may contain as `$name` or `${name}`, inside the quotes of a label's value.
PLACEHOLDERS = ("release", "digest", "model", "environment")
#: One of these must: without it both releases would be asked for the same number.
_NAMES_A_RELEASE = frozenset({"release", "digest"})
MOST_CHARACTERS = 2000

_PLACE = re.compile(r"\$(?:\{(?P<braced>[^{}\"'`]*)(?P<end>\}?)|(?P<plain>[A-Za-z_]\w*))")
_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`[^`]*`|\#[^\n]*")
_SELECTOR = re.compile(r"(?:[A-Za-z_:][\w:]*\s*)?\{[^{}]*\}")
#: Values that can neither end a string of PromQL nor mean something in a regular expression but "." for itself.
_VALUE = re.compile(r"[\w.:/-]*")
_CLOSES = {")": "(", "]": "[", "}": "{"}
#: Replaces quoted text, so that brackets inside quotes are ignored.
_HIDDEN = "\0"


def fill(query: str, values: Mapping[str, str]) -> str:
    """The query with every placeholder's value in its place.

    A `$` that begins no name stays: in a regular expression it is the end. Raises ValueError for a placeholder without a
    value, and for a value that could end the quotes it stands in.
    """

    def value(found: re.Match[str]) -> str:
        name = _name(found)
        if name not in values or not _VALUE.fullmatch(values[name]):
            raise ValueError(f"{found.group()} has no value that can stand in a query: {values.get(name)!r}")
        return values[name]

    return _PLACE.sub(value, query)


def mistakes(query: str, at: str) -> list[Problem]:
    """What is wrong with a policy's query, as far as can be told without Prometheus; `at` is its field."""
    if not query.strip() or len(query) > MOST_CHARACTERS:
        fix = f"Write PromQL of 1 to {MOST_CHARACTERS} characters that gives one number, such as {_example()}."
        return [Problem(at, "there is no query, or it is too long.", fix)]
    if odd := _unbalanced(query):
        return [Problem(at, f"{odd} has no counterpart.", "Close every bracket and every quote that is opened.")]
    found = [*_misplaced(query, at)]
    if not found and not _NAMES_A_RELEASE & {_name(place) for place in _PLACE.finditer(query)}:
        fix = f"Select by $release or $digest, such as {_example()}."
        found.append(Problem(at, "both releases would be asked for the same number.", fix))
    return found


def selectors(query: str) -> list[str]:
    """Every selector with braces, `metric{label="value"}`, each once, in order. Ranges and offsets are left out."""
    shown = _shown(query)
    return list(dict.fromkeys(query[one.start() : one.end()] for one in _SELECTOR.finditer(shown)))


def _misplaced(query: str, at: str) -> Iterator[Problem]:
    shown = _shown(query)
    for place in _PLACE.finditer(query):
        if place["braced"] is not None and not place["end"]:
            yield Problem(at, f"{place.group()} is not closed.", "Write ${release}, or $release.")
        elif _name(place) not in PLACEHOLDERS:
            known = ", ".join(f"${name}" for name in PLACEHOLDERS)
            yield Problem(at, f"{place.group()} is no placeholder.", f"There are {known}.")
        elif shown[place.start()] != _HIDDEN:
            fix = f'Put it in quotes: {{label="{place.group()}"}}.'
            yield Problem(at, f"{place.group()} stands outside of a label's value.", fix)


def _unbalanced(query: str) -> str:
    """The first bracket or quote that has no counterpart; empty if all have."""
    opened: list[str] = []
    for sign in _shown(query):
        if sign in _CLOSES.values():
            opened.append(sign)
        elif sign in "\"'`" or (sign in _CLOSES and (not opened or opened.pop() != _CLOSES[sign])):
            return sign
    return opened[-1] if opened else ""


def _shown(query: str) -> str:
    """The query, as long as it was, with strings and comments hidden."""
    return _QUOTED.sub(lambda found: _HIDDEN * len(found.group()), query)


def _name(place: re.Match[str]) -> str:
    return place["plain"] or place["braced"] or ""


def _example() -> str:
    return 'sum(orders_failed_total{release="$release"})'
