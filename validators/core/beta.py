"""The regularised incomplete beta function, its logarithm and its inverse: all that the gates' statistics rest on."""

from __future__ import annotations

import math

_TINY = 1e-300
_TERMS = 10_000


def log_beta(a: float, b: float) -> float:
    """log B(a, b) for a, b > 0."""
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def log_incomplete(x: float, a: float, b: float) -> float:
    """log I_x(a, b): the log probability that a Beta(a, b) variable is at most x. -inf where that is none.

    Precise also where the probability itself underflows, as long as it is the smaller tail.
    Source: continued fraction of Numerical Recipes section 6.4, evaluated by Lentz's method.
    """
    if x <= 0:
        return -math.inf
    if x >= 1:
        return 0.0
    if x < (a + 1) / (a + b + 2):
        return _log_lower(x, a, b)
    return _log_one_minus_exp(_log_lower(1 - x, b, a))


def incomplete(x: float, a: float, b: float) -> float:
    """I_x(a, b), in [0, 1]."""
    return math.exp(log_incomplete(x, a, b))


def quantile(share: float, a: float, b: float) -> float:
    """The x with I_x(a, b) = share, to about 1e-12, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if incomplete(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _log_one_minus_exp(log_p: float) -> float:
    """log(1 - exp(log_p)) for log_p <= 0, without cancellation at either end."""
    if log_p >= 0:
        return -math.inf
    return math.log(-math.expm1(log_p)) if log_p > -0.693 else math.log1p(-math.exp(log_p))


def _log_lower(x: float, a: float, b: float) -> float:
    front = a * math.log(x) + b * math.log1p(-x) - log_beta(a, b) - math.log(a)
    return min(0.0, front + math.log(_fraction(x, a, b)))


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _off_zero(1 + term * d)
            c = _off_zero(1 + term / c)
            value *= d * c
        if abs(d * c - 1) < 1e-14:
            return value
    raise ArithmeticError(f"The incomplete beta function did not converge at x={x}, a={a}, b={b}.")


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
