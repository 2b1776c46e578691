"""Golden items that the prober asks, and how answers are compared."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollouts.models import Mismatch
from rollouts.prober.golden import GoldenProbe
from rollouts.prober.targets import Targets, rule_of
from serving.ports import InferenceError
from tests.contracts.serving_models import serving
from tests.support.worlds.prober_setup import MODEL, World, body_of, committed, double, make_world, until, world  # noqa: F401
from validators.core.policy import parse_policy

pytestmark = pytest.mark.django_db


# -- golden items --------------------------------------------------------------------------------------------------------


GOLDEN = {"gates": ["golden"], "golden": {"set": f"sha256:{'5' * 64}"}}
#: The largest of four numbers is where the one is.
ITEMS = [(f"item-{i}", [float(i % 4 == at) for at in range(4)], i % 4) for i in range(8)]


@pytest.fixture
def golden(monkeypatch: pytest.MonkeyPatch, make_world: Callable[..., World]) -> Callable[..., World]:
    from validators.core.golden_set import GoldenItem

    def items(model: Any, digest: str) -> tuple[GoldenItem, ...]:
        assert (model.slug, digest) == (MODEL, GOLDEN["golden"]["set"])  # type: ignore[index]
        return tuple(GoldenItem(name, {"x": x}, label) for name, x, label in ITEMS)

    monkeypatch.setattr("rollouts.prober.golden.golden_items", items)
    return lambda **how: make_world(gate_policy=GOLDEN, **how)


def probe(world: World, turns: int) -> tuple[int, int, int, int]:
    """Golden probes, one a turn."""
    for _ in range(turns):
        world.prober.turn()
        until(lambda: not world.prober.golden._busy)
    world.prober.book.write()
    return world.written()


@committed
def test_golden_items_are_asked_of_both_in_turn(golden: Callable[..., World]) -> None:
    world = golden()
    assert probe(world, len(ITEMS)) == (8, 0, 8, 0)
    assert world.asked == ["r1", "r2"] * 8
    assert not Mismatch.objects.exists()


@committed
def test_wrong_golden_answers_are_counted_for_whoever_gave_them(golden: Callable[..., World]) -> None:
    world = golden()
    world.candidate_model.compute = lambda arrays: {
        "y": arrays["x"][:, ::-1] * (arrays["x"][:, :1] > 0) + double(arrays)["y"] / 9
    }
    world.stable_model.compute = lambda arrays: {
        "y": double(arrays)["y"] * np.nan if arrays["x"][0, 1] else double(arrays)["y"]
    }
    assert probe(world, len(ITEMS)) == (8, 2, 8, 2)
    shown = Mismatch.objects.order_by("facts__item")
    assert [(one.source, one.summary) for one in shown] == [
        ("golden", f"r2: golden item item-{i}: answers 3, expected 0") for i in (0, 4)
    ]
    assert shown[0].facts == {"item": "item-0", "slice": "all", "is_stable_wrong": False}


@committed
def test_expected_numbers_are_asked_by_how_far_off_they_are(
    monkeypatch: pytest.MonkeyPatch, make_world: Callable[..., World]
) -> None:
    """Both are a thousandth off, which is right; the candidate misses what is not zero by two hundredths more on odd items."""
    from validators.core.golden_set import GoldenItem

    items = tuple(GoldenItem(name, {"x": x}, expected={"y": [2 * one for one in x]}) for name, x, _ in ITEMS)
    monkeypatch.setattr("rollouts.prober.golden.golden_items", lambda *_: items)
    policy = {**GOLDEN, "golden": {**GOLDEN["golden"], "compare": "largest_relative_error"}}  # type: ignore[dict-item]
    world = make_world(gate_policy=policy)
    world.stable_model.compute = lambda arrays: {"y": double(arrays)["y"] * np.float32(1.001)}
    world.candidate_model.compute = lambda arrays: {
        "y": double(arrays)["y"] * np.float32(1.02 if arrays["x"][0, 1] or arrays["x"][0, 3] else 1.001)
    }
    assert probe(world, len(ITEMS)) == (8, 4, 8, 0)
    assert "r2: golden item item-1: is off by 0.02 (largest_relative_error), right is 0.005" in {
        one.summary for one in Mismatch.objects.all()
    }


@committed
def test_a_candidate_that_fails_golden_items_is_wrong_and_a_failing_stable_counts_for_nobody(
    golden: Callable[..., World],
) -> None:
    world = golden()
    world.candidate_model.breaks = InferenceError("server_error", "no kernel")
    assert probe(world, 2) == (2, 2, 2, 0)
    world.stable_model.breaks = InferenceError("server_error", "no memory")
    assert probe(world, 2) == (2, 2, 2, 0)
    assert world.seen["golden_stable_failed"] == 2


@committed
def test_a_first_release_is_held_against_the_golden_set_alone(golden: Callable[..., World]) -> None:
    world = golden(with_stable=False)
    world.candidate_model.compute = lambda arrays: {"y": np.roll(arrays["x"], 1, axis=1)}
    assert probe(world, 4) == (4, 4, 0, 0)


@committed
def test_a_golden_set_that_cannot_be_read_is_no_wrong_answer(make_world: Callable[..., World]) -> None:
    world = make_world(gate_policy=GOLDEN)  # no such set was ever uploaded
    assert probe(world, 3) == (0, 0, 0, 0)
    assert world.asked == []
    assert world.ask(body_of(1)) == [True]


@committed
def test_the_golden_set_is_read_from_the_blob_store(make_world: Callable[..., World]) -> None:
    from tests.support.worlds.factories import make_actor
    from validators.actions import add_golden_set

    world = make_world()
    lines = "\n".join(json.dumps({"id": i, "inputs": {"x": x}, "label": label}) for i, x, label in ITEMS)
    made, _ = add_golden_set(actor=make_actor(team=world.model.team), model=world.model, data=lines.encode())
    world.model.gate_policy = {"golden": {"set": made.digest}}
    world.model.save()
    assert probe(world, 3)[0] == 3


@committed
def test_items_come_in_an_order_of_their_own_and_all_of_them(golden: Callable[..., World]) -> None:
    world = golden()
    (target,) = Targets().read()
    found = GoldenProbe.of(target.profile)
    assert found is not None
    first = [found.next_item().id for _ in ITEMS]
    assert sorted(first) == sorted(name for name, *_ in ITEMS)
    assert [found.next_item().id for _ in ITEMS] == first
    assert world.rollout.pk == target.rollout_id


# -- how answers are compared --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("golden_policy", "answer"),
    [
        ({}, ""),
        ({"min_accuracy": 0.9}, ""),
        ({"set": f"sha256:{'5' * 64}"}, "y"),
        ({"labels": ["a", "b"]}, "y"),
        ({"labels": ["a", "b"], "output": "y"}, "y"),
        ({"set": f"sha256:{'5' * 64}", "compare": "cosine"}, ""),
        ({"labels": ["a", "b"], "output": "z"}, ""),
    ],
)
def test_classes_are_compared_where_the_golden_policy_says_what_the_answer_is(
    golden_policy: dict[str, Any], answer: str
) -> None:
    rule = rule_of(parse_policy({"golden": golden_policy}), serving())
    assert (rule.answer, rule.data_types) == (answer, {"y": "FP32"})


def test_of_several_outputs_the_policy_must_name_the_answer() -> None:
    two = serving(outputs=[{"name": name, "data_type": "FP32", "dims": [4]} for name in ("y", "z")])
    assert rule_of(parse_policy({"golden": {"labels": ["a"]}}), two).answer == ""
    assert rule_of(parse_policy({"golden": {"labels": ["a"], "output": "z"}}), two).answer == "z"
