"""What is told before it is done, and named by a digest: so that nothing else is done to who has read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ledger.core.canonical import digest_of
from ledger.core.errors import Invalid, StateChanged

#: Sentences of a plan that a refusal's message repeats; its facts have all.
MOST_REPEATED = 6


def plan_digest(what: Iterable[Any]) -> str:
    """Names a plan by what it says, and by what else tells it from another."""
    return digest_of(list(what))


def require_read(says: Sequence[str], named: str, digest: str, *, is_confirmed: bool) -> None:
    """Raises StateChanged("plan_changed") where `digest` names another plan than this one, which is `named`, whatever is confirmed, and
    Invalid("not_confirmed") where there is none and nothing is."""
    facts = {"plan": list(says), "plan_digest": named}
    told = " ".join(says[:MOST_REPEATED])
    if digest and digest != named:
        said = f"What would be done has changed since it was read, and nothing was done. Now: {told}"
        raise StateChanged("plan_changed", said, **facts)
    if not digest and not is_confirmed:
        raise Invalid("not_confirmed", f"{told} Confirm that this is meant.", **facts)
