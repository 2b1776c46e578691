"""Server health from its probe results: well, slow, hung, broken or dead.

Slow is not dead. A server under too much load answers no probe in time, and taking it away turns overload into an
outage; so a late answer alone never condemns it. It is hung only when, for a whole window, no probe was answered and no
inference of anybody's finished. What is gone, or says itself that its model process died, is dead at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

#: How long nothing at all may finish before a server is hung, in seconds. Well above the slowest useful request and any
#: pause of a busy machine; no user waits that long, since the gateway gives up an attempt after 2 s and retries it on stable.
HUNG_AFTER_S = 10.0
#: The same for the last server of a stable release, in seconds. There is nothing to send its users to, so taking it away
#: by mistake costs more than the 20 s that a true hang lasts longer.
HUNG_AFTER_LAST_STABLE_S = 30.0
#: Wrong answers in a row that make a server broken. One may be a hiccup.
WRONG_ANSWERS = 2


class Probe(StrEnum):
    """The outcome of one probe, a real inference."""

    RIGHT = "right"
    WRONG = "wrong"  # an error, or an answer that lacks an output
    LATE = "late"  # no answer in time, or the queue was full
    GONE = "gone"  # no process, no connection, or a model process that died


class Health(StrEnum):
    WELL = "well"  # its answers are right; a single wrong one is forgiven
    SLOW = "slow"  # late, and not for long enough to say more
    HUNG = "hung"
    BROKEN = "broken"
    DEAD = "dead"

    @property
    def is_lost(self) -> bool:
        """Whether the server must be taken out of the gateways and brought back."""
        return self in (Health.HUNG, Health.BROKEN, Health.DEAD)


@dataclass(frozen=True)
class ProbeResult:
    """One look: a probe that was sent at `sent_at` and over at `ended_at` (seconds of one clock).

    `finished` is how many inferences the server has finished well since it loaded, for whomever; None if that could not
    be read. Only a late probe needs it.
    """

    probe: Probe
    sent_at: float
    ended_at: float
    finished: int | None = None


@dataclass(frozen=True)
class HealthTracker:
    """What earlier looks at one server leave behind.

    `quiet_since` is when the first late probe in a row was sent, or, later, when the server was last seen to have
    finished something; None while probes are answered. It begins with a look, not with the last right answer, so that
    an agent that was away itself blames nobody for the gap.
    """

    wrong_in_a_row: int = 0
    quiet_since: float | None = None
    finished: int | None = None

    def after(self, look: ProbeResult) -> HealthTracker:
        """The watch with one more look."""
        if look.probe == Probe.RIGHT:
            return HealthTracker()
        if look.probe != Probe.LATE:
            return HealthTracker(wrong_in_a_row=self.wrong_in_a_row + 1)
        known = look.finished if look.finished is not None else self.finished
        if self.quiet_since is None:
            return replace(self, quiet_since=look.sent_at, finished=known)
        has_moved = None not in (look.finished, self.finished) and look.finished != self.finished
        return replace(self, quiet_since=look.ended_at if has_moved else self.quiet_since, finished=known)

    def quiet_s(self, now: float) -> float:
        """How long nothing is known to have finished, in seconds."""
        return 0.0 if self.quiet_since is None else now - self.quiet_since


def verdict(watch: HealthTracker, look: ProbeResult, *, hung_after_s: float) -> Health:
    """What the server is, by `watch`, which already holds `look`, the latest one."""
    if look.probe == Probe.GONE:
        return Health.DEAD
    if look.probe == Probe.LATE:
        return Health.HUNG if watch.quiet_s(look.ended_at) >= hung_after_s else Health.SLOW
    return Health.BROKEN if watch.wrong_in_a_row >= WRONG_ANSWERS else Health.WELL
