"""Which requests a policy lets be kept, and the golden set that they make."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from validators.core.contract import Tensor
from validators.core.golden_set import parse_golden_set
from validators.core.kept_requests import Draft, KeepRule, Sample, draft, keep_rule, sample
from validators.core.policy import parse_policy
from validators.core.ruler import Kind

SECRET = b"s" * 32
RULE = KeepRule(10, 7.0, 1000)
X = Tensor("x", "FP32", (2,))
TEXT = Tensor("text", "BYTES", (1,))
Y = Tensor("y", "FP32", (2,))


def taken(
    asked: Any, answered: Any, inputs: tuple[Tensor, ...] = (X,), rule: KeepRule = RULE, **how: Any
) -> Sample | None:
    names = {"asked": {inputs[0].name: asked}, "answered": {"y": answered}}
    return sample(rule, SECRET, release="r1", inputs=inputs, has_batch_axis=True, **names, **how)


def floats(*rows: list[float]) -> np.ndarray[Any, Any]:
    return np.array(rows, dtype=np.float32)


def texts(*rows: bytes) -> np.ndarray[Any, Any]:
    return np.array([[row] for row in rows], dtype=object)


def golden(**section: Any) -> dict[str, Any]:
    return parse_policy({"golden": section}).of("golden")


def test_nothing_is_kept_unless_the_policy_says_how_much() -> None:
    assert keep_rule({}) is None and keep_rule({"kept_requests": None}) is None
    assert keep_rule({"kept_requests": {"max_age_days": 3}}) is None  # not how many
    assert keep_rule({"kept_requests": {"most": 1_000_000}}) is None
    assert keep_rule({"kept_requests": {"most": 5}}) == KeepRule(5, 7.0, 16_384)


def test_what_is_kept_is_no_part_of_what_a_policy_demands() -> None:
    allowed = parse_policy({"kept_requests": {"most": 5}})
    assert allowed.digest == parse_policy({}).digest and "kept_requests" not in allowed.document


def test_one_item_of_a_batch_is_kept_with_the_answer_that_it_got() -> None:
    asked = floats(*([n, n] for n in range(8)))
    found = taken(asked, asked * 2)
    assert found is not None and found.release == "r1"
    assert found.answers["y"] == [2 * value for value in found.inputs["x"]] and found == taken(asked, asked * 2)
    others = {tuple(one.inputs["x"]) for n in range(20) if (one := taken(asked + n * 8, asked)) is not None}
    assert {value % 8 for value, _ in others} > {0.0, 1.0}  # not always the first


@pytest.mark.parametrize(
    ("asked", "answered", "inputs"),
    [
        (texts(b"\xff"), floats([1, 2]), (TEXT,)),
        (texts(b"a\x00b"), floats([1, 2]), (TEXT,)),
        (floats([np.nan, 1]), floats([1, 2]), (X,)),
        (floats([1, 1]), floats([np.inf, 2]), (X,)),
        (floats([1, 1, 1]), floats([1, 2]), (X,)),
        (np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32), (X,)),
        (texts(b"long" * 400), floats([1, 2]), (TEXT,)),
    ],
    ids=["no UTF-8", "NUL", "NaN", "infinite", "shape", "empty batch", "too large"],
)
def test_what_cannot_be_an_item_is_not_kept(asked: Any, answered: Any, inputs: tuple[Tensor, ...]) -> None:
    assert taken(asked, answered, inputs) is None


@given(st.lists(st.integers(0, 10_000), min_size=30, max_size=60, unique=True), st.randoms())
def test_which_are_kept_depends_on_no_order_and_on_no_repetition(values: list[int], random: Any) -> None:
    """The ten lowest ranks of the distinct inputs are the same, however often and in whichever order they came."""

    def kept(order: list[int]) -> set[tuple[int, str]]:
        found = {}
        for value in order:
            one = taken(floats([value, 0]), floats([1, 0]))
            assert one is not None
            found[one.digest] = one.rank
        return set(sorted((rank, digest) for digest, rank in found.items())[: RULE.most])

    again = [*values, *values[:20]]
    random.shuffle(again)
    assert kept(values) == kept(again)


def test_ranks_cannot_be_foreseen_without_the_secret() -> None:
    one = taken(floats([1, 0]), floats([1, 0]))
    other = sample(
        RULE, b"t" * 32, release="r1", inputs=(X,), asked={"x": floats([1, 0])}, answered={}, has_batch_axis=True
    )
    assert one is not None and other is not None and one.digest == other.digest and one.rank != other.rank


def samples() -> list[Sample]:
    found = [taken(floats([n, 0]), floats([0.2, 0.8] if n % 2 else [0.9, 0.1])) for n in range(6)]
    return [one for one in found if one is not None]


def items_of(made: Draft, outputs: tuple[Tensor, ...] = (Y,)) -> Any:
    return parse_golden_set(made.lines, inputs=(X,), outputs=outputs)


def test_labels_of_a_draft_are_the_baselines_answers() -> None:
    made = draft(samples(), golden(labels=["bad", "good"]), (Y,), baseline="r1")
    items = items_of(made)
    assert (made.items, made.left_out, len(items)) == (6, {}, 6)
    assert {item.inputs["x"][0]: item.label for item in items} == {n: "good" if n % 2 else "bad" for n in range(6)}
    assert [one.rank for one in samples()] != sorted(one.rank for one in samples())  # so the order is that of the ranks
    ranks = {f"kept-{one.digest[7:23]}": one.rank for one in samples()}
    assert [ranks[item.id] for item in items] == sorted(ranks.values())


def test_other_kinds_expect_what_the_baseline_answered() -> None:
    (first, *_) = items = items_of(draft(samples(), golden(compare="cosine"), (Y,), baseline="r1"))
    assert len(items) == 6 and first.kind is Kind.TENSORS
    spoken = [replace(one, answers={"said": f"word {n}"}) for n, one in enumerate(samples())]
    said = Tensor("said", "BYTES", (1,))
    found = items_of(draft(spoken, golden(compare="exact_text"), (said,), baseline="r1"), (said,))
    assert {item.kind for item in found} == {Kind.TEXT}


def test_what_another_release_answered_or_what_lacks_an_output_is_left_out_and_counted() -> None:
    first, second, *rest = samples()
    made = draft([replace(first, release="r0"), replace(second, answers={}), *rest], golden(), (Y,), baseline="r1")
    assert made.items == 4 == len(made.lines.splitlines())
    assert made.left_out == {"answered by r0": 1, "without every output that is expected": 1}
    with pytest.raises(ValueError, match="say in golden.output"):
        draft(rest, golden(), (Y, Tensor("z", "FP32", (1,))), baseline="r1")
    assert json.loads(made.lines.splitlines()[0]).keys() == {"id", "inputs", "label"}
