"""The calibration simulates the product and nothing else: sampled runs walked through decide() end alike, at the same second."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.calibration.cells import EIGHT, FIVE, HELD, NORMAL, OBJECTIVES, RAMP, TAIL, cells
from benchmarks.calibration.product import LIVE, PROMOTED, ROLLED_BACK
from benchmarks.calibration.simulate import Cell, Told, measured, simulate
from benchmarks.calibration.traffic import Clump, Latency, Scenario
from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.decision import Action, Code
from rollouts.core.replay import Walk, walk

pytestmark = pytest.mark.slow
SHORT = {"preset": "fast", "bake": {"min_s": 60, "min_samples": 100, "deadline_s": 1800}}
SCENARIOS: dict[str, tuple[Scenario, dict, int]] = {
    "healthy": (Scenario(200, 10), SHORT, 400),
    "thin": (Scenario(20, 1, bad=0.05), HELD, 300),
    "two per cent": (Scenario(200, 10, bad=0.02), HELD, 250),
    "all fail": (Scenario(20, 1, bad=1.0), HELD, 60),
    "most fail, late": (Scenario(600, 30, bad=0.6, onset_s=100), HELD, 150),
    "most fail for a while in both arms": (Scenario(60, 30, incident=0.7, incident_within_s=30), SHORT, 200),
    "clumps of 8": (Scenario(200, 10, clump=EIGHT), HELD, 250),
    "clumps at one a second": (Scenario(20, 1, clump=FIVE), HELD, 250),
    "incident": (Scenario(200, 10, incident=0.5, incident_within_s=60), SHORT, 300),
    "swings": (Scenario(1000, 10, swings=True), RAMP, 250),
    "late": (Scenario(200, 10, bad=0.05, onset_s=150), HELD, 250),
    "harder mix, told by size": (Scenario(2000, 100, hard=(0.1, 0.4)), SHORT, 200),
    "harder mix, just so": (Scenario(2000, 100, hard=(0.1, 0.2)), SHORT, 200),
    "budget": (Scenario(2000, 100, bad=0.01), SHORT | {"budget_bad": 5}, 150),
    "slow tail": (Scenario(200, 10, latency=NORMAL, slower=TAIL), HELD, 120),
    "latency alike": (Scenario(200, 10, latency=NORMAL, clump=Clump(2)), HELD, 120),
}


def walked(policy, told: Told) -> list[Walk]:
    """Every tick of the same traffic through the product's own walk; weights must be those of the simulation."""

    def feed(tick: int, weight_bp: int) -> Arms | None:
        if tick > len(told.seconds):
            return None
        assert weight_bp == told.weights_bp[tick - 1]
        candidate, stable, bad = told.seconds[tick - 1]
        return Arms(
            Counts(candidate, candidate, {name: x for name, (x, _) in bad.items()}),
            Counts(stable, stable, {name: x for name, (_, x) in bad.items()}),
        )

    before = [Arms(stable=Counts(attempts, attempts, bad)) for attempts, bad in told.before]
    return list(walk(policy, feed, before=before))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_run_ends_as_the_real_decisions_end_it(name: str) -> None:
    scenario, policy, horizon_s = SCENARIOS[name]
    objectives = OBJECTIVES if scenario.latency else {}
    cell = Cell("test", name, scenario.server_per_s, scenario, policy, horizon_s, objectives=objectives)
    story = simulate(cell, 12, tell=12)
    for i, told in enumerate(story.told):
        *_, last = ticks = walked(cell.parsed(), told)
        state = {Action.ROLL_BACK: ROLLED_BACK, Action.PROMOTE: PROMOTED}.get(last.decision.action, LIVE)
        assert (state, last.tick) == (story.product.state[i], len(told.seconds)), last.decision
        if state == ROLLED_BACK:
            assert last.decision.code == story.product.code[i]
        said = {tick.decision.code for tick in ticks}
        assert (Code.BOTH_ARMS_BAD in said) == story.product.was_frozen[i]
        assert (Code.CONFOUNDED in said) == story.product.was_excused[i]


def test_scenarios_bring_every_way_to_end() -> None:
    """Otherwise the agreement above would say little."""
    codes, states = set(), set()
    for name in (
        "healthy",
        "two per cent",
        "all fail",
        "most fail, late",
        "clumps at one a second",
        "incident",
        "thin",
    ):
        scenario, policy, horizon_s = SCENARIOS[name]
        product = simulate(Cell("test", name, scenario.server_per_s, scenario, policy, horizon_s), 40).product
        codes |= set(product.code[product.state == ROLLED_BACK])
        states |= set(product.state.tolist())
        assert name != "incident" or product.was_frozen.any()
    assert states == {LIVE, PROMOTED, ROLLED_BACK}
    assert {Code.WORSE_THAN_STABLE, Code.OBJECTIVE_BREACHED, Code.MOSTLY_FAILING} <= codes


def test_healthy_rollouts_are_promoted_and_bad_ones_rolled_back_in() -> None:
    for bad, end in ((None, PROMOTED), (0.05, ROLLED_BACK)):
        product = simulate(Cell("test", "ends", 10, Scenario(100, 10, bad=bad), {"preset": "fast"}, 1800), 40).product
        assert (product.state == end).all()


def test_simulated_traffic_has_the_shares_that_it_states() -> None:
    from benchmarks.calibration.traffic import Traffic

    for scenario, expected in (
        (Scenario(200, 10, base=0.01), 0.01),
        (Scenario(200, 10, base=0.01, clump=EIGHT), 0.01),
        (Scenario(200, 10, base=0.01, clump=FIVE), 0.01),
        (Scenario(200, 10, hard=(0.1, 0.1)), 0.005),
    ):
        traffic = Traffic(scenario, 400, np.random.default_rng(7))
        seconds = [traffic.second(float(at), np.full(400, 0.05)) for at in range(1, 101)]
        bad = sum(second.bad["errors"][1].sum() for second in seconds)
        attempts = sum(second.stable.sum() for second in seconds)
        assert bad / attempts == pytest.approx(expected, rel=0.05)
        assert attempts / 400 / 100 == pytest.approx(190, rel=0.02)


def test_slow_shares_follow_the_lognormal() -> None:
    assert Latency(median_ms=100).over(100) == pytest.approx(0.5)
    assert NORMAL.over(250) == pytest.approx(0.0053, abs=1e-4)
    assert TAIL.over(250) > 5 * NORMAL.over(250)


def test_other_rules_find_what_they_say() -> None:
    """All fail from the start: at the first bad minute, the fourth, the check after the fifth, the third in a row, the first look."""
    cell = Cell("test", "all", 10, Scenario(200, 10, bad=1.0), HELD, 400)
    medians = {name: rule["delay_s"][0] for name, rule in measured(cell, 20)["rules"].items()}
    assert medians.pop("sluicegate") <= 2
    assert medians == {"argo_0": 60, "argo_3": 240, "flagger_5": 360, "row_3": 180, "z_test": 60}


def test_cells_are_named_apart_and_can_be_read() -> None:
    all_of_them = cells()
    assert len({cell.name for cell in all_of_them}) == len(all_of_them)
    for cell in all_of_them:
        policy = cell.parsed()
        assert cell.horizon_s % 60 == 0 and policy.guards
        assert cell.counter in {point for guard in policy.guards for point in guard.points}


def test_a_cell_is_seeded() -> None:
    cell = Cell("test", "seed", 10, Scenario(200, 10, bad=0.05), HELD, 120)
    assert measured(cell, 10) == measured(cell, 10)
