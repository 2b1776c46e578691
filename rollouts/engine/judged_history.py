"""Readings of the past, made of PromQL counters by the rules of the engine's own reader."""

from __future__ import annotations

from collections.abc import Sequence

from rollouts.core.counter_deltas import Reading
from rollouts.core.judgement import JudgeQuestion
from rollouts.engine.prometheus_reader import Followed, taken
from serving.ports import CounterHistory, CounterQuery, MetricsError

#: For all queries of one judgement together; Argo Rollouts and Flagger wait for 10 s.
READ_TIMEOUT_S = 8.0


def readings_since(
    metrics: CounterHistory, queries: Sequence[CounterQuery], question: JudgeQuestion, *, since: int, step_s: int
) -> list[Reading] | str:
    """The readings, or the sentence (without its full stop) why the newest one cannot be read.

    Instants before the counters exist are left out, and so is an interval in which a counter began anew.
    """
    one = Followed((0, question.guard.name), question.words, tuple(queries), "history")
    try:
        rows = metrics.history(queries, since=since, step_s=step_s, timeout_s=READ_TIMEOUT_S)
    except MetricsError as error:
        return f"{question.words} cannot be told ({error.reason}: {error.message})"
    found = [taken(one, samples, at, at) for at, samples in rows]
    if found and isinstance(found[-1], str):
        return found[-1]
    return [reading for reading in found if isinstance(reading, Reading)]
