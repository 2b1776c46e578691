"""How far one tensor is from another that was expected: one number for a row, 0 for the same."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
#: No value is measured in less than this part of what is usual in the whole set: an error beside a zero is no catastrophe.
_LEAST_PART = 0.01


def rms(values: Numbers) -> float:
    """The root of the mean square: what size is usual; 0 for none."""
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def cosine_distance(expected: Numbers, got: Numbers) -> float:
    """1 less the cosine of the angle between the two as vectors, 0 to 2. It does not see their lengths.

    inf for other shapes; of two zero vectors 0, of one alone 1.
    """
    if expected.shape != got.shape:
        return math.inf
    a, b = float(np.linalg.norm(expected)), float(np.linalg.norm(got))
    if a == 0 or b == 0:
        return float(a != b)
    return max(0.0, 1.0 - float(np.dot(expected.ravel() / a, got.ravel() / b)))


def largest_relative_error(expected: Numbers, got: Numbers, usual: float) -> float:
    """The largest of `relative_errors`; inf for other shapes, 0 for no values."""
    errors = relative_errors(expected, got, usual)
    return math.inf if errors is None else float(errors.max(initial=0.0))


def mean_relative_error(expected: Numbers, got: Numbers, usual: float) -> float:
    """The mean of `relative_errors`; inf for other shapes, 0 for no values."""
    errors = relative_errors(expected, got, usual)
    return math.inf if errors is None else float(errors.mean()) if errors.size else 0.0


def relative_errors(expected: Numbers, got: Numbers, usual: float) -> Numbers | None:
    """|got - expected| in parts of the expected value, or of its row's rms where that is larger; None for other shapes.

    What cancels out to nearly nothing in a row is as uncertain as the row's other values, so its own size would blow the error
    up. `usual` is the rms over the whole set, a hundredth of which is the least that anything is measured in.
    """
    if expected.shape != got.shape:
        return None
    size = np.maximum(np.abs(expected), max(rms(expected), _LEAST_PART * usual))
    off = np.abs(got - expected)
    return np.divide(off, size, out=np.where(off > 0, np.inf, 0.0), where=size > 0)
