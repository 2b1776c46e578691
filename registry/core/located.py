"""Mistakes with the place where they stand, so that a person finds each of them at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.core.schema import MOST_PROBLEMS, Problem, listed


@dataclass(frozen=True)
class TextPlace:
    """Line and column in a text, both from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Located:
    """One mistake: in which file of the release folder (empty: the folder as a whole), where there, and what to do."""

    file: str
    problem: Problem
    place: TextPlace | None = None

    def as_json(self) -> dict[str, Any]:
        where = {"line": self.place.line, "column": self.place.column} if self.place else {"line": None, "column": None}
        return {"file": self.file, **where, **self.problem.as_json()}


def first_of(found: Sequence[Located]) -> list[Located]:
    """The first MOST_PROBLEMS of the mistakes, and one more that counts the rest."""
    told = listed([one.problem for one in found])
    return [*found[:MOST_PROBLEMS], *(Located("", one) for one in told[MOST_PROBLEMS:])]


def place_of(field: str, places: Mapping[str, TextPlace]) -> TextPlace | None:
    """Where the field is written; for one that is missing, where that stands which it is missing from."""
    while field and field not in places:
        field = re.sub(r"(\.[^.\[]*|\[\d+\]|^[^.\[]*)$", "", field)
    return places.get(field)


def in_document(problems: Iterable[Problem], document: str, places: Mapping[str, TextPlace]) -> list[Located]:
    """Mistakes of fields of a document, such as release.yaml, at their lines."""
    return [Located(document, problem, place_of(problem.field, places)) for problem in problems]
