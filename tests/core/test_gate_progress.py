"""What a running gate tells of how far it is: it never falls, also where something is measured twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fakes.ports import FakeInferenceServer, FakeModel
from validators.core.full_server import Burst
from validators.core.golden_set import GoldenItem
from validators.core.load import Attempt
from validators.core.policy import parse_policy
from validators.core.verdict import Verdict
from validators.execution import gates
from validators.execution.gates import golden
from validators.execution.gates import load as load_module

SERVING = {
    "max_batch_size": 4,
    "inputs": [{"name": "x", "data_type": "FP32", "dims": [1]}],
    "outputs": [{"name": "y", "data_type": "FP32", "dims": [1]}],
}
ITEMS = tuple(GoldenItem(str(i), {"x": [float(i)]}, i % 2) for i in range(6))


def context(told: list[tuple[int, int]], **over: Any) -> gates.GateContext:
    server = FakeInferenceServer({"m": FakeModel(SERVING, lambda tensors: {"y": tensors["x"]})})
    values: dict[str, Any] = {
        "model": "m", "release": "r2", "serving": SERVING, "envelope": {}, "contract": {}, "timings": {},
        "policy": parse_policy({"load": {"rate_per_s": 20, "duration_s": 8, "slo_ms": 100}}), "server": server,
        "progress": lambda done, total: told.append((done, total)), "items": ITEMS, **over,
    }  # fmt: skip
    return gates.GateContext(**values)


def runs(monkeypatch: pytest.MonkeyPatch, lags_s: list[float]) -> None:
    """Load runs in turn, each with a generator that is so late."""

    def drive(*args: Any, progress: Callable[[int], None], **_: Any) -> list[Attempt]:
        schedule, lag_s = args[1], lags_s.pop(0) if lags_s else 0.0
        for done in (13, 119, len(schedule)):
            progress(done)
        return [Attempt(due, due + lag_s, due + lag_s + 0.01) for due in schedule.tolist()]

    def all_at_once(_: Any, burst: Burst, *, beat: Callable[[], None]) -> list[Attempt]:
        beat()
        beat()
        return [Attempt(0, 0, 0.01)] * burst.requests

    monkeypatch.setattr(load_module.load_runner, "drive", drive)
    monkeypatch.setattr(load_module.load_runner, "all_at_once", all_at_once)


def test_a_load_that_is_measured_again_goes_on_counting_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the traffic after a burst let it fall, nor a burst that takes long."""
    told: list[tuple[int, int]] = []
    runs(monkeypatch, [0.5, 0.0])
    found = load_module.load_gate(context(told))
    assert told[:4] == [(13, 160), (119, 160), (160, 160), (160, 160)]
    assert told[4:8] == [(173, 320), (279, 320), (320, 320), (320, 320)]
    surge, end = told[8:12], told[-1]
    assert surge[0] == (333, end[1]) and surge[-1] == end == (end[1], end[1])
    assert told[12:] == [end, end]
    assert found.verdict is not Verdict.ERRORED
    assert found.reason.endswith(" (measured 2 times, as this machine sent too late before).")
    assert found.evidence["tries"] == 2


def test_a_load_that_is_measured_once_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, [0.0])
    assert "measured" not in load_module.load_gate(context([])).reason


def test_the_baselines_answers_count_on() -> None:
    told: list[tuple[int, int]] = []
    found = context(told)
    baseline = gates.Baseline("r1", server=found.server, serving=SERVING)
    golden.golden_gate(context(told, baseline=baseline))
    dones, totals = zip(*told, strict=True)
    assert list(dones) == sorted(dones)
    assert set(totals) == {dones[-1]}


def test_an_ordinary_request_beyond_the_declared_bytes_fails_the_contract() -> None:
    found = gates.run_gate("contract", context([], envelope={"limits": {"max_request_bytes": 20}}))
    assert found.verdict is Verdict.FAILED and "gateways let 20 through" in found.reason


TEXT = {
    "max_batch_size": 4,
    "inputs": [{"name": "text", "data_type": "BYTES", "dims": [1]}],
    "outputs": [{"name": "y", "data_type": "FP32", "dims": [1]}],
}


@pytest.mark.parametrize(
    ("limits", "load", "longest"),
    [
        ({"max_input_tokens": 128}, {}, 24),
        ({"max_input_tokens": 128}, {"longest_frac": 0.5}, 96),
        ({"max_input_tokens": 128}, {"longest_frac": 0}, 0),
        ({"max_concurrency": 8}, {}, 0),
    ],
)
def test_a_load_holds_inputs_of_the_longest_declared(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], load: dict[str, float], longest: int
) -> None:
    sent: list[int] = []

    def drive(requests: Any, schedule: Any, **_: Any) -> list[Attempt]:
        batches = requests.batches
        sent.extend(len(batches[at % len(batches)]["text"][0, 0].split()) for at in range(len(schedule)))
        return [Attempt(due, due, due + 0.01) for due in schedule.tolist()]

    monkeypatch.setattr(load_module.load_runner, "drive", drive)
    monkeypatch.setattr(load_module.load_runner, "all_at_once", lambda *args, **_: [Attempt(0, 0, 0.01)] * 16)
    items = tuple(GoldenItem(str(i), {"text": f"short text {i}"}, i % 2) for i in range(10))
    policy = parse_policy({"load": {"rate_per_s": 24, "duration_s": 8, "slo_ms": 100, "burst_s": 0, **load}})
    found = load_module.load_gate(
        context([], serving=TEXT, envelope={"limits": limits}, items=items, policy=policy),
    )
    assert (sum(words > 100 for words in sent), sum(words == 3 for words in sent)) == (longest, 192 - longest)
    is_declared = "max_input_tokens" in limits
    assert found.evidence["longest_of"] == ({"max_input_tokens": 128} if is_declared else {})
    assert ("longest" in {one["name"] for one in found.evidence["classes"]}) == bool(longest)
    assert found.evidence["longest_frac"] == (load.get("longest_frac", 0.125) if is_declared else 0)
