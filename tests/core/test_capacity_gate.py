"""The capacity gate on a server whose time is simulated: it drives the search, tells how far it is, and claims what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks.capacity import one_queue
from tests.core.test_gate_progress import context
from validators.core.load import Attempt, Floats
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution import gates
from validators.execution.runners import load as load_runner

#: At the 90th percentile, so that little is enough; a queue of 10 ms each holds some 80/s.
LOAD = {"rate_per_s": 8, "slo_ms": 60, "slo_quantile": 0.9}
POLICY = {"gates": ["capacity"], "load": LOAD, "capacity": {"budget_s": 120}}


def simulated(monkeypatch: pytest.MonkeyPatch, *, lag_s: float = 0.0, sent_frac: float = 1.0) -> list[float]:
    """Answers as one queue gives them; returns the rates that are asked. `lag_s`: how late requests are sent."""
    rates: list[float] = []

    def drive(
        requests: Any, schedule: Floats, *, timeout_s: float, progress: Callable[[int], None],
        is_enough: Callable[[Sequence[Attempt], float], bool], generators: Any,
    ) -> list[Attempt]:  # fmt: skip
        rates.append(len(schedule) / np.ceil(schedule[-1]))
        took = one_queue(0.5)(schedule, np.random.default_rng(len(rates)))
        sent = [due / sent_frac + lag_s for due in schedule.tolist()]
        rows = enumerate(zip(schedule.tolist(), sent, took.tolist(), strict=True))
        attempts = [Attempt(due, at_s, at_s + took_s, at=at) for at, (due, at_s, took_s) in rows]
        for now_s in range(1, int(schedule[-1]), 20):
            ended = [one for one in attempts if one.done_s <= now_s]
            if is_enough(ended, now_s):
                return ended
        return attempts

    monkeypatch.setattr(load_runner, "drive", drive)
    return rates


def found(told: list[tuple[int, int]] | None = None, policy: dict[str, Any] | None = None, **over: Any) -> Judgement:
    values = {"policy": parse_policy(policy or POLICY), "hardware": "Xeon", **over}
    return gates.run_gate("capacity", context([] if told is None else told, **values))


def test_it_claims_the_rate_of_the_run_that_proves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rates, told, said = simulated(monkeypatch), [], []  # type: ignore[var-annotated]
    judged = found(told, say=said.append)
    assert judged.verdict is Verdict.PASSED, judged.reason
    proof = judged.evidence["points"][-1]
    assert (proof["purpose"], proof["found"]) == ("confirm", "proven")
    assert 50 < judged.evidence["capacity_per_s"] <= proof["rate_per_s"] < 80
    assert [round(one) for one in rates[:4]] == [8, 16, 32, 64]
    assert len(rates) == len(judged.evidence["points"]) == len(said)
    assert said[0] == "probe: 8 requests/s for 3 s"
    assert told == sorted(told) and told[-1][1] == 120 >= judged.evidence["seconds"]
    assert judged.evidence["class_sizes"]


def test_an_envelope_that_promises_more_than_was_refuted_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated(monkeypatch)
    entry = {"hardware": "Xeon", "throughput": {"value": 500, "unit": "requests_per_s"}}
    judged = found(envelope={"performance": [entry]})
    assert judged.verdict is Verdict.FAILED, judged.reason
    assert "declares 500 requests/s (throughput); " in judged.reason and "the objective was missed at" in judged.reason


def test_a_confirmation_that_will_not_pass_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated(monkeypatch)
    section = {"most_per_s": 80, "first_per_s": 80, "budget_s": 600}
    judged = found(policy={**POLICY, "load": {**LOAD, "slo_quantile": 0.9}, "capacity": section})
    given_up = [one for one in judged.evidence["points"] if one["purpose"] == "confirm" and one["found"] != "proven"]
    assert given_up and all(60 <= one["seconds"] < 90 for one in given_up), judged.evidence["points"]


def test_a_generator_that_asks_for_less_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated(monkeypatch, sent_frac=0.9)
    judged = found(policy={**POLICY, "load": {**LOAD, "slo_ms": 60_000}, "capacity": {"most_per_s": 20}})
    assert judged.verdict is Verdict.ERRORED
    assert judged.reason.startswith("generator_limited: it sent 18")


def test_a_late_generator_is_to_blame_for_what_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated(monkeypatch, lag_s=0.1)
    judged = found()
    assert judged.verdict is Verdict.ERRORED
    assert "ms late" in judged.reason


def test_without_an_objective_there_is_no_capacity() -> None:
    assert found(policy={"gates": ["capacity"]}).verdict is Verdict.UNDECIDED
