"""The events of a webhook as boxes to tick, by subject, each in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby

from django.http import QueryDict

from ledger.core.verbs import EventVerb

EVERYTHING = "*"


@dataclass(frozen=True)
class Choice:
    """`pattern` is the form's value; `words` its label."""

    pattern: str
    words: str
    is_chosen: bool


@dataclass(frozen=True)
class Group:
    """The events about one kind of thing; `whole` takes those to come as well."""

    title: str
    whole: Choice
    choices: tuple[Choice, ...]

    @property
    def chosen(self) -> int:
        """How many boxes of the group are ticked."""
        return sum(one.is_chosen for one in (self.whole, *self.choices))


def groups(chosen: Collection[str]) -> list[Group]:
    """Every event that is written, by its noun."""
    found = []
    for noun, verbs in groupby(sorted(EventVerb), key=lambda verb: verb.value.partition(".")[0]):
        title = noun.replace("_", " ").capitalize()
        pattern = f"{noun}.*"
        choices = tuple(
            Choice(verb.value, verb.value.partition(".")[2].replace("_", " "), verb.value in chosen) for verb in verbs
        )
        found.append(
            Group(title, Choice(pattern, f"all of these, and those to come ({pattern})", pattern in chosen), choices)
        )
    return found


def picked(given: QueryDict) -> str:
    """The ticked or typed patterns, separated by blanks, without duplicates."""
    return " ".join(dict.fromkeys(" ".join(given.getlist("verbs")).split()))
