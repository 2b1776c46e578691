"""What the load gate weighs, by hand: recovery, classes, the length of a run, and the comparison with stable, at their very edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.core.test_beside_stable import FOUND, arm
from validators.core.beside_stable import Arm, judge_beside
from validators.core.load import Attempt, arrivals
from validators.core.policy import parse_policy
from validators.core.proof import Sizing, proof_at
from validators.core.recovery import LEAST_REQUESTS, is_asked, judge_recovery, recovered_after_s, surge
from validators.core.request_classes import ClassSummary, classes_of
from validators.core.slo import dispersion, most_over
from validators.core.verdict import Verdict


def section(**load: Any) -> dict[str, Any]:
    return parse_policy({"load": {"slo_ms": 125, "slo_quantile": 0.8, "rate_per_s": 20, **load}}).of("load")


def after(took: str, due_s: float = 3.0, lag_s: float = 0.0) -> list[Attempt]:
    """A request each twentieth of a second after the burst: `.` takes just the objective's time, `x` an eighth of a second more."""
    instants = [due_s + at / 8 for at in range(len(took))]
    return [
        Attempt(due, due + lag_s, due + (0.125 if one == "." else 0.25))
        for due, one in zip(instants, took, strict=True)
    ]


@pytest.mark.parametrize(
    ("took", "after_s"),
    [
        ("." * 30, None),
        ("." * 31, 0),  # 31 × -ln .8 = 6.92, and ln 1000 = 6.91
        ("x" + "." * 31, 0.125),
        ("." * 30 + "x" + "." * 3, None),  # one over takes ln(.2 / .36) = -.59 off, which is 2.6 of those in time
        ("." * 30 + "x" + "." * 4, 0),
    ],
)
def test_the_objective_holds_again_by_hand(took: str, after_s: float | None) -> None:
    assert recovered_after_s(after(took), section()) == after_s


def test_a_burst_and_what_follows_it_are_random_each_for_itself() -> None:
    due = surge(section(), seed=7)
    expected = np.concatenate([arrivals(60, 3, seed=7), 3 + arrivals(20, 10 + 3 * LEAST_REQUESTS / 20, seed=8)])
    assert (due == expected).all()


def test_recovery_is_asked_where_31_requests_fit() -> None:
    fits = {"rate_per_s": 1, "max_duration_s": 31}
    assert is_asked(section(**fits)) and not is_asked(section(**{**fits, "max_duration_s": 30.9}))
    assert is_asked(section(burst_s=0.5)) and not is_asked(section(burst_s=0))


def test_the_evidence_of_a_recovery_is_kept_to_a_millisecond() -> None:
    found = judge_recovery(FOUND, after("." * 40, due_s=3.1234567), section(burst_factor=1.2345678))
    assert found.evidence["recovery"] == {
        "burst_per_s": 24.691, "burst_s": 3, "burst_requests": 0, "requests_after": 40, "allowed_s": 10,
        "recovered_after_s": 0.123, "lag_p99_ms": 0,
    }  # fmt: skip
    assert (
        judge_recovery(FOUND, after("." * 40, lag_s=0.0012346), section()).evidence["recovery"]["lag_p99_ms"] == 1.235
    )
    nothing = judge_recovery(FOUND, [], section())
    assert (nothing.verdict, nothing.evidence["recovery"]["lag_p99_ms"]) == (Verdict.FAILED, 0)


@pytest.mark.parametrize(("max_lag_ms", "verdict"), [(125, Verdict.FAILED), (124.9, Verdict.ERRORED)])
def test_a_client_may_be_as_late_as_the_limit_after_a_burst(max_lag_ms: float, verdict: Verdict) -> None:
    assert judge_recovery(FOUND, after("x" * 40, lag_s=0.125), section(max_lag_ms=max_lag_ms)).verdict is verdict


def test_sizes_that_differ_by_the_half_are_of_several_classes() -> None:
    assert classes_of([10, 20, 20]) == ["short", "medium", "medium"]
    assert classes_of([10, 19, 19]) == ["usual"] * 3
    assert classes_of([10, 20, 30, 40, 50, 60, 70]) == ["short"] * 3 + ["medium"] * 2 + ["long"] * 2


def test_a_class_tells_the_most_that_it_may_have_over() -> None:
    one = ClassSummary("long", 90, 0, 2, 4.4, {}, (2, 0, 0), (30, 30, 30))
    most = most_over(2, 90, confidence=0.9, phi=dispersion((2, 0, 0)))
    assert one.as_evidence(confidence=0.9)["over_frac_at_most"] == round(most, 6) != round(most, 7)


def test_a_run_that_ends_when_it_could_pass_can_pass() -> None:
    assert Sizing(100, 20, 20).sentence == "needs 100 requests to pass, about 20 s; ends after 20 s at the latest"
    assert section(rate_per_s=0.7, slo_quantile=0.95)["max_duration_s"] == 600
    assert section(rate_per_s=7, slo_quantile=0.95)["max_duration_s"] == 61.714


def test_a_test_is_one_of_one_unless_it_is_said() -> None:
    def failed(**tests: int) -> int:
        looks = (([n] * 8, [m] * 8) for m in range(8, 40) for n in range(m))
        return sum(proof_at(*look, section(), **tests).found.verdict is Verdict.FAILED for look in looks)

    assert failed() == failed(tests=1) > failed(tests=2)


def test_the_comparison_is_tempered_by_the_arm_that_scatters_most() -> None:
    clumped = Arm((40, *[0] * 15), (20,) * 16)
    for own, other in ((arm(60), clumped), (clumped, arm(60))):
        told = judge_beside(FOUND, "r1", own, other, section()).evidence["beside_stable"]
        assert told["phi"] == round(dispersion(clumped.over), 3)
    calm = judge_beside(FOUND, "r1", arm(60), arm(50), section(least_dispersion=2.71828)).evidence["beside_stable"]
    assert calm["phi"] == 2.718 and calm["no_worse_chance"] == round(calm["no_worse_chance"], 6)


def test_a_burst_keeps_the_arrivals_of_the_load_section() -> None:
    uneven = surge(section(arrivals_cv=4), seed=7)
    assert (uneven[:180] == arrivals(60, 3, seed=7, cv=4)).all()
