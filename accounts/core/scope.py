"""Scope of a token: verbs × models. It narrows its user's permissions, and never widens them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

#: A model's name, or one with `*` for any text: `search-*`.
PATTERN: Final = re.compile(r"[a-z0-9*](?:[a-z0-9_*-]{0,98}[a-z0-9*])?")
#: As many patterns as one scope can hold, and stars as one pattern: each star may cost a match another pass over the name.
MOST_PATTERNS: Final = 50
MOST_STARS: Final = 3


@dataclass(frozen=True)
class Scope:
    """`verbs`: their names, None for all that the user may. `models`: names or patterns, None for all, also those to come.

    Subjects beyond a single model (a team's webhooks, its members) take a scope of all models.
    """

    verbs: frozenset[str] | None = None
    models: frozenset[str] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it narrows nothing."""
        return self.verbs is None and self.models is None

    def has_verb(self, verb: str) -> bool:
        return self.verbs is None or verb in self.verbs

    def has_model(self, model: str | None) -> bool:
        """Whether a model of this name is meant; None is what belongs to no single model."""
        if self.models is None:
            return True
        return model is not None and any(_regex_of(pattern).fullmatch(model) for pattern in self.models)

    def allows(self, verb: str, model: str | None) -> bool:
        return self.has_verb(verb) and self.has_model(model)

    def holds(self, other: Scope) -> bool:
        """Whether everything that the other allows is allowed by this one. Patterns are compared as text: too strict, never too lax."""
        has_verbs = self.verbs is None or (other.verbs is not None and other.verbs <= self.verbs)
        has_models = self.models is None or (other.models is not None and all(map(self._has_pattern, other.models)))
        return has_verbs and has_models

    def _has_pattern(self, pattern: str) -> bool:
        if self.models is None or pattern in self.models:
            return True
        return "*" not in pattern and self.has_model(pattern)

    def text(self) -> str:
        """`release.push, read on search-*`."""
        verbs = "all verbs" if self.verbs is None else ", ".join(sorted(self.verbs))
        return f"{verbs} on {'all models' if self.models is None else ', '.join(sorted(self.models)) or 'no model'}"


WHOLE: Final = Scope()


def models_regex(patterns: Collection[str]) -> str:
    """A regular expression, of Python and of PostgreSQL alike, for the names that any of the patterns means."""
    return f"^({'|'.join(sorted(_escaped(pattern) for pattern in patterns))})$" if patterns else "^$"


def unreadable_patterns(patterns: Iterable[str]) -> list[str]:
    """Those that are no model's name and no pattern of one."""
    return [one for one in patterns if not PATTERN.fullmatch(one) or one.count("*") > MOST_STARS]


def _escaped(pattern: str) -> str:
    return ".*".join(re.escape(part) for part in re.split(r"\*+", pattern))


def _regex_of(pattern: str) -> re.Pattern[str]:
    return re.compile(_escaped(pattern))
