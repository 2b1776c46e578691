"""A release that missed its objective is blamed only where the stable one, in turn with it, is faster."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.core.test_gate_progress import SERVING, context
from validators.core.beside_stable import Arm, judge_beside, no_worse_chance
from validators.core.load import Attempt
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution import gates
from validators.execution.gates import load

FOUND = Judgement(Verdict.FAILED, "40 of 160 requests were over.", {"requests": 160})
POLICY = parse_policy({"load": {"rate_per_s": 20, "slo_ms": 100, "slo_quantile": 0.95}}).of("load")


def arm(over: int, sent: int = 320, windows: int = 16) -> Arm:
    return Arm(tuple(over // windows + (at < over % windows) for at in range(windows)), (sent // windows,) * windows)


def test_the_chance_is_that_of_fishers_question_with_independent_arms() -> None:
    """7 of 9 that were over are the candidate's, which got a third of the requests."""
    expected = sum(math.comb(9, k) * (1 / 3) ** k * (2 / 3) ** (9 - k) for k in range(7, 10))
    assert no_worse_chance(arm(7, 160), arm(2, 320), phi=1) == pytest.approx(expected)
    assert no_worse_chance(arm(0), arm(4), phi=1) == 1
    assert no_worse_chance(arm(0, 0), arm(0, 0), phi=1) == 1
    assert no_worse_chance(arm(14, 160), arm(4, 320), phi=2) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("own", "others", "verdict", "says"),
    [
        (60, 2, Verdict.FAILED, "Of r1, asked in turn with it on the same machine, 2 of 320, and of its own 60 of 320: it is slower."),
        (60, 50, Verdict.UNDECIDED, "50 of 320, and of its own 60 of 320: the machine may be to blame."),
        (0, 0, Verdict.UNDECIDED, "0 of 320, and of its own 0 of 320: the machine may be to blame."),
    ],
)  # fmt: skip
def test_only_what_is_slower_than_stable_is_blamed(own: int, others: int, verdict: Verdict, says: str) -> None:
    found = judge_beside(FOUND, "r1", arm(own), arm(others), POLICY)
    assert found.verdict is verdict
    assert found.reason == f"{FOUND.reason} {says}" or found.reason.endswith(says)
    told = found.evidence["beside_stable"]
    assert (told["stable"], told["candidate_over"]) == ("r1", {"over": own, "requests": 320})
    assert found.evidence["requests"] == 160


def test_equal_releases_are_blamed_no_more_often_than_confidence_allows() -> None:
    """Seeded; a tenth of both arms' requests is over."""
    dice = np.random.default_rng(3)
    draws = dice.binomial(20, 0.1, (600, 2, 16))
    blamed = [
        judge_beside(FOUND, "r1", *(Arm(tuple(one.tolist()), (20,) * 16) for one in pair), POLICY).verdict
        is Verdict.FAILED
        for pair in draws
    ]
    assert sum(blamed) <= 0.05 * 600


def gate(
    monkeypatch: pytest.MonkeyPatch,
    stable_s: float | None,
    took_s: float = 1.0,
    full_s: float = 0.01,
    stable_full_s: float = 0.01,
) -> tuple[Judgement, list[str]]:
    """The load gate of a candidate that takes so long, beside a stable one that takes `stable_s`; None: it does not come up.

    `full_s`, `stable_full_s`: what each takes for all that comes at once.
    """
    asked: list[str] = []
    other = gates.Baseline("r1", absent_because="r1 takes other inputs")
    if stable_s is not None:
        other = gates.Baseline("r1", server=context([]).server, serving=SERVING)

    def drive(requests: Any, schedule: Any, progress: Callable[[int], None], **_: Any) -> list[Attempt]:
        is_stable = requests.server is other.server
        asked.append("r1" if is_stable else "r2")
        lasts = stable_s if is_stable and stable_s is not None else took_s
        return [Attempt(due, due, due + lasts, at=at) for at, due in enumerate(schedule.tolist())]

    monkeypatch.setattr(load.load_runner, "drive", drive)

    def all_at_once(requests: Any, *_: Any, **__: Any) -> list[Attempt]:
        is_stable = requests.server is other.server
        asked.append("r1, full" if is_stable else "r2, full")
        return [Attempt(0, 0, stable_full_s if is_stable else full_s)] * 64

    monkeypatch.setattr(load.load_runner, "all_at_once", all_at_once)
    return load.load_gate(context([], stable=lambda: other)), asked


def test_stable_is_asked_in_turn_with_a_release_that_missed_its_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = gate(monkeypatch, stable_s=0.01)
    assert (found.verdict, asked) == (Verdict.FAILED, ["r2"] + ["r2", "r1"] * 4)
    assert found.evidence["beside_stable"]["stable_over"] == {"over": 0, "requests": 320}
    own = found.evidence["requests"] + found.evidence["beside_stable"]["candidate_over"]["requests"]
    assert sum(found.evidence["answered"]["per_s"]) == own, "what stable answered, the candidate did not"
    found, _ = gate(monkeypatch, stable_s=1.0)
    assert found.verdict is Verdict.UNDECIDED and "the machine may be to blame" in found.reason


@pytest.mark.parametrize(
    ("full_s", "stable_full_s", "verdict", "last"),
    [
        (0.01, 0.01, Verdict.UNDECIDED, ["r2, full"]),
        (60, 0.01, Verdict.FAILED, ["r2, full", "r2, full", "r1, full"]),
        (60, 60, Verdict.UNDECIDED, ["r2, full", "r2, full", "r1, full"]),
    ],
)
def test_a_machine_that_may_be_to_blame_is_not_where_only_the_candidate_collapses_once_it_is_full(
    monkeypatch: pytest.MonkeyPatch, full_s: float, stable_full_s: float, verdict: Verdict, last: list[str]
) -> None:
    found, asked = gate(monkeypatch, stable_s=1.0, full_s=full_s, stable_full_s=stable_full_s)
    assert (found.verdict, asked[9:]) == (verdict, last)
    own = found.evidence["requests"] + found.evidence["beside_stable"]["candidate_over"]["requests"]
    assert sum(found.evidence["answered"]["per_s"]) == own + 64 * last.count("r2, full")
    if verdict is Verdict.FAILED:
        assert found.reason.endswith("r1, as full on the same machine, answered 6400.0/s.")


def test_a_stable_release_that_cannot_be_asked_excuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = gate(monkeypatch, stable_s=None)
    assert (found.verdict, asked) == (Verdict.FAILED, ["r2"])
    assert found.evidence["beside_stable"] == {"stable": "r1", "absent_because": "r1 takes other inputs"}


def test_a_release_that_meets_its_objective_is_compared_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = gate(monkeypatch, stable_s=0.01, took_s=0.01)
    assert "r1" not in asked and "beside_stable" not in found.evidence
