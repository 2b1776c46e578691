"""How often the engine looks, how long it waits, and how much it does at once. Tests and benchmarks pass their own."""

from __future__ import annotations

from dataclasses import dataclass

from rollouts.core.tick_history import MOST_BLOCKS


@dataclass(frozen=True)
class EngineTimings:
    """Seconds, but for the share."""

    zero_poll_s: float = 0.05  # after a rollback was written, its acknowledgement is looked for this often …
    zero_poll_for_s: float = 1.0  # … for this long, within the tick
    confirm_within_s: float = 30.0  # counters that cannot confirm an acknowledged weight 0 hold up the end no longer
    early_s: float = 0.2  # a turn that was woken does not begin sooner than this after the one before it
    look_again_s: float = 0.25  # the next look at a candidate that fails often; over half of `FAILING_OVER_S`
    gone_over_s: float = 0.5  # a candidate without a server is gone after this; one that failed before, at once
    effects_share: float = 0.4  # of a tick, for effects that are no rollback; the rest of them wait for the next one
    sweep_every_s: float = 5.0  # between two looks for promoted rollouts whose undo window is over
    full_gc_every_s: float = 60.0  # between two collections of all garbage; new objects are collected in every rest

    def next_look(self, began: float, ended: float) -> float:
        """When to look again at a candidate that fails, after a turn from `began` to `ended`.

        After a long turn the machine is left to others for as long, but no longer than for the usual pace.
        """
        return max(began + self.look_again_s, ended + min(ended - began, self.look_again_s))


@dataclass(frozen=True)
class EngineLimits:
    """Numbers of rollouts, ticks and blocks."""

    holds_at_once: int = 200  # batch size of the bulk UPDATE: enough to be cheap, few enough to lock rows only shortly
    holds_a_turn: int = 250  # above this number of rollouts, quiet ticks are written in turns …
    written_every: int = 5  # … each rollout's at the latest after this number of ticks
    most_blocks: int = MOST_BLOCKS  # stored blocks of observations that a rollout may keep
    blocks_over: int = 32  # old blocks are joined when a rollout exceeds the bound by this number
    joined_at_once: int = 4  # rollouts with joined blocks in a turn


DEFAULT_TIMINGS, DEFAULT_LIMITS = EngineTimings(), EngineLimits()
