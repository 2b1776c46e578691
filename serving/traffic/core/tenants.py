"""Whose requests gateways let through to a model: so many a second of each named tenant, and of everybody else together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

#: A bucket that fills more often than this (Envoy's least is 0.05 s) is filled with several tokens each second.
_ONE_BY_ONE_BELOW_PER_S = 20.0


@dataclass(frozen=True)
class Quota:
    """`per_s` requests a second for long, `burst` at once after a pause; both above 0."""

    per_s: float
    burst: float

    @classmethod
    def of(cls, stated: Mapping[str, Any]) -> Quota:
        """From `requests_per_s` and `burst`; without one, as much as comes in a second."""
        rate = float(stated["requests_per_s"])
        return cls(rate, float(stated.get("burst") or rate))

    def bucket(self, gateways: int) -> tuple[int, int, float]:
        """(most tokens, tokens that come at once, seconds between) of one of so many gateways that share the quota.

        Above 20 a second the rate is rounded to whole requests; a gateway's part of a burst is rounded up, to one at least.
        """
        rate = self.per_s / gateways
        most = max(1, ceil(self.burst / gateways))
        if rate <= _ONE_BY_ONE_BELOW_PER_S:
            return most, 1, 1 / rate
        return max(most, round(rate)), round(rate), 1.0


@dataclass(frozen=True)
class Tenants:
    """`header` names the tenant, where it is believed. `named`: quotas by name; `others` is everybody else's together."""

    header: str
    named: tuple[tuple[str, Quota], ...]
    others: Quota

    @classmethod
    def of(cls, policy: Mapping[str, Any]) -> Tenants | None:
        """From a model's traffic policy; None where it names no tenants. Raises KeyError, TypeError and ValueError."""
        stated = policy.get("tenants")
        if not stated:
            return None
        named = tuple((name, Quota.of(one)) for name, one in sorted(stated["named"].items()))
        return cls(str(stated["header"]), named, Quota.of(stated["others"]))
