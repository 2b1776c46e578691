"""Server health from its probe results: well, slow, hung, broken or dead.

Slow is not dead. A server under too much load answers no probe in time, and taking it away turns overload into an
outage; so a late answer alone never condemns it. Two different things end a server:

- *frozen*: the process does not answer whether it is live. Such a call needs no model, so a request that computes does
  not delay it. Some servers answer it on the thread that computes; there silence is no evidence (`tells_live`).
- *past every deadline*: the process is live and finishes nothing. A request may take as long as its model allows
  (`objectives.timeout_s`), so nothing is known before that time has passed without one finished request.

A process that is gone, or that reports that its model process died, is dead at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

#: How long the liveness call may stay unanswered before a server is frozen, in seconds. Well above any pause of a busy
#: machine.
HUNG_AFTER_S = 10.0
#: The same for the last server of a stable release, in seconds. Its users have no other server, so a wrong decision
#: costs more than the 20 s that a true freeze lasts longer.
HUNG_AFTER_LAST_STABLE_S = 30.0
#: Unanswered liveness calls in a row that make a server frozen. An agent that was stopped itself sees one.
SILENT_CALLS = 2
#: Wrong answers in a row that make a server broken. One may be a hiccup.
WRONG_ANSWERS = 2
#: An agent that did not look for this long, in seconds, was away and begins to count anew.
AWAY_S = 30.0
#: The last look is as good as the moment of the freeze if it was no longer ago, in seconds.
RECENT_S = 2.0
#: Pauses between inferences of our own, in seconds, while none is answered: each waits in the server's queue, and some
#: servers run it although its caller left.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 4.0, 64.0
#: A probe is an inference. At most this share of one instance's time goes to probes of a healthy server.
PROBE_SHARE = 0.1


class Probe(StrEnum):
    """The outcome of one probe, a real inference."""

    RIGHT = "right"
    WRONG = "wrong"  # an error, or an answer that lacks an output
    LATE = "late"  # no answer in time, or the queue was full
    GONE = "gone"  # no process, no connection, or a model process that died
    HELD = "held"  # none was sent: it would only wait behind others, or cost too much


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
class Timeouts:
    """How long a server may give no sign, in seconds: `silent_s` without an answer to the liveness call, `busy_s`
    without a finished request while a probe waits."""

    silent_s: float
    busy_s: float

    @classmethod
    def of(cls, *, silent_s: float, request_s: float, tells_live: bool = True) -> Timeouts:
        """For requests of which each may take `request_s`. `busy_s` is never below `silent_s`: a short deadline makes
        no slow server hung.

        A server without `tells_live` counts nothing either, so two long requests in a row look like a single request.
        It gets the time of both.
        """
        return cls(silent_s, max(silent_s, request_s if tells_live else 2 * request_s))


@dataclass(frozen=True)
class ProbeResult:
    """One look: a probe that was sent at `sent_at` and over at `ended_at` (seconds of one clock).

    `is_live`: whether the server answered the liveness call; None if it was not asked, or if its silence is no evidence.
    `finished`: number of inferences that the server finished well since it loaded, for all callers; None if unknown.
    `cost_s`: mean time for which one of them kept an instance busy; None if unknown.
    All are asked only after a probe that was late or held.
    """

    probe: Probe
    sent_at: float
    ended_at: float
    finished: int | None = None
    is_live: bool | None = None
    cost_s: float | None = None


@dataclass(frozen=True)
class HealthTracker:
    """State that earlier looks at one server leave behind. Instants are seconds of one clock.

    `late_since`: when the first late probe in a row was sent; None while probes are answered. `quiet_since`: when the
    oldest probe was sent after which the server was not seen to finish anything; None if no such probe waits. A finished
    request may have been the probe, and then the server may be idle. `silent_since`: when the server last answered before
    `silent_calls` liveness calls without an answer. All begin with a look, so that an agent that was away itself blames
    no server. `least_s`: about the cost of a probe: the fastest right answer, or else the server's mean at the first late
    probe, which the warm-up decides.
    """

    wrong_in_a_row: int = 0
    late_since: float | None = None
    quiet_since: float | None = None
    silent_since: float | None = None
    silent_calls: int = 0
    heard_at: float | None = None
    looked_at: float | None = None
    probed_at: float | None = None
    pause_s: float = 0.0
    least_s: float | None = None
    finished: int | None = None

    def after(self, look: ProbeResult) -> HealthTracker:
        """The tracker with one more look."""
        if look.probe == Probe.RIGHT:
            took_s = look.ended_at - look.sent_at
            least_s = took_s if self.least_s is None else min(self.least_s, took_s)
            return self._heard(look, wrong_in_a_row=0, least_s=least_s, pause_s=least_s / PROBE_SHARE - least_s)
        if look.probe in (Probe.WRONG, Probe.GONE):
            return self._heard(look, wrong_in_a_row=self.wrong_in_a_row + 1, pause_s=0.0)
        return self._quiet(look)._silent(look)

    def quiet_s(self, now: float) -> float:
        """How long a probe waits without a finished request, in seconds."""
        return 0.0 if self.quiet_since is None else now - self.quiet_since

    def silent_s(self, now: float) -> float:
        """How long the server has not answered the liveness call, in seconds."""
        return 0.0 if self.silent_since is None else now - self.silent_since

    def is_probe_due(self, now: float, timeouts: Timeouts) -> bool:
        """Whether to send an inference. While the server finishes nothing there are few; the last one, when every
        deadline has passed, decides. A frozen server gets none."""
        if self.silent_since is not None:
            return False
        if self.probed_at is None or self.quiet_s(now) >= timeouts.busy_s:
            return True
        return now - self.probed_at >= self.pause_s

    def _heard(
        self, look: ProbeResult, *, wrong_in_a_row: int, pause_s: float, least_s: float | None = None
    ) -> HealthTracker:
        at = look.ended_at
        least_s = self.least_s if least_s is None else least_s
        return HealthTracker(wrong_in_a_row, heard_at=at, looked_at=at, probed_at=at, pause_s=pause_s, least_s=least_s)

    def _quiet(self, look: ProbeResult) -> HealthTracker:
        is_late = look.probe == Probe.LATE
        known = look.finished if look.finished is not None else self.finished
        has_moved = None not in (look.finished, self.finished) and look.finished != self.finished
        late_since, quiet_since = self.late_since, self.quiet_since
        if is_late:
            late_since = look.sent_at if late_since is None else late_since
            quiet_since = look.sent_at if quiet_since is None else quiet_since
        if quiet_since is not None and self._was_away(look):
            quiet_since = look.sent_at
        return replace(
            self,
            late_since=late_since,
            quiet_since=None if has_moved else quiet_since,
            finished=known,
            pause_s=self._pause_s(look, has_moved=has_moved),
            least_s=self.least_s if self.least_s is not None else look.cost_s,
            probed_at=look.ended_at if is_late else self.probed_at,
        )

    def _pause_s(self, look: ProbeResult, *, has_moved: bool) -> float:
        """Pause after the latest probe, in seconds, by which probes keep to their share also if each one is late."""
        cost_s = self.least_s if self.least_s is not None else look.cost_s
        rest_s = None if cost_s is None else cost_s / PROBE_SHARE - cost_s
        if has_moved and rest_s is not None:
            return rest_s
        if look.probe == Probe.HELD:
            return self.pause_s
        doubled_s = FIRST_PAUSE_S if self.late_since is None else 2 * max(self.pause_s, FIRST_PAUSE_S / 2)
        return max(min(LONGEST_PAUSE_S, doubled_s), rest_s or 0.0)

    def _silent(self, look: ProbeResult) -> HealthTracker:
        if look.is_live is False:
            is_recent = self.heard_at is not None and look.sent_at - self.heard_at <= RECENT_S
            began = self.heard_at if is_recent else look.sent_at
            since = began if self.silent_since is None else self.silent_since
            return replace(self, silent_since=since, silent_calls=self.silent_calls + 1, looked_at=look.ended_at)
        heard_at = look.ended_at if look.is_live else self.heard_at
        pause_s = 0.0 if self.silent_since is not None else self.pause_s
        return replace(
            self, silent_since=None, silent_calls=0, heard_at=heard_at, looked_at=look.ended_at, pause_s=pause_s
        )

    def _was_away(self, look: ProbeResult) -> bool:
        return self.looked_at is not None and look.ended_at - self.looked_at > AWAY_S


def verdict(watch: HealthTracker, look: ProbeResult, timeouts: Timeouts) -> Health:
    """Health of the server. `watch` already holds `look`, the latest one."""
    if look.probe == Probe.GONE:
        return Health.DEAD
    if look.probe in (Probe.LATE, Probe.HELD):
        is_frozen = watch.silent_calls >= SILENT_CALLS and watch.silent_s(look.ended_at) >= timeouts.silent_s
        is_past = look.probe == Probe.LATE and watch.quiet_s(look.ended_at) >= timeouts.busy_s
        if is_frozen or is_past:
            return Health.HUNG
        is_slow = watch.late_since is not None or watch.silent_since is not None
        return Health.SLOW if is_slow else Health.WELL
    return Health.BROKEN if watch.wrong_in_a_row >= WRONG_ANSWERS else Health.WELL


def why_hung(watch: HealthTracker, now: float, timeouts: Timeouts) -> str:
    """Why a hung server is lost, in words that follow *it hung:*."""
    silent_s = watch.silent_s(now)
    if watch.silent_calls >= SILENT_CALLS and silent_s >= timeouts.silent_s:
        return f"for {silent_s:.0f} s its process did not answer whether it is live"
    return (
        f"for {watch.quiet_s(now):.0f} s it answered no probe and finished nothing, and a request to it may take "
        f"{timeouts.busy_s:g} s"
    )
