"""Two arms, or one replica and the others, each with bad and good attempts: what chance does in such a table if both are alike.

Source: Fisher's exact test (the hypergeometric distribution), and the test of Mantel and Haenszel, which sums its moments over tables.
"""

from __future__ import annotations

import math

#: Smaller terms of a sum of chances, beyond the largest, change nothing.
NO_CHANCE = 1e-18


def tail(least: int, drawn: int, bad: int, whole: int) -> float:
    """Returns the chance, in [0, 1], that of `drawn` out of `whole` attempts, `bad` of which are bad, at least `least` are bad."""
    first, last = max(least, drawn + bad - whole, 0), min(drawn, bad)
    likeliest, total = (drawn + 1) * (bad + 1) / (whole + 2), 0.0
    for one in range(first, last + 1):
        chance = math.exp(_log_choose(bad, one) + _log_choose(whole - bad, drawn - one) - _log_choose(whole, drawn))
        total += chance
        if one > likeliest and chance < NO_CHANCE:
            break  # those that follow are smaller still: of a million attempts a rollback must not wait for all
    return min(1.0, total)


def log_chance_of_bad_only(own: int, bad: int, good: int) -> float:
    """Returns the logarithm of the chance that one arm's `own` attempts are all bad, beside `bad` and `good` attempts of the other."""
    worst, whole = own + bad, own + bad + good
    lgamma = math.lgamma
    return lgamma(worst + 1) - lgamma(worst - own + 1) + lgamma(whole - own + 1) - lgamma(whole + 1)


def moments(bad: float, attempts: float, bad_else: float, attempts_else: float) -> tuple[float, float]:
    """Returns the first arm's bad attempts beyond its share of all of them, and the variance of that number.

    Both are 0 if one arm has no attempts.
    """
    whole, all_bad = attempts + attempts_else, bad + bad_else
    if attempts <= 0 or attempts_else <= 0:
        return 0.0, 0.0
    share = attempts / whole
    return bad - share * all_bad, share * (1 - share) * all_bad * (whole - all_bad) / (whole - 1)


def excess_of(bad: float, candidate: float, bad_stable: float, stable: float) -> float:
    """Returns the candidate's bad attempts beyond stable's share."""
    return bad - bad_stable * candidate / max(1, stable)


def by_chance(candidate: float, bad_stable: float, stable: float, phi: float) -> float:
    """Returns the standard deviation of `excess_of` if the arms are alike; `phi`: how much stable's counts scatter beyond chance."""
    share = bad_stable / max(1, stable)
    return math.sqrt(max(0.0, phi * candidate * share * (1 - share) * (1 + candidate / max(1, stable))))


def _log_choose(of: int, some: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(some + 1) - math.lgamma(of - some + 1)
