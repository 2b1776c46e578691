"""The life of a model in an environment where it may sleep.

awake → asleep → waking → awake
waking → asleep                         (somebody has it sleep before it answers)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class SleepRule:
    """What was said of one model in one environment, in seconds without a request. `unload_after_s`: its servers are unloaded then;
    None: never. `yields_after_s`: they are, where something else needs their room; None: for nobody. `loads_on_demand`: a request
    wakes it; else somebody has to."""

    unload_after_s: int | None = None
    yields_after_s: int | None = None
    loads_on_demand: bool = True

    @property
    def soonest_s(self) -> int | None:
        """After how long without a request it may sleep, for whatever reason; None: never."""
        return self.unload_after_s if self.yields_after_s is None else self.yields_after_s


class SleepState(StrEnum):
    """`asleep`: gateways answer for it, and its servers are unloaded, or about to be · `waking`: it is to answer again, and no server
    of it does yet."""

    AWAKE = "awake"
    ASLEEP = "asleep"
    WAKING = "waking"


S = SleepState
MOVES: dict[SleepState, frozenset[SleepState]] = {
    S.AWAKE: frozenset({S.ASLEEP}),
    S.ASLEEP: frozenset({S.WAKING}),
    S.WAKING: frozenset({S.AWAKE, S.ASLEEP}),
}
