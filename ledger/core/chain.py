"""The hash chain of events: what a hash covers, and what a break in the chain looks like."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from ledger.core.canonical import MAX_SAFE_INTEGER, digest_of

#: What the first event points back to.
GENESIS = "0" * 64


@dataclass(frozen=True)
class Link:
    """One event as it is hashed. `facts` must have come through `storable`."""

    seq: int
    at: datetime
    act_id: str
    verb: str
    subject_type: str
    subject_id: str
    actor: str
    from_state: str
    to_state: str
    reason: str
    facts: dict[str, Any]
    prev_hash: str
    hash: str = ""

    def expected_hash(self) -> str:
        """64 hex digits over everything but `hash` itself."""
        covered = {name: value for name, value in vars(self).items() if name != "hash"}
        covered["at"] = self.at.astimezone(UTC).isoformat(timespec="microseconds")
        covered["facts"] = storable(self.facts)
        return digest_of(covered).removeprefix("sha256:")


@dataclass(frozen=True)
class Break:
    """One place where the log is not what was written. `seq` is the first event that does not fit."""

    seq: int
    kind: str  # edited | missing | reordered | truncated | rewritten
    message: str


@dataclass(frozen=True)
class ChainReport:
    """What a walk over the whole log found. `head` with `head_seq`, noted elsewhere, pins everything before it."""

    events: int
    head: str  # the hash of the last event
    head_seq: int = 0
    breaks: tuple[Break, ...] = ()

    @property
    def is_whole(self) -> bool:
        return not self.breaks

    @property
    def broken_at(self) -> int | None:
        return self.breaks[0].seq if self.breaks else None

    @property
    def problem(self) -> str:
        return self.breaks[0].message if self.breaks else ""


def walk(
    links: Iterable[Link],
    *,
    head_seq: int,
    head_hash: str,
    pin: tuple[int, str] | None = None,
    most_breaks: int = 20,
) -> ChainReport:
    """Checks events in order of `seq` against their own hashes, their neighbours and the noted head.

    `pin` is (seq, hash) of an event as somebody noted it elsewhere: a log that was rewritten from there on, with every hash
    made right, is whole in itself and differs from it. Stops looking after `most_breaks`, because one edit early in a
    rewritten log breaks everything after it.
    """
    breaks: list[Break] = []
    checked, seq, prev = 0, 0, GENESIS
    for link in links:
        checked += 1
        if len(breaks) < most_breaks:
            breaks += _breaks_at(link, seq, prev)
        seq, prev = link.seq, link.hash
        if pin is not None and pin[0] == seq:
            if pin[1] != link.hash:
                said = f"Event {seq} has another hash than was noted elsewhere: the log was rewritten up to it."
                breaks.append(Break(seq, "rewritten", said))
            pin = None
    if pin is not None and pin != (0, GENESIS):
        breaks.append(Break(seq, "truncated", f"Event {pin[0]} was noted elsewhere, and the log has no such event."))
    if (seq, prev) != (head_seq, head_hash):
        message = f"The log ends at event {seq}, but event {head_seq} was the last one written."
        if seq == head_seq:
            message = f"Event {seq} is the last one, but another text was written there."
        breaks.append(Break(seq, "truncated" if seq != head_seq else "edited", message))
    return ChainReport(checked, prev, seq, tuple(breaks))


def walk_part(links: Iterable[Link], *, after: tuple[int, str], most_breaks: int = 20) -> ChainReport:
    """Checks successive events that follow the event `after`, which is given as (seq, hash), against their own hashes and
    each other. Nothing is said of what comes before or behind them."""
    breaks: list[Break] = []
    checked, (seq, prev) = 0, after
    for link in links:
        checked += 1
        if len(breaks) < most_breaks:
            breaks += _breaks_at(link, seq, prev)
        seq, prev = link.seq, link.hash
    return ChainReport(checked, prev, seq, tuple(breaks))


def _breaks_at(link: Link, seq: int, prev: str) -> list[Break]:
    found = []
    if link.expected_hash() != link.hash:
        found.append(Break(link.seq, "edited", f"Event {link.seq} was changed after it was written."))
    if link.seq != seq + 1:
        found.append(Break(link.seq, "missing", f"Between event {seq} and event {link.seq} something was deleted."))
    elif link.prev_hash != prev:
        found.append(
            Break(link.seq, "reordered", f"Event {link.seq} does not follow event {seq}: the order was changed.")
        )
    return found


def storable(value: Any) -> Any:
    """The value as JSON can hold it exactly, whatever it is: an event is never lost for the shape of its facts.

    Instants become ISO 8601 text; infinities, NaN and integers beyond 2^53-1 become text or doubles; anything unknown its `str`.
    Idempotent, also after a trip through a JSONB column.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value).replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, int):
        return (
            int(value)
            if abs(value) <= MAX_SAFE_INTEGER
            else _double(float(value))
            if abs(value) < 10**308
            else str(value)
        )
    if isinstance(value, float):
        return _double(float(value))
    if isinstance(value, dict):
        return {storable(str(key)): storable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [storable(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((storable(item) for item in value), key=str)
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    return storable(str(value))


def _double(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
