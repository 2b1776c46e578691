"""What the golden gate asks of servers, of which batches, and how it is calibrated by the stable release; on honest fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serving.ports import InferenceError
from tests.support.fakes.ports import FakeInferenceServer, FakeModel
from validators.core.golden_set import GoldenItem
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates import Baseline, GateContext, run_gate

SERVING = {
    "max_batch_size": 8,
    "inputs": [{"name": "x", "data_type": "FP32", "dims": [2]}],
    "outputs": [{"name": "y", "data_type": "FP32", "dims": [2]}, {"name": "z", "data_type": "FP32", "dims": [1]}],
}
ITEMS = [GoldenItem(f"i{at}", {"x": [at + 1.0, at + 2.0]}, expected={"y": [at + 1.0, at + 2.0]}) for at in range(40)]
Compute = Callable[[Any], Any]


def times(factor: float, *, in_batches: float = 1.0) -> Compute:
    """x times the factor; times the other too where it is not alone."""
    return lambda x: x * np.float32(factor * (in_batches if len(x) > 1 else 1.0))


def server_of(compute: Compute, sizes: list[int] | None = None, serving: Any = None) -> FakeInferenceServer:
    def answer(tensors: Any) -> Any:
        if sizes is not None:
            sizes.append(len(tensors["x"]))
        return {"y": compute(tensors["x"]), "z": tensors["x"][..., :1]}

    return FakeInferenceServer({"m": FakeModel(serving or SERVING, answer)})


def judged(server: FakeInferenceServer, baseline: Baseline | None = None, items: Any = ITEMS, **over: Any) -> Judgement:
    golden = {
        "set": f"sha256:{'0' * 64}",
        "compare": "largest_relative_error",
        "alone_items": 10,
        **over.pop("golden", {}),
    }
    values: dict[str, Any] = {
        "model": "m", "release": "r2", "serving": SERVING, "envelope": {}, "contract": {}, "timings": {}, "server": server,
        "policy": parse_policy({"golden": golden}), "progress": lambda done, total: None, "items": items,
        "baseline": baseline, **over,
    }  # fmt: skip
    return run_gate("golden", GateContext(**values))


def stable_of(compute: Compute, sizes: list[int] | None = None) -> Baseline:
    return Baseline("r1", server=server_of(compute, sizes), serving=SERVING)


def test_a_release_is_asked_in_batches_alone_in_full_ones_and_in_random_ones() -> None:
    sizes: list[int] = []
    told: list[tuple[int, int]] = []
    found = judged(server_of(times(1), sizes), golden={"batch_size": 4}, progress=lambda *so_far: told.append(so_far))
    assert found.verdict is Verdict.PASSED, found.reason
    assert sizes[:10] == [4] * 10 and sizes[10:20] == [1] * 10 and sizes[20:22] == [8, 8]
    assert sum(sizes[22:]) == 10 and max(sizes[22:]) <= 5
    invariance = found.evidence["batch_invariance"]
    assert (invariance["asked_alone"], invariance["full"]["asked"], invariance["random"]["asked"]) == (10, 10, 10)
    assert told[-1] == (76, 76) and [done for done, _ in told] == sorted(done for done, _ in told)
    assert (found.evidence["output"], found.evidence["baseline_source"]) == ("y", "no stable release")
    assert "predictions" not in found.evidence


def test_what_only_full_or_random_batches_show_is_found() -> None:
    def collapses(x: Any) -> Any:
        return x * np.float32(1.5 if len(x) > 4 else 1.0)

    found = judged(server_of(collapses), golden={"batch_size": 4})
    assert found.verdict is Verdict.FAILED
    assert "10 of 10 answers change when the batch is full" in found.reason
    assert found.evidence["batch_invariance"]["flipped"] == 0


def test_a_release_that_takes_one_at_a_time_is_asked_once() -> None:
    single: dict[str, Any] = {**SERVING, "max_batch_size": 0}
    sizes: list[int] = []
    found = judged(server_of(times(1), sizes, single), serving=single)
    assert found.verdict is Verdict.PASSED and found.evidence["batch_invariance"] is None and len(sizes) == 40
    one = {**SERVING, "max_batch_size": 1}
    told = judged(server_of(times(1), None, one), serving=one).evidence["batch_invariance"]
    assert told.keys() == {"flipped", "asked_alone", "low", "high"}


def test_what_is_the_same_is_calibrated_by_a_stable_release_that_is_asked_twice() -> None:
    sizes: list[int] = []
    quiet = judged(server_of(times(1.0055)), stable_of(times(1), sizes))
    assert sizes == [8] * 5 + [1] * 10
    assert quiet.verdict is Verdict.FAILED and quiet.evidence["same_source"] == "rounding"
    noisy = judged(server_of(times(1.0055)), stable_of(times(1, in_batches=1.002)))
    assert noisy.verdict is Verdict.PASSED, noisy.reason
    assert noisy.evidence["same_source"] == "stable's own spread"
    assert noisy.evidence["same_within"] == pytest.approx(0.006, abs=2e-5)
    assert noisy.reason.endswith("; 0.00599 apart counts as the same, by stable's own spread.")
    broken = judged(server_of(times(1.2)), stable_of(times(1.2, in_batches=2)))
    assert broken.verdict is Verdict.FAILED and broken.evidence["same_within"] == pytest.approx(0.05)


def test_a_stable_release_without_answers_is_not_compared_with() -> None:
    silent = Baseline("r1", server=server_of(times(1)), serving=SERVING)
    silent.server.models["m"].breaks = InferenceError("server_error", "no kernel")  # type: ignore[union-attr]
    found = judged(server_of(times(1)), silent)
    assert found.verdict is Verdict.PASSED and "no stable release to compare with" in found.reason
    assert (
        found.evidence["baseline_source"]
        == "r1 left items unanswered: no kernel [server_error]; gave up after 5 failed requests in a row"
    )
    gone = Baseline("r1", absent_because="r1 is away")
    assert judged(server_of(times(1)), gone).evidence["baseline_source"] == "r1 is away"


def test_an_answer_that_is_no_number_or_of_another_shape_fails() -> None:
    def spoilt(x: Any) -> Any:
        return np.where(x[:, :1] == 7, np.nan, x).astype(np.float32)

    found = judged(server_of(spoilt))
    assert found.verdict is Verdict.FAILED and "1 of 40 items have no usable answer" in found.reason
    wide = judged(server_of(lambda x: np.concatenate([x, x], axis=1)))
    assert wide.verdict is Verdict.FAILED and "Half of the answers are off by inf" in wide.reason


def test_one_of_several_expected_outputs_may_be_judged_alone() -> None:
    items = [GoldenItem(one.id, one.inputs, expected={**(one.expected or {}), "z": [-1.0]}) for one in ITEMS]
    assert judged(server_of(times(1)), items=items).verdict is Verdict.FAILED
    alone = judged(server_of(times(1)), items=items, golden={"output": "y"})
    assert alone.verdict is Verdict.PASSED and alone.evidence["output"] == "y"


def test_a_set_of_another_kind_is_an_error_of_the_check() -> None:
    found = judged(server_of(times(1)), golden={"compare": "label"})
    assert found.verdict is Verdict.ERRORED
    assert "golden.compare is label, and the golden set is of the kind tensors. Write one of cosine" in found.reason
