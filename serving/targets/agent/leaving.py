"""How long a server that is not wanted any more stays, so that nobody's request is lost with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from django import db

from ledger.queries import clock
from serving.environments.core.sleep_lifecycle import SleepState
from serving.environments.queries.inventory import server_of
from serving.models import Replica
from serving.targets.queries.sleep import sleep_of
from serving.traffic.queries.gateways import not_following

#: Seconds. What gateways have taken is written down every two (`serving.traffic.control_plane.plane.HEARTBEAT_S`).
ASK_EVERY_S = 1.0


@dataclass
class Leaving:
    """Begins when the database says that gateways are to leave the server alone. First all of them take that; then what is in flight has
    its time to end.

    `place`: environment and model, by their keys; None: no gateway sends it anything. `follow_s`: a gateway that is not known to follow
    after so many seconds is waited for no longer. It may be dead; or there is no control plane, and it meets a closed port and goes to
    another replica. `drain_s`: the time for what is in flight. `request_s`: how much longer a server may stay while callers
    hold connections to it: then no request can be running any more. `in_vain`: what the event states of waits that came to their end.
    """

    place: tuple[int, int] | None
    follow_s: float
    drain_s: float
    request_s: float = 0.0
    in_vain: str = ""
    _asked_at: datetime = field(default_factory=clock.now)
    _began: float = field(default_factory=lambda: time.monotonic())
    _left_at: float | None = None

    def wait_s(self, open_requests: Callable[[], int | None] = lambda: None) -> float:
        """In how many seconds to ask again; 0 once the server may be ended. Raises django.db.Error.

        `open_requests`: connections that callers hold to the server; None if they cannot be counted.
        """
        now = time.monotonic()
        if self._left_at is None:
            try:
                behind = not_following(*self.place, self._asked_at) if self.place is not None else []
            except db.Error:
                self._began = now  # what cannot be read here, control planes have not read either
                raise
            if behind and now - self._began < self.follow_s:
                return ASK_EVERY_S
            self._left_at = now
            self.in_vain = (
                f" ({', '.join(behind)}: not known after {self.follow_s:g} s to have left it)" if behind else ""
            )
        if (left_s := self._left_at + self.drain_s - now) > 0:
            return left_s
        if self.request_s and (count := open_requests()):
            if now - self._left_at < self.request_s:
                return ASK_EVERY_S
            self.in_vain += f" (after {self.request_s:g} s it still had {count} open connections)"
            self.request_s = 0.0
        return 0.0


def leaving_of(replica: Replica, *, follow_s: float, drain_s: float, request_s: float) -> Leaving:
    """From now on, with these times where gateways may know its server. An agent that comes back begins anew: it does not know since
    when they leave it alone."""
    of, model = replica.environment, replica.release.model_id
    if not of.is_routed or replica.ready_at is None or server_of(replica) is None:
        return Leaving(None, 0.0, 0.0)
    # Gateways hear nothing more of a retired environment; that a model is asleep they had said before it was drained.
    sleep = sleep_of(of.pk, model) if of.retired_at is None else None
    is_left = of.retired_at is not None or (sleep is not None and sleep.state == SleepState.ASLEEP)
    return Leaving(None if is_left else (of.pk, model), follow_s, drain_s, request_s)
