"""Golden sets of tensors and texts: how they are read, what fits what, what is right, the same, and caught."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from ledger.core.errors import Invalid
from validators.core import batches
from validators.core.compare import share_of
from validators.core.contract import Tensor
from validators.core.golden import Replay, judge_golden
from validators.core.golden_checks import slices_at_least
from validators.core.golden_fit import fitted, misfit
from validators.core.golden_length import length_shift, median_of
from validators.core.golden_off import off_by, worst_rows
from validators.core.golden_set import GoldenItem, kind_of, parse_golden_set
from validators.core.policy import parse_policy
from validators.core.rows import expected_rows, judged_outputs, rows_in
from validators.core.ruler import LABELS, Kind, rounding_of, ruler_of
from validators.core.verdict import Judgement, Verdict

SET = "sha256:" + "0" * 64
VECTOR = Tensor("v", "FP32", (3,))
PRICE = Tensor("price", "FP32", (1,))
TEXT = Tensor("say", "BYTES", (1,))


def section(compare: str, **golden: Any) -> dict[str, Any]:
    return parse_policy({"golden": {"set": SET, "compare": compare, **golden}}).of("golden")


def line(**changes: Any) -> str:
    return json.dumps({"id": "a", "inputs": {"x": 1}, "expected": {"v": [1, 2, 3]}} | changes)


def test_items_expect_numbers_or_texts_and_one_set_is_of_one_kind() -> None:
    [tensors] = parse_golden_set(line(right_within=0.1).encode(), outputs=[VECTOR])
    assert (tensors.kind, tensors.right_within, tensors.label) == (Kind.TENSORS, 0.1, None)
    [text] = parse_golden_set(line(expected={"say": "hello"}).encode(), outputs=[TEXT])
    assert kind_of([text]) is Kind.TEXT and text.shown == {"say": "hello"}
    [boxes] = parse_golden_set(line(expected={"v": []}).encode())
    assert boxes.kind is Kind.TENSORS
    assert kind_of(parse_golden_set(json.dumps({"id": "a", "inputs": {"x": 1}, "label": 1}).encode())) is Kind.LABELS


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (line(id="b", expected={"say": "x"}), "of the kind text, and the first of the kind tensors"),
        (line(id="b", expected={"w": [1, 2, 3]}), "expected is not v"),
        (line(id="b", expected={"v": ["x"]}), "no object with numbers"),
        (line(id="b", expected={"v": [True]}), "no object with numbers"),
        (line(id="b", expected={"v": [[1], [1, 2]]}), "no object with numbers"),
        (line(id="b", expected={"v": [1e999]}).replace("Infinity", "1e999"), "no object with numbers"),
        (line(id="b", expected={}), "no object with numbers"),
        (line(id="b", expected=[1]), "no object with numbers"),
        (line(id="b", label=1), "a label and expected"),
        (line(id="b", right_within=-1), "right_within is not a number"),
        (line(id="b", right_within=1e999).replace("Infinity", "1e999"), "right_within is not a number"),
        (line(id="b", right_within=True), "right_within is not a number"),
        (json.dumps({"id": "b", "inputs": {"x": 1}, "label": 1, "right_within": 0.1}), "beside a label"),
        (json.dumps({"id": "b", "inputs": {"x": 1}}), "label is neither"),
    ],
)
def test_mistakes_in_what_is_expected_are_named_by_line(bad: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_golden_set(f"{line()}\n{bad}".encode())
    [error] = caught.value.facts["errors"]
    assert error["field"] == "line 2" and says in error["message"] and error["fix"]


def test_what_is_expected_is_held_against_the_contract() -> None:
    with pytest.raises(Invalid, match="there is no output v"):
        parse_golden_set(line().encode(), outputs=[PRICE])
    with pytest.raises(Invalid, match="shape"):
        parse_golden_set(line(expected={"v": [1, 2]}).encode(), outputs=[VECTOR])


def items_of(values: Any, name: str = "v", slices: int = 1, **more: Any) -> list[GoldenItem]:
    return [
        GoldenItem(str(at), {}, slice=f"s{at % slices}", expected={name: value}, **more)
        for at, value in enumerate(values)
    ]


def test_a_set_a_policy_and_a_release_fit_or_say_why_not() -> None:
    items = items_of([[1.0, 2.0, 3.0]])
    assert misfit(section("cosine"), items, [VECTOR, PRICE]) is None
    wrong = misfit(section("label"), items, [VECTOR])
    assert wrong is not None and (wrong.field, "cosine" in wrong.fix) == ("golden.compare", True)
    assert misfit(section("exact_text"), items, [VECTOR]) is not None
    for golden, outputs, field in (
        ({}, [PRICE], "golden.set"),
        ({}, [Tensor("v", "BYTES", (3,))], "golden.set"),
        ({}, [Tensor("v", "FP32", (4,))], "golden.set"),
        ({"output": "price"}, [VECTOR, PRICE], "golden.output"),
    ):
        found = misfit(section("cosine", **golden), items, outputs)
        assert found is not None and found.field == field
    assert fitted({"labels": ["a"], "set": SET}, Kind.TENSORS) == {"set": SET, "compare": "largest_relative_error"}
    assert fitted({"compare": "cosine", "right_within": 1}, Kind.TENSORS) == {"compare": "cosine", "right_within": 1}
    assert fitted({"compare": "cosine", "right_within": 1, "batch_size": 4}, Kind.LABELS) == {"batch_size": 4}


def test_rows_are_read_by_name_as_numbers_or_texts() -> None:
    items = items_of([3.5, 4.5], "price")
    outputs = judged_outputs(items, [VECTOR, PRICE], None)
    assert outputs == (PRICE,)
    assert [row["price"].tolist() for row in expected_rows(items, outputs)] == [[3.5], [4.5]]
    found = rows_in({"price": np.array([[1], [np.nan]], np.float32)}, ["price"], 2)
    assert found[0] is not None and found[0]["price"].dtype == np.float64 and found[1] is None
    both = {"price": np.array([[1], [2]], np.float32), "v": np.array([[1.0], [np.inf]])}
    assert [row is None for row in rows_in(both, ["price", "v"], 2)] == [False, True]
    assert rows_in({"say": np.array([[b"x"], ["y"]], object)}, ["say"], 2) == [{"say": "x"}, {"say": "y"}]
    with pytest.raises(ValueError, match="for 3 items"):
        rows_in({"price": np.ones((2, 1))}, ["price"], 3)
    flat = rows_in({"price": np.ones(2)}, ["price"], 2)
    assert [row is not None and row["price"].tolist() for row in flat] == [1.0, 1.0]
    with pytest.raises(ValueError, match="for 1 items"):
        rows_in({"price": np.array(1.0)}, ["price"], 1)
    with pytest.raises(ValueError, match="2 texts"):
        rows_in({"say": np.array([[b"x", b"y"]], object)}, ["say"], 1)
    with pytest.raises(KeyError):
        rows_in({}, ["price"], 1)
    with pytest.raises(ValueError, match="item 0"):
        expected_rows(items_of([[1.0, 2.0]], "price"), [PRICE])


def test_rounding_depends_on_the_data_type_and_what_is_stated_goes_first() -> None:
    assert rounding_of("largest_relative_error", ["FP32"]) < rounding_of("largest_relative_error", ["FP32", "BF16"])
    assert [rounding_of("mean_relative_error", [one]) for one in ("FP64", "FP16", "BF16")] == [5e-3, 1e-2, 3e-2]
    assert [rounding_of("cosine", [one]) for one in ("FP32", "BF16")] == [1e-4, 2e-3]
    assert rounding_of("largest_relative_error", ["INT64"]) == 0
    assert (rounding_of("boxes", ["INT8"]), rounding_of("text_tokens", [])) == (0.1, 0.1)
    assert rounding_of("cosine", ["FP16"]) == 1e-3 and rounding_of("cosine", ["INT8"]) == 0 == rounding_of(
        "exact_text", []
    )
    rows = [{"v": np.ones(3)}]

    def limits(noise: float = 0.0, **golden: Any) -> tuple[float, float, str]:
        ruler = ruler_of(section("cosine", **golden), rows, {"v": "FP32"}, noise=noise)
        return ruler.right_within, ruler.same_within, ruler.source

    assert limits() == (1e-4, 1e-4, "rounding") == limits(noise=1e-5)
    assert limits(noise=2e-4)[:2] == pytest.approx((6e-4, 6e-4)) and limits(noise=2e-4)[2] == "stable's own spread"
    assert limits(noise=2e-4, right_within=0.5)[:2] == pytest.approx((0.5, 6e-4))
    assert limits(noise=0.5) == (1e-3, 1e-3, "stable's own spread"), "what scatters so is no standard"
    assert limits(noise=0.01, same_within=0.002) == (0.002, 0.002, "the gate policy")
    text = ruler_of(section("exact_text"), [{"say": "x"}], {"say": "BYTES"}, noise=1.0)
    assert (text.same_within, text.source) == (0, "rounding")
    assert ruler_of(section("label"), [], {}) is LABELS


def test_the_worst_output_counts_and_an_item_may_have_a_limit_of_its_own() -> None:
    rows = [{"v": np.ones(2), "w": np.ones(1)}]
    ruler = ruler_of(section("largest_relative_error"), rows, {"v": "FP32", "w": "FP32"})
    off = {"v": np.ones(2), "w": np.array([1.2])}
    assert ruler.distance(rows[0], off) == pytest.approx(0.2)
    items = [GoldenItem("a", {}, expected={}, right_within=limit) for limit in (None, 0.3, 9.0)]
    replay = Replay(items, rows * 3, [off, off, None], ruler=ruler)
    assert replay.rights(replay.off(replay.candidate)) == [False, True, False]
    assert ruler.is_same(None, None) and not ruler.is_same(None, off)


@pytest.mark.parametrize(
    ("compare", "golden", "answer", "is_right"),
    [
        ("exact_text", {}, '{"a": 1}', True),
        ("exact_text", {}, '{"a":  1}', False),
        ("normalised_text", {}, ' {"A":\n1}', True),
        ("normalised_text", {}, '{"a": 2}', False),
        ("json_text", {}, '{"a": 2.5}', True),
        ("json_text", {}, '{"b": 1}', False),
        ("json_text", {}, "a: 1", False),
        ("json_text", {"schema": {"type": "object", "required": ["b"]}}, '{"b": 1}', True),
        ("json_text", {"schema": {"type": "object", "required": ["b"]}}, '{"a": 1}', False),
        ("text_tokens", {"right_within": 0.2}, '{"a": 2}', True),
        ("text_tokens", {}, '{"a": 2}', False),
    ],
)
def test_a_text_is_right_by_what_the_policy_compares(compare: str, golden: Any, answer: str, is_right: bool) -> None:
    expected = {"say": '{"a": 1}'}
    ruler = ruler_of(section(compare, **golden), [expected], {"say": "BYTES"})
    assert (ruler.distance(expected, {"say": answer}) <= ruler.right_within) is is_right


def test_a_schema_or_a_limit_for_another_kind_is_refused() -> None:
    for golden in (
        {"compare": "json_text", "schema": {"$ref": "#"}},
        {"compare": "cosine", "schema": {"type": "object"}},
        {"compare": "label", "right_within": 0.1},
        {"compare": "cosine", "labels": ["a"]},
        {"compare": "cosine", "max_length_shift": 0.1},
        {"compare": "nearly"},
    ):
        with pytest.raises(Invalid, match="gate policy"):
            parse_policy({"golden": golden})


def test_what_is_not_labels_is_asked_to_be_met_unless_the_policy_says_otherwise() -> None:
    names = ("min_accuracy", "min_slice_accuracy", "min_slice_agreement", "max_batch_flips")
    assert [section("cosine")[name] for name in names] == [0.95, 0.9, 0.9, 0.05]
    assert [section("label")[name] for name in names] == [None] * 4
    stated = parse_policy({"golden": {"compare": "cosine", "min_accuracy": None}})
    assert stated.of("golden")["min_accuracy"] is None
    assert parse_policy(stated.document).digest == stated.digest


RANDOM = np.random.default_rng(3)
TRUE = RANDOM.normal(0, 1, (200, 3))


def judge(
    candidate: Any, baseline: Any = None, *, slices: int = 4, expected: Any = TRUE, batched: Any = None, **golden: Any
) -> Judgement:
    policy = section(golden.pop("compare", "largest_relative_error"), **golden)
    items = items_of(expected, slices=slices)
    rows, answers = ([{"v": np.asarray(value)} for value in values] for values in (expected, candidate))
    ruler = ruler_of(policy, rows, {"v": "FP32"})
    stable = None if baseline is None else [{"v": np.asarray(value)} for value in baseline]
    replay = Replay(items, rows, answers, stable, "r1" if stable else "", ruler=ruler, **(batched or {}))
    return judge_golden(replay, policy)


def test_rounding_passes_and_a_shift_fails_with_or_without_a_stable_release() -> None:
    for baseline in (None, TRUE):
        assert judge(TRUE * 1.001, baseline).verdict is Verdict.PASSED
        shifted = judge(TRUE * 1.02, baseline)
        assert shifted.verdict is Verdict.FAILED
        assert "Half of the answers are off by 0.02 or more; 0.005 is right." in shifted.reason
        assert shifted.evidence["off_by"]["p50"] == pytest.approx(0.02)
        assert len(shifted.evidence["worst"]) == 10 and shifted.evidence["worst"][0]["off_by"] >= 0.0199
    assert shifted.evidence["apart"]["largest"] == pytest.approx(0.02)


def test_one_slice_that_is_off_fails_though_the_whole_does_not() -> None:
    factors = np.where(np.arange(200) % 25 == 0, 1.5, 1.0)[:, None]
    judged = judge(TRUE * factors, slices=25, min_slice_items=8)
    names = [check["name"] for check in judged.evidence["checks"] if check["verdict"] == "failed"]
    assert names == ["accuracy on slice s0"], judged.reason
    assert judged.evidence["slices"]["s0"] == {"items": 8, "accuracy": 0.0}
    assert judge(TRUE * factors, slices=25).verdict is Verdict.PASSED, "slices of eight are too small to be judged"


def test_of_many_slices_one_below_its_limit_may_be_chance() -> None:
    """17 right of 20 are below .9, and of a fair slice they are to be had in a third of all runs."""
    factors = np.where(np.isin(np.arange(200), [0, 10, 20]), 1.5, 1.0)[:, None]
    judged = judge(TRUE * factors, slices=10)
    assert judged.verdict is Verdict.UNDECIDED
    assert "accuracy on slice s0 is 85.00%" in judged.reason and "add items to tell" in judged.reason
    assert judge(TRUE * factors, slices=10, min_slice_accuracy=None).verdict is Verdict.PASSED


def test_a_slice_that_differs_from_stable_alone_is_told() -> None:
    """What is expected is rough, so both are right everywhere; stable tells that one slice of 25 has moved."""
    factors = np.where(np.arange(200) % 25 == 0, 1.05, 1.0)[:, None]
    judged = judge(TRUE * factors, TRUE, slices=25, min_slice_items=8, right_within=0.2)
    names = [check["name"] for check in judged.evidence["checks"] if check["verdict"] == "failed"]
    assert names == ["agreement with r1 on slice s0"]


def test_answers_that_change_with_the_batch_fail() -> None:
    rows = [{"v": value} for value in TRUE]
    other = [(at, {"v": TRUE[at] * (1.1 if at < 8 else 1.0)}) for at in range(64)]
    twice = [*other, *((at, rows[at]) for at in range(64))]
    batched = {"alone": {at: rows[at] for at in range(64)}, "batched": {"full": twice, "random": []}}
    judged = judge(TRUE, batched=batched)
    assert judged.verdict is Verdict.FAILED
    assert judged.reason == "8 of 64 answers change when the batch is full; 5.00% are allowed."
    assert judged.evidence["batch_invariance"]["flipped"] == 0
    assert judged.evidence["batch_invariance"]["full"]["flipped"] == 8
    assert "random" not in judged.evidence["batch_invariance"]
    assert judge(TRUE, batched=batched, max_batch_flips=0.125).verdict is Verdict.PASSED


def test_an_item_without_numbers_fails() -> None:
    policy = section("cosine")
    items = items_of(TRUE[:30])
    rows = [{"v": value} for value in TRUE[:30]]
    ruler = ruler_of(policy, rows, {"v": "FP32"})
    judged = judge_golden(Replay(items, rows, [None, *rows[1:]], ruler=ruler), policy)
    assert judged.verdict is Verdict.FAILED and "1 of 30 items have no usable answer" in judged.reason
    assert judged.evidence["off_by"]["largest"] == math.inf


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_median_has_the_narrowest_interval_of_two_values_that_is_sure_enough(confidence: float) -> None:
    for n in range(1, 40):
        found = median_of([*range(n - 1, -1, -1)], confidence=confidence)
        sure = [
            at for at in range((n + 1) // 2) if 1 - 2 * sum(math.comb(n, i) for i in range(at + 1)) / 2**n >= confidence
        ]
        out = max(sure, default=0)
        assert (found.value, found.low, found.high, found.n) == ((n - 1) / 2, out, n - 1 - out, n)
    with pytest.raises(ValueError, match="no median"):
        median_of([], confidence=confidence)


@pytest.mark.parametrize(
    ("lengths", "limit", "measured", "certified"),
    [
        ([100] * 20, 0.0, "passed", "passed"),
        ([125] * 20, 0.25, "passed", "passed"),
        ([75] * 20, 0.25, "passed", "passed"),
        ([126] * 20, 0.25, "failed", "failed"),
        ([74] * 20, 0.25, "failed", "failed"),
        ([99] * 10 + [150] * 10, 0.25, "passed", "undecided"),  # the median is 1.245, its interval .99 to 1.5
        ([150] * 11 + [100] * 9, 0.25, "undecided", "undecided"),
        ([60] * 10 + [140] * 11, 0.25, "undecided", "undecided"),
        ([130] * 9 + [150] * 11, 0.25, "failed", "failed"),
        ([125] * 9 + [150] * 11, 0.25, "undecided", "undecided"),  # an end of it is just allowed
        ([75] * 9 + [50] * 11, 0.25, "undecided", "undecided"),
    ],
)
def test_a_shift_in_length_is_held_to_its_limit(
    lengths: list[int], limit: float, measured: str, certified: str
) -> None:
    references = [{"a": "x" * 50, "b": "x" * 49}] * len(lengths)
    answers = [{"a": "x" * (size - 1), "b": ""} for size in lengths]
    for rule, verdict in (("measured", measured), ("certified", certified)):
        policy = {"rule": rule, "confidence": 0.95}
        evidence, check = length_shift(references, answers, limit, policy, reference="it")
        assert evidence is not None and check is not None and check.verdict.value == verdict, check
        assert evidence["n"] == len(lengths) and evidence["reference"] == "it"
        assert check.measured == abs(evidence["value"] - 1)
    assert length_shift(references[:1], [None], limit, policy, reference="it") == (None, None)
    third, _ = length_shift([{"a": "xx"}], [{"a": "xxx"}], None, policy, reference="it")
    assert third is not None and third["value"] == 1.333333
    told, nothing = length_shift(references, answers, None, policy, reference="it")
    assert told == evidence and nothing is None


@pytest.mark.parametrize(
    ("words", "limit", "rule", "verdict"),
    [
        (10, 0.1, "measured", Verdict.PASSED),
        (10, 0.1, "certified", Verdict.PASSED),
        (20, 0.1, "measured", Verdict.FAILED),
        (5, 0.1, "measured", Verdict.FAILED),
        (20, None, "measured", Verdict.PASSED),
    ],
)
def test_texts_may_get_longer_by_what_is_allowed(words: int, limit: float | None, rule: str, verdict: Verdict) -> None:
    expected, answers = [{"say": "word " * 10}] * 30, [{"say": "word " * words}] * 30
    policy = section(
        "json_text", schema={}, max_length_shift=limit, min_accuracy=None, min_slice_accuracy=None,
        rule=rule, min_agreement=None, min_slice_agreement=None, max_accuracy_drop=None, max_slice_drop=None,
    )  # fmt: skip
    ruler = ruler_of(policy, expected, {"say": "BYTES"})
    judged = judge_golden(Replay(items_of(["x"] * 30, "say"), expected, answers, ruler=ruler), policy)
    assert judged.verdict is verdict, judged.reason
    assert judged.evidence["length"]["value"] == pytest.approx((5 * words + 1) / 51, abs=1e-6)
    stable = judge_golden(Replay(items_of(["x"] * 30, "say"), expected, answers, answers, "r1", ruler=ruler), policy)
    assert stable.verdict is Verdict.PASSED and stable.evidence["length"]["reference"] == "those of r1"


def test_a_length_that_may_be_chance_is_undecided() -> None:
    expected = [{"say": "x" * 99}] * 9
    answers = [{"say": "x" * size} for size in (99, 99, 99, 99, 119, 119, 119, 119, 119)]
    policy = section("text_tokens", max_length_shift=0.1, min_accuracy=None, min_slice_accuracy=None)
    ruler = ruler_of(policy, expected, {"say": "BYTES"})
    judged = judge_golden(Replay(items_of(["x"] * 9, "say"), expected, answers, ruler=ruler), policy)
    assert judged.verdict is Verdict.UNDECIDED and "1.20 times as long as what is expected" in judged.reason


def test_batches_are_full_or_random_and_of_equal_shapes() -> None:
    shapes = ["a", "a", "b", "a", "b", "a", "a"]
    assert batches.in_order(shapes, 2) == [(0, 1), (2,), (3,), (4,), (5, 6)]
    assert batches.full([0, 1, 2, 3, 5], shapes, 3) == [(0, 1, 3), (5, 0, 1), (2, 2, 2)]
    many = ["a"] * 50
    drawn = batches.at_random(range(50), many, 8, seed=1)
    assert sorted(at for batch in drawn for at in batch) == list(range(50))
    assert len({len(batch) for batch in drawn}) > 3 and max(map(len, drawn)) <= 8
    assert drawn == batches.at_random(range(50), many, 8, seed=1) != batches.at_random(range(50), many, 8, seed=2)
    assert all(len({shapes[at] for at in batch}) == 1 for batch in batches.at_random(range(7), shapes, 4, seed=3))
    assert batches.at_random([4], many, 8, seed=1) == [(4,)]


def test_how_far_off_answers_are_is_told_by_the_smallest_that_so_many_reach() -> None:
    assert off_by([0.1 * at for at in range(10, 0, -1)]) == pytest.approx(
        {"p50": 0.5, "p90": 0.9, "p99": 1.0, "largest": 1.0}
    )
    assert off_by([3.0]) == {"p50": 3.0, "p90": 3.0, "p99": 3.0, "largest": 3.0}
    items = items_of([[0.0]] * 14, slices=2)
    worst = worst_rows(items, [at in (0, 13) for at in range(14)], [float(at) for at in range(14)])
    assert [(one["id"], one["off_by"]) for one in worst] == [(str(at), float(at)) for at in range(12, 2, -1)]
    assert worst[0]["slice"] == "s0"


def test_a_slices_share_is_proven_either_way_or_undecided() -> None:
    def verdict(lost: int, rule: str, limit: float = 0.9) -> str:
        share = share_of(100 - lost, 100)
        [check] = slices_at_least("accuracy", limit, {"s": share}, {"rule": rule, "confidence": 0.95})
        assert (
            check is not None
            and check.measured == share.value
            and ("chance" in check.sentence) is (check.verdict is Verdict.UNDECIDED)
        )
        return check.verdict.value

    assert [verdict(lost, "measured") for lost in (10, 11, 30)] == ["passed", "undecided", "failed"]
    assert [verdict(lost, "certified") for lost in (1, 10, 30)] == ["passed", "undecided", "failed"]
    assert verdict(5, "certified", share_of(95, 100).low) == "passed"


def test_no_drop_at_all_may_be_certified() -> None:
    policy = section("label", rule="certified", max_accuracy_drop=0, max_slice_drop=None, min_agreement=None)
    items = [GoldenItem(str(at), {}, 1) for at in range(100)]
    judged = judge_golden(Replay(items, [1] * 100, [0] * 30 + [1] * 70, [1] * 100, "r1"), policy)
    assert judged.verdict is Verdict.FAILED
