"""Which requests an engine plan is compared on."""

from __future__ import annotations

from collections import Counter

import numpy as np

from registry.core.engine_profile import InputProfile
from validators.core.contract import Tensor
from validators.core.inputs import Arrays
from validators.core.plan_requests import ALONE, PlanRequest, outside_of, plan_requests

X, IDS = Tensor("x", "FP32", (-1,)), Tensor("ids", "INT64", (-1,))
PROFILE = (InputProfile("x", (1, 2), (4, 16), (8, 32)), InputProfile("ids", (1, 2), (4, 16), (8, 32)))
FIXED = (InputProfile("x", (1, 6), (8, 6), (8, 6)),)


def asked(seed: int = 1, examples: tuple[Arrays, ...] = ()) -> list[PlanRequest]:
    return list(plan_requests((X, IDS), PROFILE, has_batch_axis=True, seed=seed, examples=examples))


def test_every_corner_of_the_profile_is_asked() -> None:
    shapes = Counter(one.inputs["x"].shape for one in asked())
    for dims in (2, 16, 32):
        assert shapes[(1, dims)] == ALONE and shapes[(4, dims)] == 1 and shapes[(8, dims)] == 3
    assert sum(shapes.values()) == 3 * (ALONE + 4)


def test_an_item_is_the_same_wherever_it_is_asked() -> None:
    seen: dict[tuple[int, int], Arrays] = {}
    for request in asked():
        for row, item in enumerate(request.items):
            own = {name: array[row] for name, array in request.inputs.items()}
            first = seen.setdefault((request.pool, item), own)
            assert all((first[name] == own[name]).all() for name in own)
    first, second = seen[(0, 0)], seen[(0, 1)]
    assert (first["x"] != second["x"]).any(), "and two items differ"


def test_items_have_other_neighbours_and_other_places() -> None:
    batches = [one for one in asked() if one.pool == 0 and len(one.items) == 8]
    whole, mixed, equal = (one.items for one in batches)
    assert whole == tuple(range(8)) and sorted(mixed) == list(whole) and mixed != whole and equal == (0,) * 8
    assert [one.name for one in batches] == [
        "a batch of 8, at the usual dims",
        "a batch of 8 in another order, at the usual dims",
        "a batch of 8 equal rows, at the usual dims",
    ]


def test_a_seed_makes_the_same_requests_again() -> None:
    one, same, other = asked(3), asked(3), asked(4)
    assert all((a.inputs["x"] == b.inputs["x"]).all() for a, b in zip(one, same, strict=True))
    assert any((a.inputs["x"] != b.inputs["x"]).any() for a, b in zip(one, other, strict=True))


def test_made_up_numbers_are_of_the_declared_types_and_never_all_zero() -> None:
    for request in asked():
        x, ids = request.inputs["x"], request.inputs["ids"]
        assert (x.dtype, ids.dtype) == (np.float32, np.int64)
        assert ids.reshape(len(ids), -1).max(axis=1).min() == 1 and ids.min() >= 0


def test_equal_dims_are_asked_once_and_equal_batches_too() -> None:
    requests = list(plan_requests((X,), FIXED, has_batch_axis=True, seed=1))
    assert Counter(one.inputs["x"].shape for one in requests) == {(1, 6): ALONE, (8, 6): 3}


def test_without_a_batch_axis_or_with_batches_of_one_every_item_is_alone() -> None:
    bare = list(plan_requests((X,), (InputProfile("x", (6,), (6,), (6,)),), has_batch_axis=False, seed=1))
    assert [one.inputs["x"].shape for one in bare] == [(6,)] * ALONE and all(one.is_alone for one in bare)
    ones = list(plan_requests((X,), (InputProfile("x", (1, 6), (1, 6), (1, 6)),), has_batch_axis=True, seed=1))
    assert [one.inputs["x"].shape for one in ones] == [(1, 6)] * ALONE


def test_examples_are_asked_in_the_place_of_what_would_be_made_up() -> None:
    examples = tuple(
        {"x": np.full(size, at, np.float32), "ids": np.full(size, at)} for at, size in enumerate((5, 5, 9))
    )
    requests = asked(examples=examples)
    pools = Counter((one.pool, one.inputs["x"].shape[1]) for one in requests)
    assert pools == {(0, 5): 2 + 4, (1, 9): 1 + 4}, "items of equal shapes make a pool"
    assert next(one for one in requests if len(one.items) == 4).items == (0, 1, 0, 1), "and few fill a batch in turn"


def test_an_example_beyond_the_profile_is_told() -> None:
    fits = {"x": np.zeros(2, np.float32), "ids": np.zeros(32)}
    assert outside_of(PROFILE, fits, has_batch_axis=True) == ""
    long = {**fits, "ids": np.zeros(33)}
    assert outside_of(PROFILE, long, has_batch_axis=True) == "ids has the shape [33], and the plan takes [2] to [32]"
    assert "x has the shape [2, 1]" in outside_of(PROFILE, {**fits, "x": np.zeros((2, 1))}, has_batch_axis=True)
