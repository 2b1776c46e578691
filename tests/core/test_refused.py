"""Callers' mistakes: no attempts, and a guard of their own for a release that turns good requests into 400s."""

from __future__ import annotations

import random

import pytest

from rollouts.core.counter_deltas import Counts, Reading
from rollouts.core.guard_tracker import CounterNews, GuardTracker, watched
from rollouts.core.policy_schema import parse_policy

POLICY = parse_policy({})
ERRORS, REFUSED = POLICY.guards


def after(
    seconds: int, own: float, stables: float, *, failed: float = 0.0, seed: int = 1
) -> tuple[GuardTracker, GuardTracker]:
    """(errors, refused) after ten requests a second to each arm, of which these shares are refused; the candidate fails some."""
    draw, readings = random.Random(seed), {}
    errors, refused = GuardTracker(), GuardTracker()
    sums = [[0, 0, 0], [0, 0, 0]]  # attempts, failed, refused by arm
    for second in range(1, seconds + 1):
        for arm, share in enumerate((own, stables)):
            for _ in range(10):
                if draw.random() < share:
                    sums[arm][2] += 1
                else:
                    sums[arm][0] += 1
                    sums[arm][1] += arm == 0 and draw.random() < failed
        counts = [Counts(n, n, {"errors": bad, "refused": mistakes}) for n, bad, mistakes in sums]
        now = {"a": Reading("a", float(second), *counts, since=0.0)}
        news = CounterNews.between(readings or {"a": Reading("a", 0.0, Counts(), Counts())}, now)
        errors = watched(errors, ERRORS, news, policy=POLICY, has_stable=True)
        refused, readings = watched(refused, REFUSED, news, policy=POLICY, has_stable=True), now
    return errors, refused


def is_worse(watch: GuardTracker, guard: object) -> bool:
    return watch.evidence.log_e_worse(guard.name) >= POLICY.bar_worse_of(guard)  # type: ignore[attr-defined, arg-type]


@pytest.mark.parametrize(("own", "stables"), [(1.0, 0.0), (0.3, 0.0), (0.5, 0.1)])
def test_a_release_that_turns_good_requests_into_400s_is_found(own: float, stables: float) -> None:
    errors, refused = after(60, own, stables)
    assert is_worse(refused, REFUSED) and not is_worse(errors, ERRORS)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_callers_who_get_much_wrong_convict_nobody_and_hide_nobody(share: float) -> None:
    for seed in range(5):
        errors, refused = after(120, share, share, seed=seed)
        assert not is_worse(errors, ERRORS) and not is_worse(refused, REFUSED)
        errors, _ = after(120, share, share, failed=0.1, seed=seed)
        assert is_worse(errors, ERRORS)


def test_what_was_refused_is_counted_among_all_that_was_asked() -> None:
    errors, refused = after(10, 0.5, 0.5)
    assert (refused.evidence.candidate, refused.evidence.stable) == (100, 100)
    assert errors.evidence.candidate + refused.evidence.point("refused").bad_candidate == 100
