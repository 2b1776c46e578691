"""The life of a model in an environment where it may sleep.

awake → asleep → waking → awake
waking → asleep                         (somebody has it sleep before it answers)
"""

from __future__ import annotations

from enum import StrEnum


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
