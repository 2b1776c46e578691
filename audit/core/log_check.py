"""Result of a check of the whole log, from the event `log.checked`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ledger.core.chain import ChainReport


@dataclass(frozen=True)
class LogCheck:
    """The log from its first event to number `seq`, which has the hash `hash`. `event`: the number of the event with this result."""

    event: int
    at: datetime
    asked_by: str
    events: int
    seq: int
    hash: str
    is_whole: bool
    problem: str


def facts_of(report: ChainReport) -> dict[str, Any]:
    """The event's facts."""
    breaks = [{"seq": one.seq, "kind": one.kind, "message": one.message} for one in report.breaks]
    return {"events": report.events, "head_seq": report.head_seq, "head": report.head, "breaks": breaks}


def read_check(event: int, at: datetime, actor: str, facts: Mapping[str, Any]) -> LogCheck:
    """Of an event with facts of `facts_of`. Raises KeyError for others."""
    breaks = facts["breaks"]
    problem = breaks[0]["message"] if breaks else ""
    return LogCheck(event, at, actor, facts["events"], facts["head_seq"], facts["head"], not breaks, problem)
