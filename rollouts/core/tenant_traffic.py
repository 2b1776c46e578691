"""The last hour of each tenant's requests to a model, minute by minute: for people to look at, never judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

#: So many minutes are kept.
MINUTES: Final = 60


class TenantMinute(NamedTuple):
    """`at` counts minutes since the epoch (UTC); the rest as `serving.ports.TenantCounters` has it."""

    at: int
    requests: int = 0
    over_quota: int = 0
    shed: int = 0
    errors: int = 0


@dataclass(frozen=True)
class TenantTraffic:
    """By tenant, the oldest minute first. Minutes in which a tenant sent nothing are not there."""

    tenants: Mapping[str, tuple[TenantMinute, ...]] = field(default_factory=dict)

    def after(self, at_s: float, news: Mapping[str, tuple[int, int, int, int]]) -> TenantTraffic:
        """With what was counted up to `at_s` (seconds since the epoch). What comes late goes to the minute that is open."""
        minute = int(at_s // 60)
        found = {name: tuple(one for one in rows if one.at > minute - MINUTES) for name, rows in self.tenants.items()}
        for name, counts in news.items():
            if not any(counts):
                continue
            rows = found.get(name, ())
            if rows and rows[-1].at >= minute:
                last, *more = rows[-1]
                summed = (one + another for one, another in zip(more, counts, strict=True))
                found[name] = (*rows[:-1], TenantMinute(last, *summed))
            else:
                found[name] = (*rows, TenantMinute(minute, *counts))
        return TenantTraffic({name: rows for name, rows in found.items() if rows})

    def since(self, now_s: float, minutes: int) -> dict[str, TenantMinute]:
        """What each tenant sent in the whole minutes before that of `now_s`; `at` is the first of them."""
        present = int(now_s // 60)
        first = present - minutes
        summed = {}
        for name, rows in self.tenants.items():
            counts = [row[1:] for row in rows if first <= row.at < present]
            if counts:
                summed[name] = TenantMinute(first, *map(sum, zip(*counts, strict=True)))
        return summed

    def to_json(self) -> dict[str, Any]:
        return {name: [list(one) for one in rows] for name, rows in self.tenants.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TenantTraffic:
        return cls({name: tuple(TenantMinute(*row) for row in rows) for name, rows in value.items()})
