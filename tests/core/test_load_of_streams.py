"""The load gate on a release that streams: how it is asked, what it tells, and by what it is held against stable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.test_gate_progress import SERVING, context
from tests.support.fakes.ports import FakeInferenceServer, FakeModel, FakeRequests
from validators.core.full_server import Burst
from validators.core.load import Attempt
from validators.core.policy import parse_policy
from validators.core.verdict import Verdict
from validators.execution import gates
from validators.execution.gates import Baseline
from validators.execution.gates import load as load_module

STREAMS = {**SERVING, "decoupled": True}
LOAD = {"rate_per_s": 20, "duration_s": 30, "slo_ms": 5000, "ttft_slo_ms": 100, "slo_quantile": 0.9, "burst_s": 0}


def server() -> FakeInferenceServer:
    return FakeInferenceServer({"m": FakeModel(SERVING, lambda tensors: {"y": tensors["x"]})})


def streamed(monkeypatch: pytest.MonkeyPatch, first_s: Callable[[FakeInferenceServer], float]) -> list[FakeRequests]:
    """Answers are whole after a second, and begin after what each server takes; the requests that were asked for."""
    asked: list[FakeRequests] = []

    def drive(requests: FakeRequests, schedule: Any, **_: Any) -> list[Attempt]:
        asked.append(requests)
        begins_s = first_s(requests.server)
        return [
            Attempt(due, due, due + 1, at=at, came_s=(due + begins_s, due + 1) if requests.streams else ())
            for at, due in enumerate(schedule.tolist())
        ]

    def all_at_once(_: Any, burst: Burst, *, beat: Callable[[], None]) -> list[Attempt]:
        return [Attempt(0, 0, 0.01)] * burst.requests

    monkeypatch.setattr(load_module.load_runner, "drive", drive)
    monkeypatch.setattr(load_module.load_runner, "all_at_once", all_at_once)
    return asked


def test_it_is_streamed_to_and_tells_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = streamed(monkeypatch, lambda _: 0.05)
    found = gates.run_gate("load", context([], serving=STREAMS, policy=parse_policy({"load": LOAD})))
    assert found.verdict is Verdict.PASSED and all(one.streams for one in asked)
    assert found.evidence["ttft_ms"]["p50"] == 50 and found.evidence["itl_ms"]["p99"] == 950
    assert found.evidence["latency_ms"]["p50"] == 1000 and found.evidence["ttft_test"]["verdict"] == "passed"


def test_who_does_not_stream_is_told_of_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = streamed(monkeypatch, lambda _: 0.05)
    found = gates.run_gate("load", context([], policy=parse_policy({"load": {**LOAD, "ttft_slo_ms": None}})))
    assert not any(one.streams for one in asked)
    assert not [name for name in found.evidence if "ttft" in name or "itl" in name or name == "responses"]


@pytest.mark.parametrize(("stable_first_s", "verdict"), [(0.05, Verdict.FAILED), (0.5, Verdict.UNDECIDED)])
def test_late_first_tokens_are_held_against_those_of_stable(
    monkeypatch: pytest.MonkeyPatch, stable_first_s: float, verdict: Verdict
) -> None:
    """Whose whole answers take as long."""
    own, other = server(), server()
    asked = streamed(monkeypatch, lambda one: 0.5 if one is own else stable_first_s)
    stable = Baseline("r1", server=other, serving=STREAMS)
    found = gates.run_gate(
        "load",
        context([], server=own, serving=STREAMS, policy=parse_policy({"load": LOAD}), stable=lambda: stable),
    )
    assert found.verdict is verdict and found.reason.startswith("Time to first token: ")
    assert found.evidence["beside_stable"]["candidate_over"]["over"] > 0
    assert {id(one.server) for one in asked} == {id(own), id(other)}


@pytest.mark.parametrize(
    ("stable_gap_s", "verdict"), [(0.1, Verdict.FAILED), (0.95, Verdict.UNDECIDED), (None, Verdict.FAILED)]
)
def test_slow_tokens_are_held_against_those_of_stable(
    monkeypatch: pytest.MonkeyPatch, stable_gap_s: float | None, verdict: Verdict
) -> None:
    """One that answers in one response has none to be held against."""
    own, other = server(), server()
    streamed(monkeypatch, lambda one: 0.05 if one is own else 1 - (stable_gap_s or 0.0))
    stable = Baseline("r1", server=other, serving=STREAMS if stable_gap_s else SERVING)
    policy = parse_policy({"load": {**LOAD, "itl_slo_ms": 500}})
    found = gates.run_gate("load", context([], server=own, serving=STREAMS, policy=policy, stable=lambda: stable))
    assert found.verdict is verdict and found.reason.startswith("Time between tokens: ")
    told = found.evidence["beside_stable"]
    assert told["stable_over"]["requests"] > 0 if stable_gap_s else "two responses" in told["absent_because"]


def test_stable_is_asked_as_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = server(), server()
    asked = streamed(monkeypatch, lambda _: 0.5)
    stable = Baseline("r1", server=other, serving=SERVING)
    policy = parse_policy({"load": LOAD})
    gates.run_gate("load", context([], server=own, serving=STREAMS, policy=policy, stable=lambda: stable))
    assert {one.streams for one in asked if one.server is other} == {False}


@pytest.mark.parametrize("gate", ["load", "capacity"])
def test_a_stream_over_http_is_no_check(monkeypatch: pytest.MonkeyPatch, gate: str) -> None:
    asked = streamed(monkeypatch, lambda _: 0.05)
    policy = parse_policy({"gates": ["load", "capacity"], "load": {**LOAD, "protocol": "http"}})
    found = gates.run_gate(gate, context([], serving=STREAMS, policy=policy))
    assert found.verdict is Verdict.ERRORED and "write load.protocol: grpc" in found.reason and not asked
