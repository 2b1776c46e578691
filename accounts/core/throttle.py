"""Waiting time after wrong passwords. Pure: the time is an argument.

Three tallies of failures, each with a wait of its own that doubles from try to try; the longest counts:

- of an account from a network (`pair`): after 5, up to 15 minutes;
- of an account from anywhere (`account`), and of a network for any account (`network`): after 30 and 60, up to a minute.

The last two do not count where this account signed in from this network before: so nobody elsewhere can keep a person out, and a
guesser with many addresses is slowed to one try a minute for each account. Source of the figures: NIST SP 800-63B-4, 3.2.2, asks
for at most 100 failures in a row and names growing waits; OWASP ASVS 5.0, 6.3.1. A password that passes our rules has more than
10^10 equals, so the 1,500 tries a day that remain are nothing.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

#: Failures are forgotten after this time without a failure.
FORGOTTEN_AFTER: Final = timedelta(hours=1)
#: Time for which a network stays known after a sign-in of the account.
KNOWN_FOR: Final = timedelta(days=90)
#: Time for which a tally without a known network is kept after its last failure.
KEPT_FOR: Final = timedelta(days=1)


class TallyKind(StrEnum):
    PAIR = "pair"
    ACCOUNT = "account"
    NETWORK = "network"


@dataclass(frozen=True)
class Limit:
    """`free` failures without a wait, then 1 s, 2 s, 4 s … up to `longest_s`."""

    free: int
    longest_s: float


LIMITS: Final[Mapping[TallyKind, Limit]] = {
    TallyKind.PAIR: Limit(5, 900.0),
    TallyKind.ACCOUNT: Limit(30, 60.0),
    TallyKind.NETWORK: Limit(60, 60.0),
}


@dataclass(frozen=True)
class Tally:
    """Failures in a row, each within an hour of the next, and the last success (of a pair only)."""

    failures: int = 0
    failed_at: datetime | None = None
    known_at: datetime | None = None


def wait_s(tallies: Mapping[TallyKind, Tally], now: datetime) -> float:
    """Seconds until the next try is taken; 0 at once."""
    known_at = tallies[TallyKind.PAIR].known_at
    is_known = known_at is not None and now - known_at < KNOWN_FOR
    counted = [TallyKind.PAIR] if is_known else list(TallyKind)
    return max(_wait_s(current(tallies[kind], now), LIMITS[kind], now) for kind in counted)


def _wait_s(tally: Tally, limit: Limit, now: datetime) -> float:
    if tally.failed_at is None or tally.failures < limit.free:
        return 0.0
    whole_s = min(limit.longest_s, 2.0 ** min(tally.failures - limit.free, 30))
    return max(0.0, whole_s - (now - tally.failed_at).total_seconds())


def current(tally: Tally, now: datetime) -> Tally:
    """The tally without its forgotten parts."""
    if tally.failed_at is None or now - tally.failed_at < FORGOTTEN_AFTER:
        return tally
    return replace(tally, failures=0, failed_at=None)


def failed(tally: Tally, now: datetime) -> Tally:
    """With one more failure."""
    tally = current(tally, now)
    return replace(tally, failures=tally.failures + 1, failed_at=now)


def succeeded(kind: TallyKind, tally: Tally, now: datetime) -> Tally:
    """The tally after a try that was counted as a failure turned out right: others' failures stay counted."""
    if kind is TallyKind.PAIR:
        return Tally(known_at=now)
    return replace(tally, failures=max(0, tally.failures - 1))


def keys(username: str, address: str) -> dict[TallyKind, str]:
    """The tallies' names: sha256, for what is typed as a name may be a password, or of any length."""
    name, network = username.casefold(), network_of(address)
    named = {TallyKind.PAIR: f"{name}\0{network}", TallyKind.ACCOUNT: name, TallyKind.NETWORK: network}
    return {
        kind: hashlib.sha256(f"{kind}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()
        for kind, text in named.items()
    }


def network_of(address: str) -> str:
    """The /24 of an IPv4 address, the /64 of an IPv6 one: one subscriber's. Anything else is a network of its own."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return str(ipaddress.ip_network((found, 24 if found.version == 4 else 64), strict=False))


def forget_at(tally: Tally, now: datetime) -> datetime:
    """Time from which the tally has no effect: its last failure and its last success are both long ago."""
    ends = [now]
    if tally.failed_at is not None:
        ends.append(tally.failed_at + KEPT_FOR)
    if tally.known_at is not None:
        ends.append(tally.known_at + KNOWN_FOR)
    return max(ends)
