"""Golden sets are read with line numbers, and judged by accuracy, agreement and slice under both rules."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ledger.core.errors import Invalid
from validators.core.answers import answers_in, choose_output, expected_labels, in_words
from validators.core.contract import Tensor
from validators.core.golden import Replay, judge_golden
from validators.core.golden_set import GoldenItem, parse_golden_set, slices_of
from validators.core.policy import parse_policy
from validators.core.sample import sample_of
from validators.core.verdict import Judgement, Verdict

SET = "sha256:" + "0" * 64
TEXT = [Tensor("text", "BYTES", (1,))]


def _line(**changes: Any) -> str:
    return json.dumps({"id": "a", "inputs": {"text": "good"}, "label": 1, "slice": "news", **changes})


def test_a_golden_set_is_read_in_order_with_its_slices() -> None:
    last = '{"id": "c", "inputs": {"text": "x"}, "label": 0}'
    data = "\ufeff" + "\n".join([_line(), "", _line(id="b", label="bad", slice="tweets"), last])
    items = parse_golden_set(data.encode(), inputs=TEXT)
    assert [item.id for item in items] == ["a", "b", "c"]
    assert slices_of(items) == {"all": 1, "news": 1, "tweets": 1}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        (_line(lable=1), "no field 'lable'"),
        (_line(id=""), "id is not"),
        (_line(id="first"), "is that of line 1"),
        (_line(inputs={}), "inputs is not"),
        (_line(inputs={"txt": "x"}), "there is no input txt"),
        (_line(inputs={"text": 3}), "not BYTES"),
        (_line(label=None), "label is neither"),
        (_line(label=True), "label is neither"),
        (_line(slice=3), "slice is not"),
        ('{"id": "x", "inputs": {"text": "x"}, "label": NaN}', "NaN is not JSON"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_a_fix(bad: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_golden_set(f"{_line(id='first')}\n{bad}\n".encode(), inputs=TEXT)
    (error,) = caught.value.facts["errors"]
    assert error["field"] == "line 2"
    assert says in error["message"]
    assert error["fix"]
    assert caught.value.code == "golden_set_invalid"


def test_all_mistakes_are_named_at_once_and_an_empty_file_is_one() -> None:
    with pytest.raises(Invalid) as caught:
        parse_golden_set(b"{\n{\n{\n")
    assert [error["field"] for error in caught.value.facts["errors"]] == ["line 1", "line 2", "line 3"]
    with pytest.raises(Invalid, match="holds no item"):
        parse_golden_set(b"\n")
    with pytest.raises(Invalid, match="line 2: the text is not UTF-8"):
        parse_golden_set(b"\n\xff")


@pytest.mark.parametrize("member", ["id", "label", "slice"])
@pytest.mark.parametrize("text", ["a\x00", "\ud800"])
def test_names_that_no_database_can_keep_are_named(member: str, text: str) -> None:
    item = {"id": "a", "inputs": {"x": 2**60}, "label": "yes", "slice": "all"} | {member: text}
    with pytest.raises(Invalid, match="line 1: id, label or slice"):
        parse_golden_set(json.dumps(item).encode())


def test_answers_come_from_scores_numbers_and_text() -> None:
    assert answers_in(np.array([[0.2, 0.8], [0.9, 0.1]], np.float32), 2) == [1, 0]
    assert answers_in(np.array([[0.2], [0.5]], np.float32), 2) == [0, 1]
    assert answers_in(np.array([[7], [9]]), 2) == [7, 9]
    assert answers_in(np.array([[b"yes"], [b"no"]], object), 2) == ["yes", "no"]
    assert answers_in(np.array([[0.2, np.nan], [0.9, 0.1]], np.float32), 2) == [None, 0]
    with pytest.raises(ValueError, match="for 3 items"):
        answers_in(np.zeros((2, 2), np.float32), 3)


def test_the_output_with_the_answer_is_never_guessed() -> None:
    scores, embedding = Tensor("scores", "FP32", (2,)), Tensor("embedding", "FP32", (8,))
    assert choose_output([scores], None) is scores
    assert choose_output([embedding, scores], "scores") is scores
    with pytest.raises(ValueError, match=r"golden\.output"):
        choose_output([embedding, scores], None)
    with pytest.raises(ValueError, match="has the outputs"):
        choose_output([scores], "probabilities")


def test_labels_and_answers_meet_in_the_same_words() -> None:
    items = [GoldenItem("a", {}, "no"), GoldenItem("b", {}, 1)]
    assert expected_labels(items, ["no", "yes"], ["no", "yes"]) == ["no", "yes"]
    assert in_words(5, ["no", "yes"]) == 5
    with pytest.raises(ValueError, match=r"golden\.labels"):
        expected_labels(items[:1], [0], None)


def _judge(
    candidate: list[int | None],
    baseline: list[int | None] | None,
    labels: list[int],
    slices: list[str] | None = None,
    **policy: Any,
) -> Judgement:
    names = slices or ["all"] * len(labels)
    items = [GoldenItem(str(i), {}, label, name) for i, (label, name) in enumerate(zip(labels, names, strict=True))]
    section = parse_policy({"golden": {"set": SET, **policy}}).of("golden")
    return judge_golden(Replay(items, labels, candidate, baseline, "r1" if baseline else ""), section)


def _flipped(labels: list[int], positions: range | list[int]) -> list[int | None]:
    return [1 - label if i in set(positions) else label for i, label in enumerate(labels)]


LABELS = [i % 2 for i in range(800)]
BASE = _flipped(LABELS, range(0, 800, 5))  # 80 % right


def test_a_first_release_is_judged_by_absolute_limits_and_says_so() -> None:
    judged = _judge(BASE, None, LABELS, min_accuracy=0.75)
    assert judged.verdict is Verdict.PASSED
    assert "no stable release to compare with" in judged.reason
    assert judged.evidence["accuracy"]["value"] == pytest.approx(0.8)
    assert _judge(BASE, None, LABELS, min_accuracy=0.85).verdict is Verdict.FAILED


def test_a_close_relative_of_the_stable_release_passes() -> None:
    candidate = [1 - a if i in range(0, 800, 38) and a is not None else a for i, a in enumerate(BASE)]
    judged = _judge(candidate, BASE, LABELS)
    assert judged.verdict is Verdict.PASSED
    assert judged.evidence["agreement"]["value"] == pytest.approx(0.9725, abs=1e-3)
    assert 0 < judged.evidence["smallest_certifiable_drop"] < 0.05


def test_changed_answers_fail_though_accuracy_hardly_moves() -> None:
    """A tenth of all answers change, half for the better: accuracy sees nothing, agreement does."""
    right = [i for i, a in enumerate(BASE) if a == LABELS[i]][:40]
    wrong = [i for i, a in enumerate(BASE) if a != LABELS[i]][:40]
    candidate = [1 - a if i in {*right, *wrong} and a is not None else a for i, a in enumerate(BASE)]
    judged = _judge(candidate, BASE, LABELS)
    assert judged.verdict is Verdict.FAILED
    assert "agreement with r1 is 90.00%" in judged.reason
    assert judged.evidence["paired"]["drop"] == 0


def test_a_slice_that_got_worse_fails_alone() -> None:
    slices = ["tweets" if i < 200 else "news" for i in range(800)]
    losing = [i for i in range(200) if BASE[i] == LABELS[i]][:14]
    candidate = [1 - a if i in losing and a is not None else a for i, a in enumerate(BASE)]
    judged = _judge(candidate, BASE, LABELS, slices, min_agreement=0.95)
    assert judged.verdict is Verdict.FAILED
    assert "slice tweets is 7.0 points" in judged.reason
    assert "news" not in judged.reason
    assert judged.evidence["slices"]["tweets"]["lost"] == 14
    assert _judge(candidate, BASE, LABELS, slices, max_slice_drop=None).verdict is Verdict.PASSED


def test_a_drop_that_chance_explains_is_undecided_not_failed() -> None:
    slices = ["small"] * 20 + ["rest"] * 780
    candidate = [1 - a if i in (1, 2) and a is not None else a for i, a in enumerate(BASE)]
    judged = _judge(candidate, BASE, LABELS, slices)
    assert judged.verdict is Verdict.UNDECIDED
    assert "add items to tell" in judged.reason
    assert _judge(candidate, BASE, LABELS, slices, min_slice_items=21).verdict is Verdict.PASSED


def test_the_certified_rule_wants_the_bound_beyond_the_limit() -> None:
    assert _judge(BASE, BASE, LABELS, rule="certified", min_accuracy=0.79).verdict is Verdict.UNDECIDED
    assert _judge(BASE, BASE, LABELS, rule="certified", min_accuracy=0.75).verdict is Verdict.PASSED
    assert _judge(BASE, BASE, LABELS, rule="certified", min_accuracy=0.9).verdict is Verdict.FAILED
    assert _judge(BASE[:20], BASE[:20], LABELS[:20], rule="certified", min_agreement=0.95).verdict is Verdict.UNDECIDED


def test_items_without_an_answer_fail() -> None:
    judged = _judge([None, *BASE[1:]], BASE, LABELS)
    assert judged.verdict is Verdict.FAILED
    assert "1 of 800 items have no usable answer" in judged.reason


def test_batch_invariance_is_told_and_judged_only_on_demand() -> None:
    items = [GoldenItem(str(i), {}, label) for i, label in enumerate(LABELS)]
    alone = {i: (1 - a if i < 2 and a is not None else a) for i, a in enumerate(BASE[:64])}

    def judged(**policy: Any) -> Judgement:
        section = parse_policy({"golden": {"set": SET, **policy}}).of("golden")
        return judge_golden(Replay(items, LABELS, BASE, alone=alone), section)

    assert judged().verdict is Verdict.PASSED
    assert judged().evidence["batch_invariance"]["flipped"] == 2
    assert judged(max_batch_flips=0.01).verdict is Verdict.FAILED
    assert judged(max_batch_flips=0.05).verdict is Verdict.PASSED


def test_a_sample_is_the_same_for_the_same_seed_and_never_too_large() -> None:
    assert sample_of(5, 10) == [0, 1, 2, 3, 4]
    assert sample_of(100, 0) == []
    assert sample_of(100, 7) == sample_of(100, 7)
    assert len(set(sample_of(100, 7))) == 7
