"""Arrays that are filled with the values of smaller ones."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from validators.core.inputs import filled


@pytest.mark.parametrize("shape", [(3,), (2, 5), (7, 1, 3), (1,), (0, 4), ()])
@pytest.mark.parametrize("of", [[4], [1, 2, 3], [[1, 2], [3, 4]], [b"a", b"bc"], 5, []])
def test_it_has_the_values_over_and_over(of: list[object], shape: tuple[int, ...]) -> None:
    array = np.array(of, dtype=object if isinstance(of, list) and b"a" in of else np.float32)
    wanted, found = np.resize(array, shape), filled(array, shape)
    assert found.shape == wanted.shape and found.dtype == array.dtype and found.tolist() == wanted.tolist()


def test_one_value_takes_no_more_memory_than_it_makes() -> None:
    tracemalloc.start()
    try:
        found = filled(np.ones(1, dtype=bool), (1 << 10, 1 << 10))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.all() and found.nbytes == 1 << 20 and peak < 2 * found.nbytes
