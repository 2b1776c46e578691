"""The judge alone: the verdict of the rollout engine's statistics on two series of counters, or on one and an objective.

Every interval between two readings is one tick. The evidence is an e-process from the first reading on, so a caller may ask
after each reading: the chance that a sound candidate *ever* fails is at most `alpha_fail`. Source: docs/judge.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from accounts.core.quantities import share_text
from rollouts.core.counter_deltas import Counts, Reading
from rollouts.core.decision import capital
from rollouts.core.evidence import Tolerance
from rollouts.core.guard_tracker import CounterNews, GuardTracker, watched
from rollouts.core.judged import Judged, judge_guard
from rollouts.core.policy import Guard
from rollouts.core.policy_schema import stored_policy
from rollouts.core.presets import PRESETS, PROMOTE_WITHIN, ROLL_BACK_OVER
from rollouts.core.rules.over_objective import BLAME_LOG_E, LEAST_STABLE_ATTEMPTS

#: One point of a series: seconds since 1970, bad requests and all requests since the counter began.
Point = Sequence[float]
MOST_POINTS = 2000
#: A clock of the caller may be ahead by so many seconds.
AHEAD_S = 5.0
_DEFAULTS = PRESETS["standard"]
_FAIL_OVER = Tolerance(**ROLL_BACK_OVER["standard"]["external"])
_PASS_WITHIN = Tolerance(**PROMOTE_WITHIN["standard"])


class JudgementVerdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


V = JudgementVerdict


@dataclass(frozen=True, kw_only=True)
class JudgeQuestion:
    """What to judge. The defaults are those of an external guard in the preset `standard`.

    `max_frac`: the objective, a share in [0, 1]; None: the candidate is only compared. `alpha_fail`, `alpha_pass`: the chance that a
    sound candidate ever fails, and that a candidate beyond `pass_within` passes.
    """

    has_stable: bool
    max_frac: float | None = None
    fail_over: Tolerance = _FAIL_OVER
    pass_within: Tolerance = _PASS_WITHIN
    alpha_fail: float = _DEFAULTS["alpha_roll_back"]
    alpha_pass: float = _DEFAULTS["alpha_promote"]
    min_requests: int = 0
    words: str = "bad requests"

    @property
    def guard(self) -> Guard:
        limit = 1.0 if self.max_frac is None else self.max_frac
        return Guard("external", limit, self.fail_over, self.pass_within, label=self.words)

    @property
    def bar_fail(self) -> float:
        """With a stable and an objective there are two tests, which share the chance."""
        return -math.log(self.alpha_fail / (1 + (self.has_stable and self.max_frac is not None)))

    @property
    def bar_pass(self) -> float:
        return -math.log(self.alpha_pass)


@dataclass(frozen=True)
class CounterJudgement:
    """`until`: of the last reading that the verdict rests on. `requests_to_go`: of the candidate, like those so far; None: unknown."""

    verdict: JudgementVerdict
    code: str
    sentence: str
    judged: Judged
    question: JudgeQuestion
    since: float | None = None
    until: float | None = None
    requests_to_go: int | None = None


#: A JSON number holds every whole number up to here.
MOST_COUNT = 2**53


def readings_of(candidate: Sequence[Point], stable: Sequence[Point] | None, name: str) -> list[Reading]:
    """The readings of two series with equal stamps."""
    beside = stable or [(at, 0, 0) for at, *_ in candidate]
    return [
        Reading("series", at, Counts(int(total), bad={name: int(bad)}), Counts(int(total_b), bad={name: int(bad_b)}))
        for (at, bad, total), (_, bad_b, total_b) in zip(candidate, beside, strict=True)
    ]


def series_problem(points: Sequence[Point], now: float) -> str:
    """A series' problem and the next step; empty if it can be judged. `now`: seconds since 1970."""
    if not 2 <= len(points) <= MOST_POINTS:
        return f"There are {len(points)} points. Send 2 to {MOST_POINTS}; a longer series keeps its start and takes a longer step."
    before: Point = (-math.inf, 0, 0)
    for number, point in enumerate(points):
        if len(point) != 3 or not all(math.isfinite(one) for one in point):
            return f"Point {number} is not three finite numbers. Write [time, bad, total]."
        at, bad, total = point
        if at < 0 or max(bad, total) > MOST_COUNT:
            return f"Point {number} is out of range. Times begin at 0; counts end at 2^53."
        if at > now + AHEAD_S:
            return f"Point {number} lies {at - now:.0f} s in the future. Send seconds since 1970, by a clock that is right."
        if at <= before[0]:
            return f"Point {number} is not later than the point before. Sort the points by time."
        if bad < 0 or bad > total or bad % 1 or total % 1:
            return f"Point {number} has {bad:g} bad of {total:g} requests. Send whole counts, and no more bad ones than all."
        if bad < before[1] or total < before[2]:
            return f"The counters fall at point {number}. Send counts that only grow; begin after a restart of the counter."
        if number and bad - before[1] > total - before[2]:
            return f"At point {number} more bad requests came than requests. Count both of the same requests."
        before = point
    return ""


def judge(readings: Sequence[Reading], question: JudgeQuestion) -> CounterJudgement:
    """The verdict on everything since the first reading. The first crossing convicts for good, as in a rollout."""
    policy, guard, tracker = stored_policy({"preset": "standard"}), question.guard, GuardTracker()
    since = readings[0].at if readings else None
    until, before, found = since, None, None
    suspect = min(BLAME_LOG_E, question.bar_fail)  # less than this convicts by no test

    def judged() -> Judged:
        return judge_guard(guard, tracker, has_stable=question.has_stable, bar_fine=question.bar_pass)

    for reading in readings:
        if question.has_stable and before is not None and not _both_came(before, reading):
            before = reading  # no comparison at the same time
            continue
        news = CounterNews.between({"": before} if before else {}, {"": reading})
        tracker = watched(tracker, guard, news, policy=policy, has_stable=question.has_stable)
        until, before = reading.at, reading
        is_suspect = tracker.evidence.log_e_worse(guard.name) >= suspect
        if is_suspect and (found := _failed(judged(), question)):
            break
    made = found or _open(judged(), question)
    left, more = question.min_requests - made.judged.candidate, made.judged.to_go
    to_go = None if found or more is None else max(more, left)
    return replace(made, since=since, until=until, requests_to_go=0 if made.verdict is V.PASSED else to_go)


def _both_came(before: Reading, now: Reading) -> bool:
    """Whether both arms got requests in between."""
    return all(
        new.attempts > old.attempts for new, old in ((now.candidate, before.candidate), (now.stable, before.stable))
    )


def unread(sentence: str, question: JudgeQuestion) -> CounterJudgement:
    """The judgement if the counters cannot be read."""
    judged = judge_guard(question.guard, GuardTracker(), has_stable=question.has_stable, bar_fine=question.bar_pass)
    return CounterJudgement(V.INCONCLUSIVE, "no_data", f"{capital(sentence)}.", judged, question)


def _failed(judged: Judged, question: JudgeQuestion) -> CounterJudgement | None:
    words = capital(question.words)
    if question.has_stable and judged.log_e_worse >= question.bar_fail:
        _, (bad, attempts, bad_stable, stable) = judged.convinced or ("", judged.window)
        said = (
            f"{words} of the candidate are at {_share(bad, attempts)} against {_share(bad_stable, stable)} of stable "
            "at the same time: worse beyond doubt."
        )
        return CounterJudgement(V.FAILED, "worse_than_stable", said, judged, question)
    if judged.log_e_over < question.bar_fail or question.max_frac is None or not _is_blamed(judged, question):
        return None
    said = (
        f"{words} of the candidate are at {_share(judged.bad_candidate, judged.candidate)}, "
        f"proven over {share_text(judged.limit)}."
    )
    return CounterJudgement(V.FAILED, "objective_breached", said, judged, question)


def _is_blamed(judged: Judged, question: JudgeQuestion) -> bool:
    """As `rollouts.core.rules.over_objective`: a stable that burns too excuses the candidate."""
    if not question.has_stable:
        return True
    is_known = judged.stable >= LEAST_STABLE_ATTEMPTS and not judged.is_stable_over
    return is_known and judged.log_e_worse >= BLAME_LOG_E


def _open(judged: Judged, question: JudgeQuestion) -> CounterJudgement:
    """The judgement while nothing convicts."""

    def inconclusive(code: str, said: str) -> CounterJudgement:
        return CounterJudgement(V.INCONCLUSIVE, code, said, judged, question)

    counted = f"{question.words} of the candidate are at {_share(judged.bad_candidate, judged.candidate)}"
    if not judged.candidate or (question.has_stable and not judged.stable):
        said = (
            "In no interval since the first point both arms had requests."
            if question.has_stable
            else "No request was counted."
        )
        return inconclusive("no_data", said)
    if judged.is_stable_over and judged.rate_candidate > judged.limit:
        said = f"Stable is over {share_text(judged.limit)} too ({_share(judged.bad_stable, judged.stable)}): {counted}."
        return inconclusive("both_arms_bad", said)
    is_over = question.max_frac is not None and judged.rate_candidate > judged.limit
    is_suspect = question.has_stable and judged.log_e_worse >= BLAME_LOG_E
    if judged.log_e_fine < question.bar_pass or judged.candidate < question.min_requests or is_over or is_suspect:
        more = (
            "" if judged.to_go is None or is_over or is_suspect else f"; about {judged.to_go} more like these would do"
        )
        return inconclusive("not_proven", f"{capital(counted)}: neither sound nor worse is proven yet{more}.")
    beside = f", stable's at {_share(judged.bad_stable, judged.stable)}" if question.has_stable else ""
    within = question.pass_within
    of = "stable's share" if question.has_stable else share_text(question.guard.max_frac)
    said = f"{capital(counted)}{beside}: proven within {within.ratio:g} × {of} plus {share_text(within.plus_frac)}."
    return CounterJudgement(V.PASSED, "proven", said, judged, question)


def _share(bad: float, attempts: float) -> str:
    return f"{share_text(bad / max(1, attempts))} ({round(bad)} of {round(attempts)})"
