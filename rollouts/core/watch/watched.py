"""Counts and evidence of an objective of a model in an environment, bin after bin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from rollouts.core.evidence import Side, fixed_sums, mixed
from rollouts.core.watch.comparison import Comparison
from rollouts.core.watch.sequential_test import EVEN, NONE, PAGE, TICKET, Sums, Tier, closing, is_closed

#: Minutes that are kept for burn rates.
MINUTES = 60
#: After this time (s) without an attempt there is no data.
NO_DATA_S = 600.0
#: Evidence of 20, as a logarithm, proves that an objective is met.
MET_LOG_E = math.log(20)


class WatchedMinute(NamedTuple):
    """`at` counts minutes since the epoch (UTC)."""

    at: int
    bad: int
    attempts: int


class Standing(StrEnum):
    """`met`: proven by counts since `since`. `not_judged`: neither proven nor burning. `no_data`: no requests."""

    BURNING = "burning"
    MET = "met"
    NOT_JUDGED = "not_judged"
    NO_DATA = "no_data"


@dataclass(frozen=True)
class Watched:
    """Attributes:
    release: digest of the stable release that is counted.
    since: when the watch began to count that release, in seconds since the epoch (UTC).
    bad, attempts: counted since then.
    unknown_s: seconds since then in which a gateway could not be read, or no engine led.
    at: end of the last bin.
    unread_at: end of the last time without the counts of each gateway; None: there was none.
    asked_at: end of the last bin with an attempt; None: there was none.
    page, ticket: the sums of both tests. `page_ends`, `ticket_ends`: the closing test of an alarm, while it is open.
    part: bad attempts, attempts and seconds of the ticket's bin that is not full yet.
    """

    release: str
    since: float
    bad: int = 0
    attempts: int = 0
    unknown_s: float = 0.0
    at: float = 0.0
    unread_at: float | None = None
    asked_at: float | None = None
    page: Sums = NONE
    ticket: Sums = NONE
    page_ends: Sums = EVEN
    ticket_ends: Sums = EVEN
    part: tuple[int, int, float] = (0, 0, 0.0)
    minutes: tuple[WatchedMinute, ...] = ()
    control: Comparison | None = None  # None: the release before has no share of the traffic

    def after(self, at: float, bad: int, attempts: int, max_frac: float, page: Tier = PAGE) -> Watched:
        """With one more bin of the page's length, which ended at `at`."""
        found = replace(
            self,
            bad=self.bad + bad,
            attempts=self.attempts + attempts,
            at=at,
            asked_at=at if attempts else self.asked_at,
            page=page.after(self.page, bad, attempts, max_frac),
            page_ends=closing(self.page_ends, bad, attempts, max_frac),
            minutes=self._minutes_after(int(at // 60), bad, attempts),
            part=(self.part[0] + bad, self.part[1] + attempts, self.part[2] + PAGE.bin_s),
        )
        if found.part[2] < TICKET.bin_s:
            return found
        counts = found.part[:2]
        return replace(
            found,
            ticket=TICKET.after(self.ticket, *counts, max_frac),
            ticket_ends=closing(self.ticket_ends, *counts, max_frac),
            part=(0, 0, 0.0),
        )

    def unread(self, at: float, seconds: float) -> Watched:
        """After a time (s) up to `at` without the counts of each gateway, which is no evidence."""
        return replace(self, unknown_s=self.unknown_s + seconds, unread_at=at)

    def is_silent(self, now: float) -> bool:
        """Whether no attempt was counted for `NO_DATA_S`."""
        return self.asked_at is None or now - self.asked_at > NO_DATA_S

    def _minutes_after(self, minute: int, bad: int, attempts: int) -> tuple[WatchedMinute, ...]:
        if self.minutes and self.minutes[-1].at == minute:
            last = self.minutes[-1]
            return (*self.minutes[:-1], WatchedMinute(minute, last.bad + bad, last.attempts + attempts))
        return (*(one for one in self.minutes if one.at > minute - MINUTES), WatchedMinute(minute, bad, attempts))

    def is_over(self, tier: str) -> bool:
        return PAGE.is_over(self.page) if tier == PAGE.name else TICKET.is_over(self.ticket)

    def has_ended(self, tier: str) -> bool:
        """Whether an open alarm of this tier closes by itself."""
        return is_closed(self.page_ends if tier == PAGE.name else self.ticket_ends)

    def begun_anew(self, tier: str) -> Watched:
        """After an alarm was opened or closed: both tests of the tier start again."""
        if tier == PAGE.name:
            return replace(self, page=NONE, page_ends=EVEN)
        return replace(self, ticket=NONE, ticket_ends=EVEN)

    def last(self, minutes: int) -> tuple[int, int]:
        """(bad, attempts) of the last minutes up to `at`."""
        newest = [one for one in self.minutes if one.at > self.at / 60 - minutes]
        return sum(one.bad for one in newest), sum(one.attempts for one in newest)

    def burn(self, minutes: int, max_frac: float) -> float | None:
        """The share of bad attempts in the last minutes divided by the objective; None without an attempt."""
        bad, attempts = self.last(minutes)
        return bad / attempts / max_frac if attempts else None

    def bad_since(self, max_frac: float) -> float:
        """When the share went over the objective, to the minute and in seconds since the epoch: the first of the last minutes without
        one within it."""
        since = self.at
        for one in reversed(self.minutes):
            if one.attempts and one.bad <= max_frac * one.attempts:
                break
            since = one.at * 60.0 if one.bad else since
        return since

    def log_e_met(self, max_frac: float) -> float:
        """The evidence of all counts since `since` that the share is under the objective, as a logarithm. Source: `fixed_sums`."""
        return mixed(fixed_sums(self.bad, self.attempts, max_frac, Side.FINE))

    def standing(self, max_frac: float, *, is_burning: bool, now: float) -> Standing:
        if is_burning:
            return Standing.BURNING
        if self.is_silent(now):
            is_unread = self.unread_at is not None and now - self.unread_at <= NO_DATA_S
            return Standing.NOT_JUDGED if is_unread else Standing.NO_DATA
        return Standing.MET if self.log_e_met(max_frac) >= MET_LOG_E else Standing.NOT_JUDGED

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "part": list(self.part), "minutes": [list(one) for one in self.minutes],
            **{name: [float(f"{one:.6g}") for one in getattr(self, name)] for name in _SUMS},
            "control": self.control.to_json() if self.control else None,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Watched:
        plain: dict[str, Any] = {name: value.get(name) if name == "unread_at" else value[name] for name in _PLAIN}
        sums: dict[str, Any] = {name: tuple(value[name]) for name in _SUMS}
        minutes = tuple(WatchedMinute(*one) for one in value["minutes"])
        bad, attempts, seconds = value["part"]
        control = Comparison.from_json(value["control"]) if value.get("control") else None
        return cls(**plain, **sums, minutes=minutes, part=(bad, attempts, seconds), control=control)

    @classmethod
    def read(cls, value: Any) -> Watched | None:
        """`from_json` of a stored value; None if this version cannot read it."""
        try:
            return cls.from_json(value)
        except (KeyError, TypeError, ValueError):
            return None


_PLAIN = ("release", "since", "bad", "attempts", "unknown_s", "at", "unread_at", "asked_at")
_SUMS = ("page", "ticket", "page_ends", "ticket_ends")
