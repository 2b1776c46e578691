"""The capacity gate's sweep on simulated servers: the same requests to each, and nothing of it in the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving.core.variants import Batching
from serving.ports import InferenceServer
from tests.core.test_gate_progress import SERVING, context
from tests.support.fakes.ports import FakeInferenceServer, FakeModel
from validators.core.load import Attempt, Floats
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution import gates
from validators.execution.gates import batch_sweep
from validators.execution.gates.context import NotServed, OutOfTime
from validators.execution.runners import load as load_runner
from validators.execution.runners.generators import GeneratorLost

SECTION = {"max_batch_size": [1, 2, 8], "of_proven": [0.5, 1.4], "budget_s": 240}
POLICY = {
    "gates": ["capacity"],
    "load": {"rate_per_s": 8, "slo_ms": 60, "slo_quantile": 0.9},
    "capacity": {"budget_s": 120, "sweep": SECTION},
}


class Bench:
    """Servers that take 12 ms for each request, one at a time, and with runs of up to 2 items half of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.schedules: dict[int, list[Floats]] = {}
        self.ended: list[int] = []
        self.kept = self.drives = 0
        monkeypatch.setattr(load_runner, "drive", self.drive)

    def drive(
        self, requests: Any, schedule: Floats, *, timeout_s: float, progress: Callable[[int], None],
        is_enough: Callable[[Sequence[Attempt], float], bool] = lambda attempts, now_s: False, generators: Any = None,
    ) -> list[Attempt]:  # fmt: skip
        size = requests.server.models["m"].serving["max_batch_size"]
        self.schedules.setdefault(size, []).append(schedule)
        progress(0)
        is_enough([], 0.0)
        self.drives += 1
        free_s, attempts = 0.0, []
        for at, due in enumerate(schedule.tolist()):
            free_s = max(due, free_s) + (0.006 if size == 2 else 0.012)
            attempts.append(Attempt(due, due, free_s, at=at))
        return attempts

    @contextmanager
    def variants(
        self, batching: Batching, *, wait_s: float, beat: Callable[[], None]
    ) -> Iterator[tuple[InferenceServer, Callable[[], None]]]:
        beat()
        if batching.max_batch_size == 1:
            raise NotServed("load_failed: no memory")
        serving = batching.within(SERVING)
        yield FakeInferenceServer({"m": FakeModel(serving, lambda tensors: {"y": tensors["x"]})}), self._keep
        self.ended.append(batching.max_batch_size)
        beat()  # while it goes

    def _keep(self) -> None:
        self.kept += 1


def found(bench: Bench | None, told: list[tuple[int, int]] | None = None, **over: Any) -> Judgement:
    values = {"policy": parse_policy(POLICY), "hardware": "Xeon", "variants": bench.variants if bench else None, **over}
    return gates.run_gate("capacity", context([] if told is None else told, **values))


def test_each_batching_is_asked_at_the_gaps_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, load = Bench(monkeypatch), {**POLICY["load"], "trace": [1, 1, 2]}  # type: ignore[dict-item]
    found(bench, policy=parse_policy({**POLICY, "load": load}))
    gaps = [np.diff(schedule) for schedules in bench.schedules.values() for schedule in schedules]
    assert len(bench.schedules) > 1 and all(own.max() / own.min() == pytest.approx(2) for own in gaps)


def test_it_asks_each_batching_the_same_and_advises_the_one_that_answers_more(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, told, said = Bench(monkeypatch), [], []  # type: ignore[var-annotated]
    judged = found(bench, told, say=said.append)
    sweep = judged.evidence["sweep"]
    assert [(row["max_batch_size"], row["why"]) for row in sweep["rows"]] == [
        (4, ""), (1, "load_failed: no memory"), (2, ""), (8, "the release declares max_batch_size 4"), (4, ""),
    ]  # fmt: skip
    assert sweep["best"] == 2 and "max_batch_size 2, without dynamic_batching answers" in sweep["says"]
    own_first, own_again = bench.schedules[4][-4:-2], bench.schedules[4][-2:]
    for other in (bench.schedules[2], own_again):
        assert all(np.array_equal(one, two) for one, two in zip(own_first, other, strict=True))
    rates = [point["rate_per_s"] for point in sweep["rows"][2]["points"]]
    assert rates == pytest.approx(
        [0.5 * judged.evidence["capacity_per_s"], 1.4 * judged.evidence["capacity_per_s"]], rel=1e-4
    )
    assert bench.ended == [4, 2, 4] and bench.kept == 6
    assert said[-1] == "sweep, 5 of 5: max_batch_size 4, without dynamic_batching"
    assert told == sorted(told) and {total for _, total in told} == {360}


def test_it_judges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = found(Bench(monkeypatch))
    plain = found(None, policy=parse_policy({**POLICY, "capacity": {"budget_s": 120}}))
    assert (with_it.verdict, with_it.reason) == (plain.verdict, plain.reason) and plain.verdict is Verdict.PASSED
    assert set(with_it.evidence) - set(plain.evidence) == {"sweep", "searched_until_s"}


def test_where_users_may_be_no_other_batching_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    Bench(monkeypatch)
    judged = found(None)
    assert judged.verdict is Verdict.PASSED
    assert judged.evidence["sweep"]["says"] == "No other batching was tried: users may be where it is tried."


def test_without_a_proven_rate_or_a_batch_axis_none_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    tight = parse_policy({**POLICY, "load": {**POLICY["load"], "slo_ms": 1, "max_lag_ms": 1000}})  # type: ignore[dict-item]
    assert found(bench, policy=tight).evidence["sweep"]["says"].endswith("no rate is proven.")
    alone = found(bench, serving={**SERVING, "max_batch_size": 0})
    assert alone.evidence["sweep"]["says"].endswith("the release has no batch axis.")
    assert bench.ended == []


def test_a_gate_that_is_stopped_in_the_middle_gives_the_server_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, stopped = Bench(monkeypatch), []  # type: ignore[var-annotated]

    class Interrupted(Exception):
        pass

    @contextmanager
    def variants(batching: Batching, **how: Any) -> Iterator[Any]:
        with bench.variants(batching, **how) as (server, keep):
            try:
                yield server, keep
            except Interrupted:
                stopped.append(batching.max_batch_size)
                raise

    def interrupts(done: int, total: int) -> None:
        if bench.kept:
            raise Interrupted

    with pytest.raises(Interrupted):
        found(bench, variants=variants, progress=interrupts)
    assert stopped == [4]


def test_what_no_time_is_left_for_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    monkeypatch.setattr(batch_sweep, "time", SimpleNamespace(monotonic=lambda: 100 * bench.drives))
    rows = found(bench).evidence["sweep"]["rows"]
    assert rows[0]["why"] == "" and [row["why"] for row in rows[1:3]] == ["no time was left"] * 2


def test_a_gate_that_is_out_of_time_in_its_sweep_keeps_what_its_search_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)

    def progress(done: int, total: int) -> None:
        if bench.ended:
            raise OutOfTime

    judged = found(bench, progress=progress)
    assert judged.verdict is Verdict.PASSED, judged.reason
    rows = judged.evidence["sweep"]["rows"]
    assert [row["why"] for row in rows if row["max_batch_size"] != 8] == ["", *["no time was left"] * 3]
    assert rows[0]["points"], "what was measured before counts"
    assert judged.evidence["sweep"]["best"] is None


def test_a_generator_that_is_lost_in_the_sweep_leaves_what_the_search_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    drive = load_runner.drive

    def loses_one(requests: Any, *asked: Any, **how: Any) -> list[Attempt]:
        if requests.server.models["m"].serving["max_batch_size"] == 2:
            raise GeneratorLost("a generator process fell silent")
        return drive(requests, *asked, **how)

    monkeypatch.setattr(load_runner, "drive", loses_one)
    judged = found(bench)
    assert judged.verdict is Verdict.PASSED, judged.reason
    assert judged.evidence["sweep"]["rows"][2]["why"] == "a generator process fell silent"
