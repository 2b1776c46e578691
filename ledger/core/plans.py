"""What is told before it is done, and named by a digest: so that nothing else is done to who has read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ledger.core.canonical import digest_of
from ledger.core.errors import Invalid, StateChanged

#: Sentences of a plan that a refusal's message repeats; its facts have all.
MOST_REPEATED = 6


def plan_digest(says: Iterable[str]) -> str:
    """Names what a plan says."""
    return digest_of(list(says))


def require_read(says: Sequence[str], digest: str, *, is_confirmed: bool) -> None:
    """Raises StateChanged("plan_changed") where `digest` names another plan than this one, whatever is confirmed, and
    Invalid("not_confirmed") where there is none and nothing is."""
    facts = {"plan": list(says), "plan_digest": plan_digest(says)}
    told = " ".join(says[:MOST_REPEATED])
    if digest and digest != facts["plan_digest"]:
        said = f"What would be done has changed since it was read, and nothing was done. Now: {told}"
        raise StateChanged("plan_changed", said, **facts)
    if not digest and not is_confirmed:
        raise Invalid("not_confirmed", f"{told} Confirm that this is meant.", **facts)
