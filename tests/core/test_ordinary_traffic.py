"""The benchmark of ordinary traffic: what it keeps, when it stops, and when a row holds its limit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibration.ordinary import __main__ as ordinary
from benchmarks.calibration.ordinary.fleet import of_fleet
from benchmarks.calibration.ordinary.report import in_markdown, told
from benchmarks.calibration.premises.scenario import Fault, Scenario
from benchmarks.calibration.premises.walking import Ran, ran
from rollouts.core.lifecycle import RolloutState

BROKEN = Scenario("test", "broken", 10.0, {"preset": "demo"}, horizon_s=300, faults=(Fault(0.6),))
ROW = ordinary.Row("broken", BROKEN)


def test_a_run_that_is_kept_is_not_walked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.jsonl"
    ordinary.Kept(path).walk(ROW, 3, None)
    again = ordinary.Kept(path)
    monkeypatch.setattr(ordinary, "walked", lambda *_: pytest.fail("walked again"))

    again.walk(ROW, 3, None)

    assert [one.state for one in again.of(ROW, 10, None)] == [RolloutState.ROLLED_BACK]
    assert again.of(ROW, 10, 1) == [], "another number of looks is another run"
    assert again.of(ROW, 3, None) == [], "only the runs that are asked for"


def test_a_kept_run_is_the_one_that_was_walked(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    ordinary.Kept(path).walk(ROW, 0, None)
    assert ordinary.Kept(path).of(ROW, 1, None) == [replace(ordinary.walked(ROW, 0), others={})]


def test_a_rollout_ends_alike_whether_it_is_watched_on_or_not() -> None:
    on, off = (ran(BROKEN, np.random.default_rng(7), is_watched_on=is_on) for is_on in (True, False))
    assert on.state == RolloutState.ROLLED_BACK
    assert replace(on, others={}) == replace(off, others={})


def _ended(rolled_back: int, n: int) -> list[Ran]:
    back = Ran("rolled_back", 50.0, 40.0, "worse_than_stable", 0.0, 1, (), {}, ())
    well = Ran("promoted", 2400.0, math.inf, "proven", 0.0, 0, (), {}, ())
    return [back] * rolled_back + [well] * (n - rolled_back)


@pytest.mark.parametrize(
    ("rolled_back", "n", "verdict"),
    [(4, 400, "yes"), (5, 400, "**no**"), (3, 100, "yes"), (4, 100, "**no**")],
)
def test_a_row_holds_its_limit(rolled_back: int, n: int, verdict: str) -> None:
    row = ordinary.Row("healthy", Scenario("test", "healthy", 10.0), ordinary.Limit(rolled_back=0.01))
    runs = _ended(rolled_back, n)
    assert in_markdown(row, runs).endswith(f"| ≤ 1 % | {verdict} |")
    assert (" ok " in told(row, runs)) is (verdict == "yes")


def test_a_fault_s_row_shows_both_times() -> None:
    row = ordinary.Row("fault", BROKEN, ordinary.Limit(found_s=60))
    assert in_markdown(row, _ended(100, 100)) == (
        "| fault | 100 | 40 / 40 | 50 / 50 | 100.0 % (96.4–100.0) | 95 % ≤ 60 s | yes |"
    )


def test_models_of_the_fleet_differ_and_can_be_repeated() -> None:
    first, second, again = (of_fleet(np.random.default_rng(seed)) for seed in (1, 2, 1))
    assert first == again != second
    assert all(0.05 <= of_fleet(np.random.default_rng(seed)).rate_per_s <= 50 for seed in range(50))


@pytest.mark.parametrize("run", range(2))
def test_chance_opens_nothing_into_an_outage_at_two_requests_a_second(run: int) -> None:
    """Of the candidate's ten newest attempts few fail now and then, also if 60 % of all requests do."""
    name = "J8 outage: 60% of all requests fail wherever they go for 10 min, 2/s"
    row = next(one for one in ordinary.rows() if one.name == name)

    ended = ordinary.walked(replace(row, scenario=replace(row.scenario, horizon_s=660)), run)

    assert ended.stages == (0.0,)
