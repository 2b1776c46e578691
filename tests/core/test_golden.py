"""Golden sets are read with line numbers, and judged by accuracy, agreement and slice under both rules."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ledger.core.errors import Invalid
from validators.core.answers import answers_in, choose_output, expected_labels, in_words
from validators.core.compare import share_of
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


def test_of_many_slices_one_must_be_worse_than_the_worst_of_so_many_would_be_by_chance() -> None:
    """18 lost and 7 won of 60 is worse with p = .014: enough for a slice alone, too little for one of twenty."""
    candidate = [1 if at % 60 >= 18 else 0 for at in range(60)] + [1] * 1140
    baseline = [1 if not 18 <= at < 25 else 0 for at in range(60)] + [1] * 1140
    loose = {"min_agreement": None, "max_accuracy_drop": None}
    one = _judge(candidate[:60], baseline[:60], [1] * 60, **loose)
    assert one.verdict is Verdict.FAILED
    twenty = _judge(candidate, baseline, [1] * 1200, [f"slice {at // 60}" for at in range(1200)], **loose)
    assert twenty.verdict is Verdict.UNDECIDED, twenty.reason


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


HALF = [1] * 8 + [0] * 8  # right on a half of 16 items labelled 1


@pytest.mark.parametrize(("limit", "verdict"), [(0.5, "passed"), (0.5001, "failed")])
def test_the_measured_rule_holds_at_the_limit_itself(limit: float, verdict: str) -> None:
    assert _judge(HALF, None, [1] * 16, min_accuracy=limit).verdict == verdict


def test_the_certified_rule_holds_at_the_bounds_themselves() -> None:
    share = share_of(8, 16)

    def verdict(limit: float) -> str:
        return _judge(HALF, None, [1] * 16, rule="certified", min_accuracy=limit).verdict

    assert (verdict(share.low), verdict(share.low + 1e-9)) == ("passed", "undecided")
    assert (verdict(share.high), verdict(share.high + 1e-9)) == ("undecided", "failed")


@pytest.mark.parametrize(("lost", "verdict"), [(16, "passed"), (17, "failed")])
def test_a_drop_is_measured_against_its_limit_itself(lost: int, verdict: str) -> None:
    """16 of 800 are the two points that are allowed; one more is beyond them, and 17 lost against none is no chance."""
    labels = [1] * 800
    judged = _judge([0] * lost + [1] * (800 - lost), labels, labels, min_agreement=None)
    assert judged.verdict == verdict
    assert judged.evidence["paired"] == {"n": 800, "both_right": 800 - lost, "lost": lost, "won": 0, "drop": lost / 800}


def test_a_certified_drop_is_proven_either_way_or_undecided() -> None:
    labels = [1] * 800

    def verdict(lost: int) -> str:
        changed = [0] * lost + [1] * (800 - lost)
        return _judge(changed, labels, labels, rule="certified", min_agreement=None, max_accuracy_drop=0.05).verdict

    assert [verdict(lost) for lost in (20, 40, 60)] == ["passed", "undecided", "failed"]


def test_a_slice_is_judged_from_so_many_items_on() -> None:
    slices = ["few"] * 19 + ["enough"] * 20 + ["rest"] * 61
    found = _judge([1] * 100, [1] * 100, [1] * 100, slices).evidence["slices"]
    assert {name: one["is_judged"] for name, one in found.items()} == {"few": False, "enough": True, "rest": True}
    assert found["few"] == {
        "items": 19, "accuracy": 1.0, "drop": 0.0, "lost": 0, "won": 0, "is_judged": False, "agreement": 1.0,
    }  # fmt: skip


def test_the_evidence_holds_every_count_in_six_digits() -> None:
    candidate, baseline, labels = [1, 1, 0, 1, 1, 0, None], [1, 1, 1, 1, 0, 0, 1], [1] * 7
    judged = _judge(candidate, baseline, labels, ["a"] * 3 + ["b"] * 4, confidence=0.9)
    share = share_of(4, 7, confidence=0.9)
    assert judged.evidence["accuracy"] == {
        "value": 0.571429, "count": 4, "n": 7, "low": round(share.low, 6), "high": round(share.high, 6),
    }  # fmt: skip
    agreed = share_of(4, 7, confidence=0.9)
    assert judged.evidence["agreement"]["high"] == round(agreed.high, 6)
    assert judged.evidence["paired"] == {"n": 7, "both_right": 3, "lost": 2, "won": 1, "drop": 0.142857}
    assert judged.evidence["slices"]["a"]["accuracy"] == 0.666667
    assert judged.evidence["slices"]["a"]["drop"] == 0.333333
    assert judged.evidence["slices"]["a"]["agreement"] == 0.666667
    unanswered = judged.evidence["checks"][0]
    assert (unanswered["name"], unanswered["limit"], unanswered["measured"]) == ("unanswered", 0.0, 1 / 7)
    assert unanswered["verdict"] == "failed"


def test_a_pass_tells_what_it_was_compared_with() -> None:
    judged = _judge([1] * 40, [1] * 39 + [0], [1] * 40)
    assert judged.reason == "100.0% of 40 answers are right; 97.5% of its answers are those of r1."
    assert "no stable release" in _judge([1] * 40, None, [1] * 40).reason


def test_a_check_tells_the_numbers_that_decided_it() -> None:
    accuracy = _judge(HALF, None, [1] * 16, min_accuracy=0.9)
    assert accuracy.reason == "The accuracy is 50.00% (interval 24.65% to 75.35%) of 16 items; 90.00% is asked."
    dropped = _judge([0] * 40 + [1] * 60, [1] * 100, [1] * 100, min_agreement=None)
    assert dropped.reason == (
        "The accuracy drop is 40.0 points (40 answers lost, 0 won, of 100); 2.0 are allowed. "
        "The accuracy drop on slice all is 40.0 points (40 answers lost, 0 won, of 100); 5.0 are allowed."
    )
    unclear = _judge([0] + [1] * 29, [1] * 30, [1] * 30, min_agreement=None)
    assert unclear.reason == (
        "The accuracy drop is 3.3 points (1 answers lost, 0 won, of 30); 2.0 are allowed. "
        "That may be chance: add items to tell."
    )


def test_answers_may_change_alone_by_what_is_allowed_and_no_more() -> None:
    items = [GoldenItem(str(i), {}, 1) for i in range(40)]
    alone = {i: (0 if i < 2 else 1) for i in range(32)}

    def judged(**limit: float) -> Judgement:
        section = parse_policy({"golden": {"set": SET, **limit}}).of("golden")
        return judge_golden(Replay(items, [1] * 40, [1] * 40, alone=alone), section)

    share = share_of(2, 32)
    assert judged().evidence["batch_invariance"] == {
        "flipped": 2, "asked_alone": 32, "low": round(share.low, 6), "high": round(share.high, 6),
    }  # fmt: skip
    assert judged(max_batch_flips=2 / 32).verdict is Verdict.PASSED
    assert judged(max_batch_flips=0.0624).verdict is Verdict.FAILED
    assert judged(max_batch_flips=0.05).reason == (
        "2 of 32 answers change when the item is asked alone; 5.00% are allowed."
    )


def test_an_item_without_an_answer_tells_the_first_reason() -> None:
    items = [GoldenItem("a", {}, 1), GoldenItem("b", {}, 1)]
    section = parse_policy({"golden": {"set": SET}}).of("golden")
    judged = judge_golden(Replay(items, [1, 1], [1, None], problem="timeout"), section)
    assert judged.reason == "1 of 2 items have no usable answer: timeout."
    assert judge_golden(Replay(items, [1, 1], [1, 1]), section).evidence["batch_invariance"] is None
