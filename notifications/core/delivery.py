"""The life of a delivery, when it is tried again, and which events a webhook means.

pending → delivered | failed | gave_up | withdrawn
failed  → delivered | failed | gave_up | withdrawn      (tried again when it is due)
delivered | gave_up | withdrawn → pending               (a person has it sent again)

Withdrawn is a mail to a person who has no use for it any more: the approval was given, or is no longer theirs to give.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ledger.core.verbs import EventVerb


class ReceiverKind(StrEnum):
    WEBHOOK = "webhook"
    EMAIL = "email"
    PEOPLE = "people"


class DeliveryState(StrEnum):
    PENDING = "pending"
    FAILED = "failed"
    DELIVERED = "delivered"
    GAVE_UP = "gave_up"
    WITHDRAWN = "withdrawn"


D = DeliveryState
#: Still to be sent.
OPEN = (D.PENDING, D.FAILED)
#: Over, unless a person has it sent again.
ENDED = (D.DELIVERED, D.GAVE_UP, D.WITHDRAWN)
MOVES: dict[DeliveryState, frozenset[DeliveryState]] = {
    D.PENDING: frozenset({D.DELIVERED, D.FAILED, D.GAVE_UP, D.WITHDRAWN}),
    D.FAILED: frozenset({D.DELIVERED, D.FAILED, D.GAVE_UP, D.WITHDRAWN}),
    D.DELIVERED: frozenset({D.PENDING}),
    D.GAVE_UP: frozenset({D.PENDING}),
    D.WITHDRAWN: frozenset({D.PENDING}),
}
#: Seconds from the first, second, … failed attempt to the next attempt. After 23.7 hours in all the delivery is given up.
BACK_OFF_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 28800.0)
#: Each wait is longer or shorter by up to this share, so that deliveries do not reach a receiver all at once.
JITTER_FRAC = 0.2
#: A receiver's own `Retry-After` is followed up to here.
LONGEST_ASKED_S = 3600.0
#: With this status a receiver ends its webhook.
GONE = 410
SNIPPET_CHARACTERS = 500


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended. `error` is a sentence, and empty when it went well."""

    error: str = ""
    status_code: int | None = None
    snippet: str = ""  # the answer's beginning
    duration_ms: int = 0
    retry_after_s: float = 0.0  # asked for by the receiver
    is_withdrawn: bool = False  # nothing was sent: its recipient no longer needs it

    @property
    def is_ok(self) -> bool:
        return not self.error

    @property
    def is_gone(self) -> bool:
        return self.status_code == GONE


def wait_s(attempts: int, chance: float, asked_s: float = 0.0) -> float | None:
    """Seconds until the next attempt after `attempts` failed ones; None when it is time to give up.

    `chance` in [0, 1) spreads it evenly over ± JITTER_FRAC.
    """
    if attempts > len(BACK_OFF_S):
        return None
    spread = 1.0 + JITTER_FRAC * (2.0 * chance - 1.0)
    return max(BACK_OFF_S[max(0, attempts - 1)] * spread, min(asked_s, LONGEST_ASKED_S))


def after(attempts: int, outcome: Outcome, chance: float) -> tuple[DeliveryState, float]:
    """(state of a delivery after its `attempts`-th attempt, seconds until the next attempt)."""
    if outcome.is_ok:
        return D.DELIVERED, 0.0
    if outcome.is_withdrawn:
        return D.WITHDRAWN, 0.0
    pause_s = None if outcome.is_gone else wait_s(attempts, chance, outcome.retry_after_s)
    return (D.GAVE_UP, 0.0) if pause_s is None else (D.FAILED, pause_s)


def meant_by(patterns: Iterable[str]) -> list[str]:
    """Verbs of the patterns: `*` means all verbs, `rollout.*` all verbs of a noun, and any other text exactly that verb."""
    known = [verb.value for verb in EventVerb]
    found: set[str] = set()
    for pattern in patterns:
        found |= {verb for verb in known if _means(pattern, verb)}
    return [verb for verb in known if verb in found]


def pattern_problem(pattern: str) -> str:
    """Problem of a pattern, with its fix; empty if it matches a verb."""
    if meant_by([pattern]):
        return ""
    nouns = sorted({verb.value.partition(".")[0] for verb in EventVerb})
    noun = pattern.partition(".")[0]
    if noun in nouns:
        verbs = ", ".join(verb.value for verb in EventVerb if verb.value.startswith(f"{noun}."))
        return f"No event is called {pattern!r}. Write {noun}.* or one of {verbs}."
    return f"No event is called {pattern!r}. Write *, or NOUN.* with one of {', '.join(nouns)}."


def _means(pattern: str, verb: str) -> bool:
    if pattern.endswith(".*"):
        return verb.startswith(pattern[:-1])
    return pattern in ("*", verb)
