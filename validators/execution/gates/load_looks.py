"""Looks at a load while it runs, to end it as soon as it has proven something.

A look goes as far as every request's fate is known: it has ended, or was due so long ago that it is over in any case. Who
counted answers alone would see the fast ones first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from validators.core.load import Attempt, Floats, count_tests
from validators.core.proof import LEAST_WINDOWS, WINDOW_S, proof_at
from validators.core.token_times import asked_of
from validators.core.verdict import Verdict

#: From an answer to where it is seen here.
_GRACE_S = 0.1


def is_proven(
    schedule: Floats, kinds: Sequence[str], policy: Mapping[str, Any]
) -> Callable[[Sequence[Attempt], float], bool]:
    """Whether the objectives are proven or one is refuted, for all or for a class. Each attempt is read once, so a look stays cheap."""
    names = sorted(set(kinds))
    windows = (schedule / WINDOW_S).astype(int)
    kind_at = np.array([names.index(kinds[at % len(kinds)]) for at in range(len(schedule))])
    shape = (len(names), int(windows[-1]) + 1)
    sent, ended, in_time = (np.zeros(shape, int) for _ in range(3))
    np.add.at(sent, (kind_at, windows), 1)
    tests = count_tests(policy, len(names) if len(names) > 1 else 0)
    of_tokens = [(*asked, np.zeros(shape[1], int), np.zeros(shape[1], int)) for asked in asked_of(policy)]
    read = 0

    def verdict(over: npt.NDArray[np.int_], of: npt.NDArray[np.int_]) -> Verdict:
        return proof_at(over.tolist(), of.tolist(), policy, tests=tests).found.verdict

    def look(attempts: Sequence[Attempt], now_s: float) -> bool:
        nonlocal read
        new = attempts[read:]
        read += len(new)
        for one in new:
            ended[kind_at[one.at], windows[one.at]] += 1
            in_time[kind_at[one.at], windows[one.at]] += _is_in_time(one, policy["slo_ms"])
            for objective, slo_ms, late, of_it in of_tokens:
                if (seen := objective.seen(one)) is not None:
                    of_it[windows[one.at]] += 1
                    late[windows[one.at]] += not _is_in_time(seen, slo_ms)
        is_known = (ended == sent).all(0)
        if not of_tokens:  # what is over in any case may still have had its responses in time
            is_known[: max(0, math.floor(_over_before_s(now_s, policy["slo_ms"]) / WINDOW_S))] = True
        known = shape[1] if is_known.all() else int(is_known.argmin())
        if known < LEAST_WINDOWS:
            return False
        over, of = (sent - in_time)[:, :known], sent[:, :known]
        found = [verdict(over.sum(0), of.sum(0))]
        found += [verdict(late[:known], of_it[:known]) for _, _, late, of_it in of_tokens]
        if Verdict.FAILED in found or set(found) == {Verdict.PASSED}:
            return True
        return len(names) > 1 and any(verdict(*one) is Verdict.FAILED for one in zip(over, of, strict=True))

    return look


def settled(schedule: Floats, attempts: Sequence[Attempt], now_s: float, slo_ms: float) -> list[Attempt]:
    """An attempt for each request up to the first that may still be in time; one that is over and has not ended never does."""
    ended = {one.at: one for one in attempts}
    out: list[Attempt] = []
    for at, due in enumerate(schedule.tolist()):
        if at not in ended and due > _over_before_s(now_s, slo_ms):
            break
        out.append(ended.get(at) or Attempt(due, due, math.inf, at=at))
    return out


def _over_before_s(now_s: float, slo_ms: float) -> float:
    """Requests that were due before this instant and have not ended are over."""
    return now_s - slo_ms / 1000 - _GRACE_S


def _is_in_time(attempt: Attempt, slo_ms: float) -> bool:
    return not attempt.error and (attempt.done_s - attempt.due_s) * 1000 <= slo_ms
