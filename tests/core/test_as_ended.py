"""Attempts that are counted when they end: what slow answers and quick failures then do to a healthy candidate."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.as_ended import worst_as_ended
from rollouts.core.policy_schema import parse_policy

BEGIN, LASTS_S = 1_800_000_000.0, 60
POLICY = parse_policy({"preset": "fast", "guards": [{"indicator": "errors"}]}, {"errors_max_frac": 0.05})


def logged(path: Path, *, begin: float, per_s: float, late_s: float, fails: float, seed: int) -> Path:
    """Attempts that began from then on: a share failed at once, the others were answered late."""
    chance = random.Random(seed)
    lines = []
    for number in range(int(per_s * (BEGIN + LASTS_S - begin))):
        failed = chance.random() < fails
        lines.append((begin + number / per_s + (0 if failed else late_s), int(failed)))
    path.write_text("".join(f"{at:.3f} {failed}\n" for at, failed in sorted(lines)))
    return path


@pytest.mark.parametrize(("late_s", "is_rolled_back_in"), [(0.0, False), (5.0, True)])
def test_late_answers_look_like_failures_when_counted_as_they_end(
    tmp_path: Path, late_s: float, is_rolled_back_in: bool
) -> None:
    candidate = logged(tmp_path / "candidate", begin=BEGIN, per_s=50, late_s=late_s, fails=0.02, seed=1)
    stable = logged(tmp_path / "stable", begin=BEGIN - 20, per_s=50, late_s=late_s, fails=0.02, seed=2)
    assert bool(worst_as_ended(POLICY, [BEGIN], candidate, stable)) is is_rolled_back_in


def test_a_worse_candidate_is_rolled_back_in_whenever_its_answers_come(tmp_path: Path) -> None:
    candidate = logged(tmp_path / "candidate", begin=BEGIN, per_s=50, late_s=0, fails=0.2, seed=1)
    stable = logged(tmp_path / "stable", begin=BEGIN - 20, per_s=50, late_s=0, fails=0.02, seed=2)
    assert worst_as_ended(POLICY, [BEGIN], candidate, stable) in {"worse_than_stable", "objective_breached"}


def test_nothing_is_said_of_a_rollout_without_a_stage(tmp_path: Path) -> None:
    assert worst_as_ended(POLICY, [], tmp_path / "candidate", tmp_path / "stable") == ""
