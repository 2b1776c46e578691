"""The preview of a policy: longer at less traffic, faster for worse faults, honest where nobody knows."""

from __future__ import annotations

import numpy as np
import pytest

from rollouts.core.counter_deltas import ERRORS, Arms, Counts
from rollouts.core.policy_schema import parse_policy
from rollouts.core.preview import preview
from rollouts.core.replay import walk

STANDARD = parse_policy({"preset": "standard", "guards": [{"indicator": "errors"}]})


def test_a_stage_takes_as_long_as_its_slowest_condition() -> None:
    found = preview(STANDARD, rate_per_s=100.0, error_frac=0.001, has_stable=True)
    assert [stage.name for stage in found.stages] == ["start", "step 2", "step 3", "bake"]
    first = found.stages[0]
    assert first.samples_s == pytest.approx(300 / 5)
    assert first.expected_s == max(first.min_s, first.samples_s, first.proof_s or 0)
    assert found.total_s == pytest.approx(sum(stage.expected_s or 0 for stage in found.stages))
    assert not found.is_thin


DEMO = parse_policy({"preset": "demo"}, {"slow": {"threshold_ms": 250, "max_frac": 0.01}})


def test_a_point_at_which_healthy_releases_are_often_slow_takes_longer_to_prove() -> None:
    """89 s were measured where 37 s had been told: at 8.3 requests/s, with a fifth of the attempts over 50 ms."""

    def bake_s(slow: dict[str, float]) -> float:
        found = preview(DEMO, rate_per_s=8.3, slow_frac=slow, has_stable=True).stages[-1].proof_s
        assert found is not None
        return found

    assert bake_s({}) == pytest.approx(15, abs=1)
    assert bake_s({"slow_50ms": 0.2, "slow_100ms": 0.05, "slow_250ms": 0.0}) == pytest.approx(88, abs=2)
    assert bake_s({"slow_7ms": 0.5}) == bake_s({})  # no point of the guard


def test_a_first_release_has_no_stable_to_be_as_slow_as() -> None:
    found = preview(DEMO, rate_per_s=22, slow_frac={"slow_50ms": 0.5}, has_stable=False)
    assert found == preview(DEMO, rate_per_s=22, has_stable=False)


def test_thin_traffic_is_said() -> None:
    found = preview(STANDARD, rate_per_s=0.05, error_frac=0.001, has_stable=True)
    assert found.is_thin and found.total_s is None and found.stages[0].expected_s is None


def test_without_known_traffic_nothing_is_claimed() -> None:
    found = preview(STANDARD, rate_per_s=None, has_stable=True)
    assert not found.detect and found.total_s is None and not found.is_thin
    assert all(stage.expected_s is None for stage in found.stages)


def test_worse_faults_and_more_traffic_are_found_sooner() -> None:
    def seconds(rate: float) -> list[float]:
        found = preview(STANDARD, rate_per_s=rate, error_frac=0.001, has_stable=True).detect
        return [one.seconds or 1e9 for one in found if one.stage == "start"]

    slow, fast = seconds(20.0), seconds(200.0)
    assert slow == sorted(slow, reverse=True) and fast == sorted(fast, reverse=True)
    assert all(b < a for a, b in zip(slow, fast, strict=True))


def test_a_first_release_is_previewed_against_its_objectives() -> None:
    found = preview(STANDARD, rate_per_s=50.0, has_stable=False)
    assert [(stage.name, stage.weight_bp) for stage in found.stages] == [("start", 10_000), ("bake", 10_000)]
    assert found.detect[-1].seconds is not None


def test_shadowing_and_approvals_are_shown() -> None:
    policy = parse_policy({"preset": "careful", "approvals": {"step 2": 2}})
    found = preview(policy, rate_per_s=40.0, error_frac=0.001, has_stable=True)
    assert found.stages[0].name == "shadow" and found.stages[0].samples_s == pytest.approx(200 / 4)
    assert found.stages[2].approvals == 2


@pytest.mark.slow
@pytest.mark.parametrize("fail", [0.05, 0.20])
def test_the_detection_time_is_near_what_the_engine_itself_takes(fail: float) -> None:
    """The median over 30 simulated rollouts lies within a factor of 2.5 and 4 s of the preview."""
    rng, rate, base = np.random.default_rng(7), 40.0, 0.002
    expected = next(
        one.seconds
        for one in preview(STANDARD, rate_per_s=rate, error_frac=base, has_stable=True).detect
        if one.fail_frac == fail and one.stage == "start"
    )

    def once() -> float:
        def feed(tick: int, weight_bp: int) -> Arms | None:
            if tick > 2000:
                return None
            nc, nb = (int(rng.poisson(rate * part)) for part in (weight_bp / 1e4, 1 - weight_bp / 1e4))
            return Arms(
                Counts(nc, nc, {ERRORS: int(rng.binomial(nc, fail))}),
                Counts(nb, nb, {ERRORS: int(rng.binomial(nb, base))}),
            )

        *_, last = walk(STANDARD, feed)
        return float(last.tick)

    median = float(np.median([once() for _ in range(30)]))
    assert expected is not None and median / 2.5 - 4 <= expected <= median * 2.5 + 4, (median, expected)
