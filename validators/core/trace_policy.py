"""What a policy may say of recorded arrivals, `load.trace`: the digest of one of the model's traces, or a few gaps themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from registry.core.schema import ListOf, Number, Problem, digest
from validators.core.trace import MOST_GAP_S

#: A policy is kept with every report under it, so that gaps that stand in it are few.
MOST_STATED: Final = 2000
_DIGEST = digest("a trace's digest")
_STATED = ListOf(Number(0, MOST_GAP_S, unit="seconds"), least=1, most=MOST_STATED)


@dataclass(frozen=True)
class TraceOrGaps:
    """A digest, or a list of gaps in seconds; null for neither."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if value is None:
            return None
        return (_DIGEST if isinstance(value, str) else _STATED).read(value, at, problems)


def digest_in(load: Mapping[str, Any]) -> str | None:
    """Which of the model's traces a load section names."""
    trace = load["trace"]
    return trace if isinstance(trace, str) else None


def gaps_in(load: Mapping[str, Any], named: Sequence[float] | None) -> Sequence[float] | None:
    """The gaps that a load section asks for, in seconds; `named` are those of the trace that it names. None for arrivals at random."""
    return named if digest_in(load) else load["trace"]


def words_of(load: Mapping[str, Any]) -> str:
    """When requests come, as the end of a clause; nothing where that is at random."""
    if not load["trace"]:
        return ""
    digest = digest_in(load)
    return f", as trace {digest[:19]}… has it" if digest else f", as {len(load['trace'])} recorded gaps have it"


def problems_of(load: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the trace of a load section, if it has one. A section that could not be read is passed over."""
    trace = load.get("trace")
    if not trace:
        return
    if not isinstance(trace, str) and not sum(trace):
        yield Problem("load.trace", "all of it comes at once.", "Write the gaps between requests, in seconds.")
    if load.get("arrivals_cv", 1) != 1:
        fix = "Leave one of them out."
        yield Problem("load.arrivals_cv", "it means nothing where load.trace says when requests come.", fix)
