"""How long wrong passwords make one wait: by account, by network, and never for an account where it is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from accounts.core.throttle import KNOWN_FOR, Tally, TallyKind, failed, keys, network_of, succeeded, wait_s

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PAIR, ACCOUNT, NETWORK = TallyKind.PAIR, TallyKind.ACCOUNT, TallyKind.NETWORK


def tallies(**over: Tally) -> dict[TallyKind, Tally]:
    return {kind: over.get(kind.value, Tally()) for kind in TallyKind}


def after(failures: int, *, ago_s: float = 0.0, known_at: datetime | None = None) -> Tally:
    return Tally(failures, NOW - timedelta(seconds=ago_s), known_at)


@pytest.mark.parametrize(
    ("kind", "failures", "wait"),
    [
        ("pair", 4, 0), ("pair", 5, 1), ("pair", 6, 2), ("pair", 9, 16), ("pair", 14, 512), ("pair", 15, 900), ("pair", 999, 900),
        ("account", 29, 0), ("account", 30, 1), ("account", 35, 32), ("account", 36, 60), ("account", 10_000, 60),
        ("network", 59, 0), ("network", 60, 1), ("network", 66, 60),
    ],
)  # fmt: skip
def test_the_wait_doubles_up_to_its_longest(kind: str, failures: int, wait: float) -> None:
    assert wait_s(tallies(**{kind: after(failures)}), NOW) == wait


def test_the_wait_goes_by() -> None:
    assert wait_s(tallies(pair=after(9, ago_s=15)), NOW) == 1
    assert wait_s(tallies(pair=after(9, ago_s=16)), NOW) == 0
    assert wait_s(tallies(pair=after(9, ago_s=16), account=after(36, ago_s=20)), NOW) == 40


def test_an_hour_without_a_failure_forgets_them() -> None:
    old = after(999, ago_s=3600)
    assert wait_s(tallies(pair=old, account=old, network=old), NOW) == 0
    assert failed(old, NOW) == Tally(1, NOW)
    assert failed(after(3, ago_s=3599), NOW) == Tally(4, NOW)


def test_a_known_network_waits_for_its_own_failures_alone() -> None:
    known = Tally(known_at=NOW - KNOWN_FOR + timedelta(seconds=1))
    assert wait_s(tallies(pair=known, account=after(999), network=after(999)), NOW) == 0
    long_ago = Tally(known_at=NOW - KNOWN_FOR)
    assert wait_s(tallies(pair=long_ago, account=after(999)), NOW) == 60
    assert wait_s(tallies(pair=after(7, known_at=NOW)), NOW) == 4


def test_a_success_takes_its_own_try_back_and_forgives_the_pair_alone() -> None:
    assert succeeded(PAIR, after(7), NOW) == Tally(known_at=NOW)
    assert succeeded(ACCOUNT, after(31), NOW).failures == 30
    assert succeeded(NETWORK, Tally(), NOW).failures == 0


def test_a_guesser_gets_few_tries_a_day() -> None:
    """One network against one account, as fast as it is let."""
    tally, now, tries = Tally(), NOW, 0
    while now < NOW + timedelta(days=1):
        now += timedelta(seconds=wait_s(tallies(pair=tally), now))
        tally, tries = failed(tally, now), tries + 1
    assert 90 <= tries <= 115


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.77", "192.0.2.0/24"),
        ("::ffff:192.0.2.77", "192.0.2.0/24"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_neighbours_count_as_one(address: str, network: str) -> None:
    assert network_of(address) == network


def test_tallies_are_named_apart_and_tell_nothing() -> None:
    ours = keys("Ada", "192.0.2.1")
    assert len(set(ours.values())) == 3 and all(len(key) == 64 for key in ours.values())
    assert keys("ada", "192.0.2.9") == ours
    assert keys("ada", "198.51.100.1")[ACCOUNT] == ours[ACCOUNT] and keys("bo", "192.0.2.1")[NETWORK] == ours[NETWORK]
    assert keys("\ud800", "x")[PAIR] != ours[PAIR]
