"""Passwords for entry, taken no faster than `accounts.core.throttle` allows. The page and the API share it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import datetime

from django.contrib.auth import authenticate
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from accounts.actions.hashing import one_of_few
from accounts.core import throttle
from accounts.core.throttle import Tally, TallyKind
from accounts.models import SignInTally, User
from ledger.core.errors import Throttled, field_error

log = logging.getLogger(__name__)


def sign_in(*, username: str, password: str, address: str, now: datetime | None = None) -> User | None:
    """Who signs in from this address (an IP address, as text); None when name and password do not belong together.

    Every try that is looked at is counted as a failure before it is, and taken back when it is right, so that many at once
    are not many free ones. Raises Throttled with `retry_after_s`, Unavailable, uncounted, where too many try at once.
    """
    now = now or timezone.now()
    named = throttle.keys(username, address)
    _refuse_early(_tallies(named), now)  # who has to wait anyway takes nobody's place in the queue
    with one_of_few():
        _count_failure(named, now)
        user = authenticate(username=username, password=password)
    if not isinstance(user, User):
        log.warning("a wrong password from network %s", throttle.network_of(address))
        return None
    _count_success(named, now)
    return user


def prove_password(*, user: User, password: str, address: str, now: datetime | None = None) -> None:
    """Raises Invalid unless it is the user's password; counted and slowed as a try to sign in, so that a stolen token cannot guess."""
    if sign_in(username=user.username, password=password, address=address, now=now) is None:
        raise field_error("old_password", "That is not the password.", "Type the one that you sign in with now.")


def forget_failures() -> None:
    """Nobody waits for failures of before; which rows are one account's, their names do not tell."""
    SignInTally.objects.exclude(failures=0).update(failures=0, failed_at=None)


def _refuse_early(tallies: Mapping[TallyKind, Tally], now: datetime) -> None:
    wait_s = throttle.wait_s(tallies, now)
    if wait_s > 0:
        seconds = math.ceil(wait_s)
        raise Throttled(
            "too_many_attempts",
            f"Too many wrong passwords. Try again in {seconds} s; a token or a session that is there goes on.",
            retry_after_s=seconds,
        )


@transaction.atomic
def _count_failure(named: Mapping[TallyKind, str], now: datetime) -> None:
    tallies = _locked(named)
    _refuse_early(tallies, now)
    _write(named, {kind: throttle.failed(tally, now) for kind, tally in tallies.items()}, now)
    _forget_old(now)


@transaction.atomic
def _count_success(named: Mapping[TallyKind, str], now: datetime) -> None:
    tallies = _locked(named)
    _write(named, {kind: throttle.succeeded(kind, tally, now) for kind, tally in tallies.items()}, now)


def _locked(named: Mapping[TallyKind, str]) -> dict[TallyKind, Tally]:
    """The tallies, made where there are none, and locked in one order until the transaction ends."""
    SignInTally.objects.bulk_create([SignInTally(key=key) for key in sorted(named.values())], ignore_conflicts=True)
    return _tallies(named, SignInTally.objects.select_for_update(no_key=True))


def _tallies(named: Mapping[TallyKind, str], rows: QuerySet[SignInTally] | None = None) -> dict[TallyKind, Tally]:
    among = SignInTally.objects.all() if rows is None else rows
    by_key = {row.key: row for row in among.filter(key__in=named.values()).order_by("key")}
    found = {kind: by_key.get(key) or SignInTally(key=key) for kind, key in named.items()}
    return {kind: Tally(row.failures, row.failed_at, row.known_at) for kind, row in found.items()}


def _write(named: Mapping[TallyKind, str], tallies: Mapping[TallyKind, Tally], now: datetime) -> None:
    for kind, tally in tallies.items():
        SignInTally.objects.filter(key=named[kind]).update(
            failures=tally.failures,
            failed_at=tally.failed_at,
            known_at=tally.known_at,
            forget_at=throttle.forget_at(tally, now),
        )


def _forget_old(now: datetime) -> None:
    """Rows that say nothing any more, a hundred at a time; those that somebody has locked stay for another time."""
    rows = SignInTally.objects.select_for_update(no_key=True, skip_locked=True)
    old = rows.filter(forget_at__lt=now).order_by("forget_at")[:100]
    SignInTally.objects.filter(key__in=[row.key for row in old]).delete()
