"""The resources gate asks no more than it has to: a soak where the load gate's requests leave it open whether the server leaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from serving.targets.core.use import Reading, Use
from tests.core.test_gate_progress import context
from validators.core.load import Attempt, Floats
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates import GateContext, resources

BEGAN_S = 1000.0
#: 600 requests in 30 s, and the soak begins two seconds later.
SCHEDULES: list[Floats] = []
LOADED = {"answered": {"began_s": BEGAN_S, "per_s": [20] * 30}}


def readings(since_s: float, until_s: float) -> Sequence[Reading]:
    """Four a second, of a server that holds what it holds."""
    return [
        Reading(since_s + at / 4, Use(200 << 20, 100 << 20, 0, at / 100, 9))
        for at in range(int(4 * (until_s - since_s)))
    ]


def judged(
    monkeypatch: pytest.MonkeyPatch, *, soak_at_s: float = BEGAN_S + 32, **over: Any
) -> tuple[Judgement, list[int]]:
    """The gate's judgement, and how many requests it sent in each soak."""
    soaks: list[int] = []
    clock = [soak_at_s]
    load = {"rate_per_s": 20, **over.pop("load", {})}

    def drive(*args: Any, progress: Callable[[int], None], **_: Any) -> list[Attempt]:
        soaks.append(len(args[1]))
        SCHEDULES.append(args[1])
        clock.append(clock[-1] + args[1][-1])
        progress(len(args[1]))
        return [Attempt(due, due, due) for due in args[1].tolist()]

    monkeypatch.setattr(resources.load_runner, "drive", drive)
    monkeypatch.setattr(resources.time, "time", lambda: clock[-1])
    section = {"min_requests": 600, **over.pop("section", {})}
    policy = parse_policy({"gates": ["load", "resources"], "load": load, "resources": section})
    loaded = over.pop("loaded", LOADED)
    values = {"policy": policy, "earlier": lambda gate: loaded, "readings": readings, **over}
    return resources.resources_gate(GateContext(**{**context([]).__dict__, **values})), soaks


def test_enough_is_judged_without_a_request_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found, soaks = judged(monkeypatch)
    assert (found.verdict, soaks) == (Verdict.PASSED, [])
    assert found.evidence["requests"] == 600


def test_too_few_requests_are_followed_by_those_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    found, (sent,) = judged(monkeypatch, section={"min_requests": 1500}, say=said.append)
    assert (sent, found.evidence["requests"]) == (900, 1500)
    assert said == ["asks it for 45 s more at 20/s, as 600 requests prove too little"]
    assert found.verdict is Verdict.PASSED


def test_a_long_wait_before_the_soak_hides_no_growth_and_tells_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the worker died after the load: readings without a request between them say nothing of leaks."""
    found, _ = judged(monkeypatch, soak_at_s=BEGAN_S + 600, section={"min_requests": 1500})
    assert found.verdict is Verdict.PASSED, found.reason


def test_a_soak_is_no_longer_than_allowed_and_then_it_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    found, (sent,) = judged(monkeypatch, section={"min_requests": 100_000, "max_soak_s": 10})
    assert sent == pytest.approx(200, rel=0.2)
    assert found.verdict is Verdict.UNDECIDED and "100000 are asked for" in found.reason
    assert judged(monkeypatch, section={"min_requests": 601, "max_soak_s": 0})[1] == []


def test_without_a_load_gate_it_asks_all_of_them_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    found, (sent,) = judged(monkeypatch, loaded={}, section={"min_requests": 400})
    assert (found.verdict, found.evidence["requests"], sent) == (Verdict.PASSED, 400, 400)


def test_where_nobody_reads_the_server_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found, soaks = judged(monkeypatch, readings=lambda since_s, until_s: ())
    assert (found.verdict, soaks) == (Verdict.UNDECIDED, [])
