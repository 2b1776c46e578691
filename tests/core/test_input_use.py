"""The contract gate notices answers that do not come from the input, and lets ordinary models pass."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving.ports import InferenceError
from serving.servers.core.made_up import made_up_items
from validators.core.contract import Tensor
from validators.core.input_use import TEXTS, InputUse, judge_input_use, same, spelt_out, variations
from validators.core.inputs import Arrays
from validators.core.verdict import Judgement, Verdict
from validators.execution.runners.contract import try_inputs

X, IDS, TEXT = Tensor("x", "FP32", (4,)), Tensor("ids", "INT64", (4,)), Tensor("text", "BYTES", (1,))
MASK = Tensor("mask", "BOOL", (4,))
Answer = Callable[[Arrays], Arrays]


class Server:
    """Answers by a function; counts the requests."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.asked = answer, 0

    def infer(self, model: str, inputs: Arrays, *, timeout_s: float) -> Any:
        self.asked += 1
        return SimpleNamespace(outputs=self.answer(inputs))


def tried(
    answer: Answer,
    *tensors: Tensor,
    values: dict[str, Any] | None = None,
    timeout_s: float = 60.0,
    progress: Callable[[], None] = lambda: None,
) -> tuple[InputUse, Server]:
    server = Server(answer)
    items = made_up_items(tensors, {}, most=8)
    use = try_inputs(
        server,  # type: ignore[arg-type]
        "m",
        tensors,
        items,
        values or {},
        has_batch_axis=True,
        timeout_s=timeout_s,
        progress=progress,
    )
    return use, server


def echo_of(name: str, spell: Callable[[bytes], Any] = lambda text: text) -> Answer:
    return lambda inputs: {"out": np.array([[spell(one) for one in row] for row in inputs[name]], object)}


def leaf(inputs: Arrays) -> Arrays:
    """A tree that splits far from all made-up numbers."""
    return {"score": (inputs["x"][:, :1] > 5000).astype(np.float32)}


def constant(inputs: Arrays) -> Arrays:
    return {"score": np.ones((1, 2), np.float32)}


def first_id_refused(inputs: Arrays) -> Arrays:
    if inputs["ids"].any():
        raise InferenceError("rejected", "no such id")
    return {"score": np.ones((1, 1), np.float32)}


@pytest.mark.parametrize(
    ("answer", "tensors", "state"),
    [
        (lambda inputs: {"y": 2 * inputs["x"]}, (X,), "used"),
        (leaf, (X,), "used"),
        (lambda inputs: {"y": inputs["ids"] % 2}, (IDS,), "used"),
        (lambda inputs: {"y": inputs["mask"].sum(axis=1)}, (MASK,), "used"),
        (first_id_refused, (IDS,), "used"),
        (echo_of("text"), (TEXT,), "used"),
        (constant, (X,), "same"),
        (constant, (TEXT,), "same"),
        (constant, (X, IDS, TEXT, MASK), "same"),
        (lambda inputs: {"y": np.array([[random.random()]])}, (X,), "not_deterministic"),
    ],
)
def test_what_other_inputs_show(answer: Answer, tensors: tuple[Tensor, ...], state: str) -> None:
    use, server = tried(answer, *tensors)
    assert (use.state, use.mismatches) == (state, ())
    assert server.asked <= 12


def test_an_input_that_changes_nothing_is_named() -> None:
    use, _ = tried(lambda inputs: {"y": inputs["x"] + 0 * inputs["ids"]}, X, IDS, MASK)
    assert (use.state, use.without_effect) == ("used", ("ids", "mask"))


ONE_USED = (X, *(Tensor(f"ignored_{at}", "FP32", (1,)) for at in range(15)))


def test_a_cancelled_run_is_seen_before_each_request() -> None:
    calls: list[int] = []
    _, server = tried(lambda inputs: {"y": 2 * inputs["x"]}, *ONE_USED, progress=lambda: calls.append(1))
    assert len(calls) == server.asked > 100

    def cancelled() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        tried(constant, X, progress=cancelled)


def test_inputs_are_changed_one_by_one_for_no_longer_than_one_request_may_take() -> None:
    def slow(inputs: Arrays) -> Arrays:
        time.sleep(0.02)
        return {"y": 2 * inputs["x"]}

    use, server = tried(slow, *ONE_USED, timeout_s=0.05)
    assert use.state == "used" and server.asked < 30


@pytest.mark.parametrize(
    ("spell", "is_wrong"),
    [
        (lambda text: text, False),
        (lambda text: text.decode(), False),
        (lambda text: str(text), True),
        (lambda text: f"You said {text}.".encode(), True),
        (lambda text: repr(text).upper(), False),
    ],
)
def test_pythons_spelling_of_a_text_is_a_mismatch(spell: Callable[[bytes], Any], is_wrong: bool) -> None:
    use, _ = tried(echo_of("text", spell), TEXT)
    assert [one.kind for one in use.mismatches] == ["spelt_out"] * is_wrong
    judged = judge_input_use(Judgement(Verdict.PASSED, "Fine.", {}), use, [])
    assert judged.verdict is (Verdict.FAILED if is_wrong else Verdict.PASSED)


def test_a_text_that_is_itself_such_a_spelling_may_come_back() -> None:
    sent = {"text": np.array([[b"I wrote b'x'", b"b''"]], object)}
    assert spelt_out(sent, {"out": sent["text"]}) == []
    assert [one.tensor for one in spelt_out(sent, {"out": np.array([[str(b"b''")]], object)})] == ["out"]


def test_a_server_that_other_values_break_fails() -> None:
    broken: list[bool] = []

    def answer(inputs: Arrays) -> Arrays:
        if broken or (inputs["ids"] != 0).any():
            broken.append(True)
            raise InferenceError("server_error", "it is gone")
        return {"y": np.ones((1, 1), np.float32)}

    use, _ = tried(answer, IDS)
    assert [one.kind for one in use.mismatches] == ["unwell"]


def test_time_that_ran_out_shows_nothing() -> None:
    def answer(inputs: Arrays) -> Arrays:
        if (inputs["ids"] != 0).any():
            raise InferenceError("timeout", "late")
        return {"y": np.ones((1, 1), np.float32)}

    assert tried(answer, IDS)[0].state == "not_tried"


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        (Tensor("score", "FP32", (2,)), Verdict.UNDECIDED),
        (Tensor("score", "BF16", (2,)), Verdict.UNDECIDED),
        (Tensor("label", "INT64", (1,)), Verdict.PASSED),  # texts may have one label
        (Tensor("label", "BYTES", (1,)), Verdict.PASSED),
    ],
)
def test_equal_scores_are_no_evidence_and_equal_labels_are_told(output: Tensor, verdict: Verdict) -> None:
    found = Judgement(Verdict.PASSED, "Fine.", {"batch_sizes": [1]})
    judged = judge_input_use(found, InputUse("same", 9), [output])
    assert judged.verdict is verdict
    assert "All 9 requests, each with another input, got the same answer to the byte." in judged.reason
    assert judged.evidence["input_use"] == {"state": "same", "requests": 9}
    assert judge_input_use(found, InputUse("used", 2), [output]).reason == "Fine."


def test_variations_stay_within_what_is_declared_and_keep_their_shapes() -> None:
    example = {
        "x": np.zeros(4, np.float32),
        "ids": np.full(4, 5),
        "text": np.array([b"x"], object),
        "mask": np.zeros(4, bool),
    }
    made = list(variations((X, IDS, TEXT, MASK), example, {"x": [-1, 1], "ids": [3, 9]}))
    assert len(made) == len(TEXTS)
    for one in made:
        assert {name: (array.shape, array.dtype) for name, array in one.items()} == {
            name: (array.shape, array.dtype) for name, array in example.items()
        }
        assert (np.abs(one["x"]) <= 1).all()
        assert ((one["ids"] >= 3) & (one["ids"] <= 9)).all()
    alone = list(variations((X, IDS, TEXT, MASK), example, {}, of="text"))
    assert all(same(one["x"], example["x"]) and not same(one["text"], example["text"]) for one in alone)
