"""The last hour of each tenant's requests to a model, minute by minute: for people to look at, never judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rollouts.core.latency import NOTHING, Classes, added

#: So many minutes are kept.
MINUTES: Final = 60


class TenantMinute(NamedTuple):
    """`at` counts minutes since the epoch (UTC); the rest as `serving.ports.TenantCounters` has it, and how long the answers took."""

    at: int
    requests: int = 0
    over_quota: int = 0
    shed: int = 0
    errors: int = 0
    took: Classes = NOTHING

    def and_more(self, other: TenantMinute) -> TenantMinute:
        """With what else was counted; `at` stays."""
        return TenantMinute(
            self.at,
            self.requests + other.requests,
            self.over_quota + other.over_quota,
            self.shed + other.shed,
            self.errors + other.errors,
            added(self.took, other.took),
        )


@dataclass(frozen=True)
class TenantTraffic:
    """By tenant, the oldest minute first. Minutes in which a tenant sent nothing are not there."""

    tenants: Mapping[str, tuple[TenantMinute, ...]] = field(default_factory=dict)

    def after(self, at_s: float, news: Mapping[str, TenantMinute]) -> TenantTraffic:
        """With what was counted up to `at_s` (seconds since the epoch), whose own `at` says nothing. What comes late goes to the minute
        that is open."""
        minute = int(at_s // 60)
        found = {name: tuple(one for one in rows if one.at > minute - MINUTES) for name, rows in self.tenants.items()}
        for name, more in news.items():
            if not any(more[1:-1]):
                continue
            rows = found.get(name, ())
            if rows and rows[-1].at >= minute:
                found[name] = (*rows[:-1], rows[-1].and_more(more))
            else:
                found[name] = (*rows, more._replace(at=minute))
        return TenantTraffic({name: rows for name, rows in found.items() if rows})

    def since(self, now_s: float, minutes: int) -> dict[str, TenantMinute]:
        """What each tenant sent in the whole minutes before that of `now_s`; `at` is the first of them."""
        present = int(now_s // 60)
        first = present - minutes
        summed: dict[str, TenantMinute] = {}
        for name, rows in self.tenants.items():
            for row in rows:
                if first <= row.at < present:
                    summed[name] = summed.get(name, TenantMinute(first)).and_more(row)
        return summed

    def minutes(self, now_s: float, minutes: int) -> set[int]:
        """Minutes since the epoch in which anybody sent a request, among the whole ones before that of `now_s`."""
        present = int(now_s // 60)
        return {row.at for rows in self.tenants.values() for row in rows if present - minutes <= row.at < present}

    def to_json(self) -> dict[str, Any]:
        return {name: [list(one) for one in rows] for name, rows in self.tenants.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TenantTraffic:
        return cls({name: tuple(_minute(*row) for row in rows) for name, rows in value.items()})


def _minute(at: int, requests: int, over_quota: int, shed: int, errors: int, took: Sequence[int] = ()) -> TenantMinute:
    """One that was kept; before latencies were, or with other classes, it has none."""
    classes = tuple(took) if len(took) == len(NOTHING) else NOTHING
    return TenantMinute(at, requests, over_quota, shed, errors, classes)
