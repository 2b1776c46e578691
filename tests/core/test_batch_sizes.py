"""The sizes at which a batch's cost is measured."""

from __future__ import annotations

import pytest

from validators.core.batches import doubled


@pytest.mark.parametrize(("most", "sizes"), [(0, [1]), (1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_sizes_double_up_to_the_greatest(most: int, sizes: list[int]) -> None:
    assert doubled(most) == sizes
