"""How long a server that is not wanted any more stays, so that nobody's request is lost with it."""

from __future__ import annotations

import time

from ledger.queries import clock
from serving.queries.gateways import not_following

#: Seconds. What gateways have taken is written down every two (`serving.control_plane.plane.HEARTBEAT_S`).
ASK_EVERY_S = 0.25


class Leaving:
    """Begins when the database says that gateways are to leave the server alone. First all of them take that; then what is in flight has
    its time to end.

    `environment`: by its key; None: no gateway hears of that any more. `follow_s`: a gateway that does not say for so many seconds that
    it follows is waited for no longer. It may be dead; or there is no control plane, and it meets a closed port and goes to another
    replica. `drain_s`: the time for what is in flight. `in_vain`: what is to be told of gateways that never said it.
    """

    def __init__(self, environment: int | None, follow_s: float, drain_s: float) -> None:
        self._environment, self._follow_s, self._drain_s = environment, follow_s, drain_s
        self._asked_at, self._began = clock.now(), time.monotonic()
        self._left_at: float | None = None
        self.in_vain = ""

    def wait_s(self) -> float:
        """In how many seconds to ask again; 0 once the server may be ended. Raises django.db.Error."""
        now = time.monotonic()
        if self._left_at is None:
            behind = not_following(self._environment, self._asked_at) if self._environment is not None else []
            if behind and now - self._began < self._follow_s:
                return ASK_EVERY_S
            self._left_at = now
            self.in_vain = (
                f" ({', '.join(behind)} did not say in {self._follow_s:g} s to have left it)" if behind else ""
            )
        return max(self._left_at + self._drain_s - now, 0.0)
