"""A rollout's history for plots: tick by tick, with decisions of people and the engine, and both arms' latencies."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollouts.core.latency import Classes
from rollouts.core.tick_history import OpenSegment, Segment
from rollouts.core.timeline import EvidenceAt, Moment, Timeline
from rollouts.models import Rollout
from rollouts.queries.replay import history_of

#: Of longer histories nothing is recomputed: somebody waits for the page. They show the evidence that each block was stored with.
MOST_RECOMPUTED = 900
#: So many of the latest ticks tell between what the samples to go vary.
RANGE_TICKS = 30
#: Of so many rollouts what was recomputed is kept in this process.
MOST_KEPT = 24


@dataclass(frozen=True)
class LatencySpan:
    """One stored window: instants in seconds since the epoch, counts by class."""

    from_at: float
    at: float
    candidate: Classes
    stable: Classes


_lock = threading.Lock()
#: By rollout and policy: the spans of the blocks that a timeline is of, and it. Nobody changes one that is here.
_kept: OrderedDict[tuple[int, str], tuple[list[tuple[int, int]], Timeline]] = OrderedDict()


def moments_of(rollout: Rollout, history: list[Segment] | None = None) -> list[Moment]:
    """Every stored row, oldest first, judged by the rollout's own policy; with the rows that the engine has not stored yet.

    The first call of a process walks the whole history (about a millisecond a row); later ones only what is new. `history`: what
    `history_of` said, where it was asked.
    """
    blocks = history_of(rollout) if history is None else history
    has_unstored = OpenSegment.from_json(rollout.engine_state.get("history", {})).rows > 0
    stored, rest = (blocks[:-1], blocks[-1:]) if has_unstored else (blocks, [])
    if sum(len(block.ticks) for block in blocks) > MOST_RECOMPUTED:
        return _timeline(rollout, is_judged=False).extended(blocks, _stored_evidence(rollout)).moments
    timeline = _of_stored(rollout, stored)
    return timeline.copied().extended(rest).moments if rest else timeline.moments


def _timeline(rollout: Rollout, *, is_judged: bool) -> Timeline:
    return Timeline(rollout.policy_at_start, has_stable=rollout.began_with_stable, is_judged=is_judged)


def _of_stored(rollout: Rollout, stored: list[Segment]) -> Timeline:
    key, spans = (rollout.pk, rollout.policy_digest), [(one.first_tick, one.tick) for one in stored]
    with _lock:
        known, timeline = _kept.get(key, ([], None))
        if timeline is None or spans[: len(known)] != known:  # blocks were joined: the kept rows are of finer blocks
            known, timeline = [], _timeline(rollout, is_judged=True)
        if len(known) < len(spans):
            timeline = timeline.copied().extended(stored[len(known) :])
        _kept[key] = (spans, timeline)
        _kept.move_to_end(key)
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return timeline


def _stored_evidence(rollout: Rollout) -> dict[int, dict[str, EvidenceAt]]:
    rows = rollout.observations.values_list("tick", "evidence")
    return {
        tick: {
            name: EvidenceAt(one.get("log_e_worse", 0.0), one.get("log_e_over", 0.0), one.get("log_e_fine", 0.0))
            for name, one in evidence.items()
            if one.get("candidate")
        }
        for tick, evidence in rows
    }


#: A rate of attempts is an average over so many seconds.
RATE_OVER_S = 120.0


def to_go_ranges(moments: Sequence[Moment]) -> dict[str, tuple[int, int]]:
    """By guard: between how many and how many more attempts it asked for in its latest ticks, in two digits that count.

    One number jumps with every bad attempt, so that nobody can plan with it. Of the present stage alone; guards that could
    not tell are left out.
    """
    found: dict[str, list[int]] = {}
    for one in moments[-RANGE_TICKS:]:
        if (one.step_index, one.state) == (moments[-1].step_index, moments[-1].state):
            for name, evidence in one.evidence.items():
                found.setdefault(name, []).extend([] if evidence.to_go is None else [evidence.to_go])
    return {name: (_two_digits(min(some)), _two_digits(max(some))) for name, some in found.items() if some}


def attempts_per_s(moments: Sequence[Moment]) -> float | None:
    """First attempts a second on the candidate in the last RATE_OVER_S of the present stage; None if no two rows are of it."""
    if not moments:
        return None
    last = moments[-1]
    recent = [
        one
        for one in moments
        if (one.step_index, one.state) == (last.step_index, last.state) and one.at >= last.at - RATE_OVER_S
    ]
    span_s = recent[-1].at - recent[0].at
    return sum(one.attempts for one in recent[1:]) / span_s if span_s > 0 else None


def _two_digits(count: int) -> int:
    size = 10 ** max(0, len(str(count)) - 2)
    return round(count / size) * size


def latency_of(rollout: Rollout) -> list[LatencySpan]:
    """The stored windows, the oldest first; none of rollouts from before they were counted."""
    return [
        LatencySpan(one.from_at.timestamp(), one.at.timestamp(), tuple(one.candidate), tuple(one.stable))
        for one in rollout.latency_windows.order_by("at", "pk")
    ]


def bars_of(rollout: Rollout) -> list[dict[str, Any]]:
    """Each guard with the bars that its evidence is held against, in the policy's order."""
    policy = rollout.effective_policy
    return [
        {
            "name": guard.name, "words": guard.words, "is_dry_run": guard.is_dry_run, "bar_worse": policy.bar_worse_of(guard),
            "bar_fine": policy.bar_fine, "thresholds_ms": [edge / 1000 for edge in guard.thresholds_us],
        }
        for guard in policy.guards
    ]  # fmt: skip
