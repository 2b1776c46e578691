"""How many requests a caller may send: a bucket of tokens that fills by itself.

Source of the bucket: ITU-T I.371, generic cell rate algorithm, in its form as a leaky bucket. Source of the fields:
draft-ietf-httpapi-ratelimit-headers-10, sections 3 and 4.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

#: The time in which an empty bucket fills, in seconds.
WINDOW_S: Final = 60.0
#: Callers that are remembered at once; beyond it those that were quiet the longest are forgotten, and begin with a full bucket.
MOST_CALLERS: Final = 10_000


@dataclass(frozen=True)
class Allowance:
    """A caller's remaining budget after a request. `wait_s` is 0 for an accepted request."""

    quota: int  # requests in a full bucket
    left: int
    full_in_s: int
    wait_s: int

    @property
    def policy_field(self) -> str:
        """The value of `RateLimit-Policy`."""
        return f'"caller";q={self.quota};w={WINDOW_S:g}'

    @property
    def field(self) -> str:
        """The value of `RateLimit`."""
        return f'"caller";r={self.left};t={self.full_in_s}'


class Buckets:
    """The buckets of many callers, each of `quota` requests a minute. Instants are seconds that never run backwards."""

    def __init__(self, quota: int) -> None:
        self.quota = quota
        self._found: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller → (tokens, when)

    def take(self, caller: str, now: float, cost: float = 1.0) -> Allowance:
        """Takes `cost` requests from the caller's budget. If it is too small, takes nothing and sets `wait_s`."""
        tokens, rate = self._tokens(caller, now), self.quota / WINDOW_S
        is_enough = tokens >= cost
        if is_enough:
            tokens -= cost
        self._keep(caller, tokens, now)
        wait_s = 0 if is_enough else max(1, math.ceil((cost - tokens) / rate))
        return Allowance(self.quota, int(tokens), math.ceil((self.quota - tokens) / rate), wait_s)

    def charge(self, caller: str, now: float, cost: float) -> None:
        """Takes `cost` requests afterwards, down to nothing."""
        self._keep(caller, max(0.0, self._tokens(caller, now) - cost), now)

    def _tokens(self, caller: str, now: float) -> float:
        tokens, at = self._found.get(caller, (float(self.quota), now))
        return min(float(self.quota), tokens + max(0.0, now - at) * self.quota / WINDOW_S)

    def _keep(self, caller: str, tokens: float, now: float) -> None:
        self._found[caller] = (tokens, now)
        self._found.move_to_end(caller)
        if len(self._found) > MOST_CALLERS:
            self._found.popitem(last=False)
