"""Named leases with fencing tokens: at most one holder at a time, by the database's clock.

A holder that slept past its lease may still believe in it. So whatever it writes must carry its token, and whoever
takes the write must refuse a token lower than one it has seen.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import connection
from django.db.models.functions import Now

from ledger.adapters.process_names import has_ended
from ledger.models import Lease

# One statement, so that two who ask at once cannot both win.
_ACQUIRE = """
INSERT INTO ledger_lease AS lease (name, owner, token, expires_at)
VALUES (%s, %s, 1, clock_timestamp() + make_interval(secs => %s))
ON CONFLICT (name) DO UPDATE
SET owner = excluded.owner, token = lease.token + 1, expires_at = excluded.expires_at
WHERE lease.expires_at IS NULL OR lease.expires_at <= clock_timestamp() OR lease.owner = %s
RETURNING token
"""

_HOLD = "SELECT 1 FROM ledger_lease WHERE name = %s AND owner = %s AND expires_at > clock_timestamp() FOR SHARE"


def acquire(name: str, owner: str, ttl_s: float, *, dead: str | None = None) -> int | None:
    """The fencing token of a new term of `ttl_s` seconds, or None while an owner (the same too) holds the lease.

    `dead`: a holder whose process has ended; its term does not count.
    """
    with connection.cursor() as cursor:
        cursor.execute(_ACQUIRE, [name, owner, ttl_s, dead])
        row = cursor.fetchone()
    return int(row[0]) if row else None


def acquire_after(name: str, owner: str, ttl_s: float) -> int | None:
    """As `acquire`. Does not wait for a holder on this machine if its process has ended, for example by a kill."""
    token = acquire(name, owner, ttl_s)
    if token is None and (other := holder(name)) is not None and has_ended(other):
        return acquire(name, owner, ttl_s, dead=other)
    return token


def renew(name: str, owner: str, token: int, ttl_s: float) -> bool:
    """Whether the term goes on for `ttl_s` seconds from now. False means it is over: stop at once.

    A term that ran out goes on too, as long as nobody else has had one since, which the token tells. Otherwise a holder
    whose work takes longer than a term would end and begin for ever, and never get to the end of it.
    """
    held = Lease.objects.filter(name=name, owner=owner, token=token)
    return held.update(expires_at=Now() + timedelta(seconds=ttl_s)) == 1


def release(name: str, owner: str, token: int) -> None:
    """Ends the term early, so that the next holder need not wait. Harmless when it is over already."""
    Lease.objects.filter(name=name, owner=owner, token=token).update(expires_at=None, owner="")


def holder(name: str) -> str | None:
    """Who holds the lease now."""
    return Lease.objects.filter(name=name, expires_at__gt=Now()).values_list("owner", flat=True).first()


def lock_lease(name: str, owner: str) -> bool:
    """Whether the owner holds the lease; no other can take it until the end of the transaction."""
    with connection.cursor() as cursor:
        cursor.execute(_HOLD, [name, owner])
        return cursor.fetchone() is not None
