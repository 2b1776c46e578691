"""One load at a time on a machine, so on each of its GPUs too: two would measure each other. Who waits says for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

from ledger.actions import leases

#: A worker that died holds a machine up no longer than a term.
_TERM_S = 30.0
_RENEW_EVERY_S = 5.0
_POLL_S = 0.5
#: A name of the lease table's length; machines whose names begin alike would only wait for each other needlessly.
_MOST_CHARACTERS = 60


class Disturbed(Exception):
    """Another load began on the machine, because this one did not renew its lease for longer than a term."""


@contextmanager
def alone_on(node: str, *, owner: str, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Waits until no other load runs on the node; yields what its holder calls now and then to keep the machine.

    `say` is told for whom it waits, again and again; what it raises ends the wait.

    Raises Disturbed from what it yields.
    """
    name = f"load:{node}"[:_MOST_CHARACTERS]
    while (token := leases.acquire(name, owner, _TERM_S)) is None:
        say(f"waits for {leases.holder(name) or 'another load'} on {node}")
        sleep(_POLL_S)
    renewed_at = monotonic()

    def keep() -> None:
        nonlocal renewed_at
        if monotonic() - renewed_at < _RENEW_EVERY_S:
            return
        if not leases.renew(name, owner, token, _TERM_S):
            raise Disturbed(f"{leases.holder(name) or 'Another load'} began on {node} meanwhile")
        renewed_at = monotonic()

    try:
        yield keep
    finally:
        leases.release(name, owner, token)
