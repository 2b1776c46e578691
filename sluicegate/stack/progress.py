"""Whether a process that starts makes progress: a busy machine makes it slow, and a stuck process does nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

#: No start takes longer; a process that computes for ever ends here.
LONGEST_START_S = 1800.0
#: A process that works uses more of one core than this, and one that only waits and looks uses less.
LEAST_CPU_FRAC = 0.03
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class Work:
    """Signs of a process's work: bytes of its log, and seconds of processor time."""

    log_bytes: int
    cpu_s: float


class StartProgress:
    """The progress of one start, by looking at its work at most once a second. `clock` returns seconds."""

    def __init__(self, look: Callable[[], Work], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._clock = look, clock
        self._began = self._seen_at = self._worked_at = clock()
        self._work = look()

    def why_hopeless(self, quiet_s: float) -> str:
        """Why to wait no longer, as the end of a sentence; empty while there was progress within the last `quiet_s` seconds."""
        now = self._clock()
        if now - self._seen_at >= min(_LOOK_EVERY_S, quiet_s / 10):
            self._seen_at = now
            work = self._look()
            has_worked = work.cpu_s - self._work.cpu_s >= LEAST_CPU_FRAC * quiet_s
            if work.log_bytes != self._work.log_bytes or has_worked or work.cpu_s < self._work.cpu_s:
                self._work, self._worked_at = work, now
        if now - self._began > LONGEST_START_S:
            return f"{LONGEST_START_S:.0f} s"
        if now - self._worked_at <= quiet_s:
            return ""
        return f"{now - self._began:.0f} s, and for {now - self._worked_at:.0f} s it wrote nothing into its log and hardly computed"
