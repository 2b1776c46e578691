"""Timeouts of the demo's waits: it runs unattended, so a rollout that hangs must end it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError
from sluicegate.cli.rollout import name_of

#: A stage takes 45 s at the lowest rate that the demo tries, and its deadline is three times that; none takes longer by proof.
STAGE_S = 600.0
#: A pause waits for a person, but a breach still ends it.
PAUSE_S = 30.0


class StoryTimeout:
    """Looks at one rollout again and again. `clock` gives monotonic seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._place: tuple[Any, ...] = ()
        self._since = 0.0

    def is_paused_for(self, view: dict[str, Any]) -> float:
        """Seconds since this pause was first looked at; 0 for what is not paused."""
        return self._clock() - self._since if view["state"] == "paused" and self._place[:1] == ("paused",) else 0.0

    def look(self, view: dict[str, Any]) -> None:
        """Raises CommandError (exit 1) when the rollout has stood still too long: at one state, step and weight."""
        place, now = (view["state"], view.get("step_index"), view.get("weight_bp")), self._clock()
        if place != self._place:
            self._place, self._since = place, now
        is_paused = view["state"] == "paused"
        if now - self._since < (PAUSE_S if is_paused else STAGE_S):
            return
        what = "is paused, and waits for a person" if is_paused else f"has stood still for {now - self._since:.0f} s"
        raise CommandError(
            f"The story has left its path: the rollout of {name_of(view.get('candidate'))} {what}. {view.get('reason', '')}",
            exit_code=exits.FAILED,
            next_step="A busy machine is the usual cause; run the demo again when it is idle.",
        )
