"""Kinds of field: each reads one JSON value into its normal form and notes every problem it meets.

A schema is a tree of kinds. Reading never stops at the first mistake: a value that is wrong becomes BAD, is left
out of its record, and the rest is still read, so that one answer names all mistakes at once.
"""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, Final, Protocol


@dataclass(frozen=True)
class Problem:
    """One mistake: where it is (`serving.inputs[0].data_type`), what is wrong, and what to do."""

    field: str
    message: str
    fix: str

    def at(self, place: str) -> Problem:
        """The same mistake, found at `place`."""
        return replace(self, field=place)

    def under(self, place: str) -> Problem:
        """The same mistake of something that lies at `place`: `path` is `files.path` then."""
        return self.at(f"{place}.{self.field}")

    def as_json(self) -> dict[str, str]:
        return {"field": self.field, "message": self.message, "fix": self.fix}


def listed(problems: Sequence[Problem]) -> list[Problem]:
    """The first MOST_PROBLEMS of the mistakes, and one more that counts the rest."""
    rest = len(problems) - MOST_PROBLEMS
    if rest <= 0:
        return list(problems)
    more = f"{rest} more mistake{' is' if rest == 1 else 's are'} not listed."
    return [*problems[:MOST_PROBLEMS], Problem("", more, "Correct those above first.")]


class SchemaType(Protocol):
    """What a value must be."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        """The value's normal form, or BAD after at least one problem was noted."""
        ...


class _Bad:
    def __repr__(self) -> str:
        return "BAD"


#: Most mistakes in one answer. Only these are compared with known words, because that is slow.
MOST_PROBLEMS: Final = 100
#: Characters of a free name: of a tensor, a parameter, a label.
LONGEST_NAME: Final = 256
#: How deep free JSON may be nested.
DEEPEST_JSON: Final = 50

#: Placeholder for a value that could not be parsed.
INVALID: Final = _Bad()


@dataclass(frozen=True)
class Text:
    """A string of at most `most` characters; one of `one_of`, or wholly matching `pattern`. `like` is an example.

    A pattern needs its `rule` in words, for the message: "small letters and digits".
    """

    most: int = 300
    one_of: tuple[str, ...] = ()
    pattern: str = ""
    like: str = ""
    says: str = ""  # what it is, for the message: "an image with its digest"
    rule: str = ""
    near: Callable[[str], str] | None = None  # the nearest text that matches, or an empty one

    def __post_init__(self) -> None:
        if self.pattern and not self.rule:
            raise ValueError(f"the pattern {self.pattern} has no rule in words")

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if not isinstance(value, str):
            return _bad(problems, at, f"{_shown(value)} is not text", self._fix(value, quote=True))
        value = value.replace("\r\n", "\n")  # as browsers send the end of a line
        if self.one_of and value not in self.one_of:
            fix = self._fix(value, is_guessed=len(problems) < MOST_PROBLEMS)
            return _bad(problems, at, f"{_shown(value)} is not {self.says or 'one of the known values'}", fix)
        if self.pattern and not re.fullmatch(self.pattern, value):
            return _bad(problems, at, f"{_shown(value)} is not {self.says or 'of the right form'}", self._fix(value))
        if len(value) > self.most or any(_is_control(char) for char in value):
            fix = f"Write at most {self.most} characters, none of them a control character."
            return _bad(problems, at, "the text is too long or holds control characters", fix)
        return value

    def _fix(self, value: Any, *, quote: bool = False, is_guessed: bool = True) -> str:
        if self.one_of and not is_guessed:
            return f"Write one of {', '.join(self.one_of)}."
        if self.one_of:
            near = difflib.get_close_matches(str(value)[:LONGEST_NAME].lower(), self.one_of, n=1, cutoff=0.5) or [
                one for one in self.one_of if one.lower() == str(value).lower()
            ]
            meant = f" Was {near[0]} meant?" if near else ""
            return f"Write one of {', '.join(self.one_of)}.{meant}"
        example = f", such as {self.like}" if self.like else ""
        meant = self.near(value) if self.near and isinstance(value, str) else ""
        hint = f" Was {meant} meant?" if meant and meant != value and re.fullmatch(self.pattern, meant) else ""
        return f"Write {self.rule or 'text'}{' in quotes' * quote}{example}.{hint}"


def digest(says: str) -> Text:
    """A sha256 with its prefix. `says` is its name in messages."""
    rule = "sha256: and 64 hex digits in lower case"
    return Text(71, pattern="sha256:[0-9a-f]{64}", like="sha256:<64 hex digits>", says=says, rule=rule)


@dataclass(frozen=True)
class TensorName:
    """A tensor's name as its graph has it: printable text, which JSON, gRPC, config.pbtxt and YAML all carry."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if not isinstance(value, str):
            return _bad(problems, at, f"{_shown(value)} is not text", f"{_TENSOR_RULE} Write it in quotes.")
        if not 0 < len(value) <= LONGEST_NAME or not value.isprintable() or value != value.strip(" "):
            fix = f"{_TENSOR_RULE} Export the graph with such a name, and write that."
            return _bad(problems, at, f"{_shown(value)} cannot be a tensor's name", fix)
        return value


_TENSOR_RULE: Final = (
    f"A tensor's name has 1 to {LONGEST_NAME} printable characters, and no space at either end, such as input_ids."
)


@dataclass(frozen=True)
class Integer:
    """A whole number from `least` to `most`."""

    least: int = 0
    most: int = 2**53 - 1
    besides: tuple[int, ...] = ()  # allowed though out of range: -1 as a dimension
    unit: str = ""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        span = f"{self.least} to {self.most}" if self.most < 2**53 - 1 else f"{self.least} or more"
        also = f", or {', '.join(map(str, self.besides))}" if self.besides else ""
        fix = f"Write a whole number{f' of {self.unit}' if self.unit else ''}, {span}{also}."
        if isinstance(value, bool) or not isinstance(value, int):
            return _bad(problems, at, f"{_shown(value)} is not a whole number", fix)
        if value not in self.besides and not self.least <= value <= self.most:
            return _bad(problems, at, f"{value} is out of range", fix)
        return value


@dataclass(frozen=True)
class Number:
    """A finite number from `least` (itself left out when `above`) to `most`."""

    least: float = 0.0
    most: float = math.inf
    above: bool = False
    unit: str = ""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        low = f"{'above ' if self.above else 'at least '}{self.least:g}"
        high = f" and at most {self.most:g}" if self.most < math.inf else ""
        fix = f"Write a number{f' of {self.unit}' if self.unit else ''}, {low}{high}."
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
            return _bad(problems, at, f"{_shown(value)} is not a number", fix)
        if not self.least <= value <= self.most or (self.above and value == self.least):
            return _bad(problems, at, f"{value} is out of range", fix)
        return value


@dataclass(frozen=True)
class Flag:
    """true or false."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if not isinstance(value, bool):
            return _bad(
                problems, at, f"{_shown(value)} is neither true nor false", "Write true or false, without quotes."
            )
        return value


@dataclass(frozen=True)
class Instant:
    """A date or a date with time in ISO 8601; YAML's own dates are read too. The normal form is text."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if isinstance(value, (datetime, date)):
            return value.isoformat()
        try:
            datetime.fromisoformat(value)
        except (TypeError, ValueError):
            return _bad(problems, at, f"{_shown(value)} is not a date", "Write ISO 8601, such as 2026-03-01T12:00:00Z.")
        return value


@dataclass(frozen=True)
class Json:
    """Any JSON value that has a canonical form."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if not _is_json(value):
            return _bad(
                problems,
                at,
                "the value cannot be written as JSON exactly",
                f"Use text without NUL, finite numbers below 2^53, true, false, null, lists and objects, {DEEPEST_JSON} deep.",
            )
        return value


@dataclass(frozen=True)
class ListOf:
    """A list of `least` to `most` items of one kind. With records inside, positions are kept though some are BAD."""

    of: SchemaType
    least: int = 0
    most: int = 1000

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if not isinstance(value, (list, tuple)):
            return _bad(problems, at, f"{_shown(value)} is not a list", "Write a list, also for a single item.")
        if not self.least <= len(value) <= self.most:
            return _bad(problems, at, f"the list has {len(value)} items", f"List {self.least} to {self.most} items.")
        items = [self.of.read(item, f"{at}[{i}]", problems) for i, item in enumerate(value)]
        return INVALID if any(item is INVALID for item in items) else items


@dataclass(frozen=True)
class Object:
    """An object with free member names (1 to LONGEST_NAME printable characters) and values of one kind."""

    of: SchemaType
    most: int = 200

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if not isinstance(value, Mapping):
            return _bad(problems, at, f"{_shown(value)} is not an object", "Write `name: value` pairs.")
        if len(value) > self.most:
            return _bad(problems, at, f"{len(value)} members are too many", f"Write at most {self.most}.")
        out = {}
        for name, item in value.items():
            if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
                fix = f"Use 1 to {LONGEST_NAME} printable characters, in quotes."
                _bad(problems, at, f"{_shown(name)} is not a name", fix)
                continue
            read = self.of.read(item, f"{at}.{name}", problems)
            if read is not INVALID:
                out[name] = read
        return out


_ABSENT: Final = _Bad()


@dataclass(frozen=True)
class Field:
    """A member of a record. A default of None means that null is a value too."""

    kind: SchemaType
    is_needed: bool = False
    default: Any = _ABSENT


def need(kind: SchemaType) -> Field:
    return Field(kind, is_needed=True)


def may(kind: SchemaType, default: Any = _ABSENT) -> Field:
    return Field(kind, default=default)


@dataclass(frozen=True)
class Record:
    """An object with known members. `elsewhere` says, for members that people expect here, where they belong."""

    members: Mapping[str, Field]
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        """The members that could be read, defaults filled in: a partial record when there were problems."""
        if not isinstance(value, Mapping):
            return _bad(
                problems, at, f"{_shown(value)} is not an object", f"Write the members {', '.join(self.members)}."
            )
        for name in value:
            if name not in self.members:
                fix = self._fix_unknown(str(name)) if len(problems) < MOST_PROBLEMS else "Remove it."
                _bad(problems, join(at, name), "there is no such field", fix)
        out = {}
        for name, member in self.members.items():
            read = self._member(name, member, value, at, problems)
            if read is not INVALID:
                out[name] = read
        return out

    def _member(self, name: str, member: Field, value: Mapping[str, Any], at: str, problems: list[Problem]) -> Any:
        if name not in value:
            if member.is_needed:
                _bad(problems, join(at, name), "the field is missing", f"Add {name}.")
            return INVALID if member.default is _ABSENT else member.default
        if value[name] is None and member.default is None:
            return None
        return member.kind.read(value[name], join(at, name), problems)

    def _fix_unknown(self, name: str) -> str:
        if name in self.elsewhere:
            return self.elsewhere[name]
        near = difflib.get_close_matches(name[:LONGEST_NAME], self.members, n=1, cutoff=0.5) or [
            known for known in self.members if known.startswith(f"{name}_")
        ]
        return f"Was {near[0]} meant?" if near else f"Remove it; the fields here are {', '.join(self.members)}."


def join(at: str, name: Any) -> str:
    """`serving` + `inputs` → `serving.inputs`."""
    return f"{at}.{name}" if at else str(name)


def repeated(names: Iterable[Any]) -> list[Any]:
    """What occurs more than once, in the order of the second occurrence."""
    seen: set[Any] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]


def _bad(problems: list[Problem], at: str, message: str, fix: str) -> Any:
    problems.append(Problem(at, f"{message}.", fix))
    return INVALID


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _is_control(char: str) -> bool:
    """A control character other than tab and newline, or half of a surrogate pair, which has no UTF-8 form."""
    return unicodedata.category(char) in {"Cc", "Cs"} and char not in "\n\t"


def _is_finite(value: int | float) -> bool:
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**53


def _is_json(value: Any, depth: int = 0) -> bool:
    """Whether canonical JSON and PostgreSQL can both hold it: finite, no half surrogate, no NUL, not absurdly deep."""
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, (int, float)):
        return _is_finite(value)
    if isinstance(value, str):
        return not any(char == "\x00" or "\ud800" <= char <= "\udfff" for char in value)
    if depth >= DEEPEST_JSON:
        return False
    if isinstance(value, (list, tuple)):
        return all(_is_json(item, depth + 1) for item in value)
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and _is_json(name) and _is_json(item, depth + 1) for name, item in value.items()
    )
