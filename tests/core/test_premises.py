"""The scenarios that break a premise: traffic is counted as it is said to be, and runs are told as they went."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import real_premises
from benchmarks.calibration.cells import cells
from benchmarks.calibration.premises.gateway import (
    AGAIN,
    ATTEMPTS,
    ENDED,
    ERRED,
    FAILED,
    LONGEST_S,
    Gateway,
    delays,
    usual_s,
)
from benchmarks.calibration.premises.measured import measured, quantiles, walked
from benchmarks.calibration.premises.page import write_page
from benchmarks.calibration.premises.scenario import Answers, BadClient, Cold, Fault, Scenario, Wander
from benchmarks.calibration.premises.scenarios import SHORT, scenarios
from benchmarks.calibration.premises.tables import TITLES, of_group
from benchmarks.calibration.premises.walking import OTHERS, Ran, Run
from benchmarks.calibration.premises.world import CANDIDATE, STABLE, Begun, World
from benchmarks.calibration.traffic import Latency, Spells
from registry.core.contract import OBJECTIVES
from registry.core.schema import Problem

FAST = {"preset": "fast", "bake": SHORT}
PLAIN = Scenario("test", "plain", 10.0, FAST, horizon_s=600)


AT_ONCE = Answers()


def gateway(answers: Answers = AT_ONCE, late_s: float = 0.0, **more: bool) -> Gateway:
    """A gateway with a seed; nothing is retried or timed unless asked for."""
    return Gateway(answers, late_s, np.random.default_rng(1), **{"is_timed": False, "is_retrying": False} | more)


def world(scenario: Scenario, seed: int = 1, first_frac: float = 0.05) -> World:
    return World(scenario, np.random.default_rng(seed), first_frac)


# --- when attempts end ------------------------------------------------------------------------------------------------


def test_answers_end_so_many_seconds_later() -> None:
    assert delays(0, 0).tolist() == [1]
    assert delays(5, 0).tolist() == [0, 0, 0, 0, 0, 1]
    assert delays(0.5, 0).tolist() == [0.5, 0.5]
    spread = delays(2, 1)
    assert spread.sum() == pytest.approx(1)
    assert len(spread) <= LONGEST_S
    # of half of them X <= 2, and they begin half a second into their second on average
    assert np.cumsum(spread)[2] == pytest.approx(0.56, abs=0.03)


def test_requests_count_for_the_weight_under_which_they_began() -> None:
    one = gateway(Answers(ok_s=3))
    one.told(0, 0.5, 1)
    assert one.follows(0)
    one.begin(1, CANDIDATE, Begun(ok=7, own=2), 0)
    one.end(1)
    assert one.ended(1, CANDIDATE)[[ENDED, FAILED]].tolist() == [2, 2], "failures end at once"
    one.told(2, 0.9, 2)
    assert one.follows(2)
    for at in (2, 3, 4):
        one.end(at)
    assert one.ended(1, CANDIDATE)[[ENDED, FAILED]].tolist() == [9, 2]
    assert one.ended(2, CANDIDATE).sum() == 0
    assert one.ended(9, CANDIDATE).tolist() == one.ended(1, CANDIDATE).tolist(), "slots are used again"


def test_a_late_gateway_keeps_its_weight() -> None:
    one = gateway(late_s=30)
    one.told(0, 0.05, 1)
    assert not one.follows(29)
    assert (one.weight, one.slot) == (0.0, 0)
    assert one.follows(30)
    assert (one.weight, one.slot) == (0.05, 1)


def test_a_retried_failure_is_one_request_of_its_arm_and_an_attempt_of_stable() -> None:
    one = gateway(Answers(ok_s=2), is_retrying=True)
    one.begin(1, CANDIDATE, Begun(ok=10, own=3, poison=2), 2)
    one.end(1)
    # what fails again has ended; what stable answers has not
    assert one.ended(0, CANDIDATE)[[ENDED, FAILED, AGAIN, ATTEMPTS, ERRED]].tolist() == [2, 2, 2, 5, 5]
    assert one.ended(0, STABLE)[[ENDED, ATTEMPTS, ERRED]].tolist() == [0, 2, 2]
    one.end(2)
    one.end(3)
    assert one.ended(0, CANDIDATE)[[ENDED, FAILED, AGAIN, ATTEMPTS, ERRED]].tolist() == [15, 5, 2, 15, 5]
    assert one.ended(0, STABLE)[[ENDED, ATTEMPTS, ERRED]].tolist() == [0, 5, 2]


def test_the_longest_usual_answer_is_that_of_the_slower_release_once_enough_of_its_answers_were_seen() -> None:
    one = gateway(Answers(ok_s=4, candidate_times=2))
    for at, (arm, ok) in enumerate([(STABLE, 99), (STABLE, 1), (CANDIDATE, 99), (CANDIDATE, 1)], 1):
        one.begin(at, arm, Begun(ok=ok), 0)
    found = []
    for at in range(1, 13):
        one.end(at)
        found.append(one.answer_s())
    assert found == [0] * 5 + [5] * 6 + [10], "the edges that a gateway counts at"
    assert usual_s(2, 1.0) == 30, "of lognormal ones with a median of 2 s, 1 % take longer than 20.5 s"


def test_readings_hold_what_the_judgement_asks_for() -> None:
    """Requests that stable could save and those that fail anywhere; what stands under the other slots."""
    one = gateway(is_retrying=True)
    one.told(0, 0.1, 1)
    one.follows(0)
    one.begin(1, CANDIDATE, Begun(ok=10, own=3, poison=2), 2)
    one.begin(1, STABLE, Begun(ok=100), 0)
    one.end(1)
    one.told(1, 0.2, 2)
    one.follows(1)
    one.begin(2, CANDIDATE, Begun(ok=1), 0)
    one.end(2)
    now = one.reading(2.0)
    assert (now.slot, now.candidate.attempts, now.stable.attempts) == (2, 1, 0)
    one.slot = 1
    assert dict(one.reading(2.0).candidate.bad) == {"errors": 5, "common": 2, "saved": 3, "shed": 0, "timed": 15}
    assert one.reading(2.0).others[2][0].attempts == 1
    one.is_retrying = False
    assert one.reading(2.0).candidate.bad["saved"] == 0


# --- what begins ------------------------------------------------------------------------------------------------------


def shares(scenario: Scenario, *, seeds: int = 20, frac: float = 0.5, after: int = 0) -> tuple[float, float]:
    """Of everything that begins, the failing share of each arm."""
    bad, attempts = np.zeros(2), np.zeros(2)
    for seed in range(seeds):
        one = world(scenario, seed)
        for at in range(after + 1, scenario.horizon_s + 1):
            for arm, begun in enumerate(one.begun(at, 0, frac)):
                bad[arm] += begun.own + begun.poison
                attempts[arm] += begun.own + begun.poison + begun.ok
    return tuple(bad / attempts)


def test_shares_are_those_that_are_stated() -> None:
    base = replace(PLAIN, horizon_s=100)
    assert shares(base) == pytest.approx((0.005, 0.005), rel=0.15)
    assert shares(replace(base, candidate_base=0.02)) == pytest.approx((0.02, 0.005), rel=0.15)
    assert shares(replace(base, poison=0.01)) == pytest.approx((0.015, 0.015), rel=0.15)
    assert shares(replace(base, faults=(Fault(0.045),))) == pytest.approx((0.05, 0.005), rel=0.15)
    assert shares(replace(base, faults=(Fault(0.045, clump=30),))) == pytest.approx((0.05, 0.005), rel=0.2)
    assert shares(replace(base, faults=(Fault(0.045, is_shared=True),))) == pytest.approx((0.05, 0.05), rel=0.15)
    spells = replace(base, horizon_s=300, spells=Spells(0.5, 10, 100))  # one second in eleven
    assert shares(spells) == pytest.approx((0.05, 0.05), rel=0.15)


def test_faults_come_and_go() -> None:
    flicker = Fault(1.0, every_s=30, on_s=1)
    assert [at for at in range(100) if flicker.at(at)] == [1, 31, 61, 91]
    growing = Fault(0.5, grows=0.01)
    assert [growing.at(60), growing.at(600), growing.at(6000)] == pytest.approx([0.01, 0.1, 0.5])
    assert Fault(0.5).at(0) == 0
    one = world(replace(PLAIN, faults=(Fault(0.1, 300, in_bake=True),)))
    assert one.onset_at == math.inf
    one.bake_at = 100.0
    assert one.onset_at == 400.0


def test_a_bad_client_meets_both_arms_or_one() -> None:
    client = BadClient(50, 5, (100, 100))
    split = replace(PLAIN, base=(0.0,), bad_client=client)
    both, whole = world(split), world(replace(split, bad_client=replace(client, is_sticky=True)))
    found = [[sum(begun.poison for begun in both.begun(at, 0, 0.5)) for at in range(1, 600)]]
    assert sum(found[0]) % 100 == 0
    assert sum(found[0]) > 0
    for at in range(1, 600):
        assert 0 in [begun.poison for begun in whole.begun(at, 0, 0.5)]


def test_servers_wander_around_what_is_usual() -> None:
    calm = replace(PLAIN, rate_per_s=100.0, horizon_s=400, latency=Latency(), wander=Wander(1e-9, 30))
    wild = replace(calm, wander=Wander(0.2, 30))
    slow = []
    for scenario in (calm, wild):
        worlds = [world(scenario, seed) for seed in range(3)]
        begun = [one.begun(at, 0, 0.5)[STABLE] for one in worlds for at in range(1, 400)]
        assert all(list(one.over) == sorted(one.over, reverse=True) for one in begun)
        slow.append(sum(one.over[-1] for one in begun) / sum(one.ok for one in begun))
    assert slow[0] == pytest.approx(Latency().over(250), rel=0.15)
    assert slow[1] > 1.3 * slow[0], "the tail gains more from slow servers than it loses by fast ones"


def test_a_new_server_is_slow_at_first() -> None:
    one = world(replace(PLAIN, latency=Latency(), cold=Cold(1.0, 3)))
    for at in (1, 3):
        candidate, stable = one.begun(at, 0, 0.5)
        assert candidate.over[-1] == candidate.ok > 0
        assert stable.over[-1] < stable.ok / 4
    candidate, _ = one.begun(4, 0, 0.5)
    assert candidate.over[-1] < candidate.ok / 4


def test_the_first_reading_finds_requests_under_way() -> None:
    """Else the warm-up would begin with failures alone, and stable would look as if it scattered."""
    run = Run(replace(PLAIN, rate_per_s=100.0, answers=Answers(5)), np.random.default_rng(1))
    run.warm_up()
    state = run.engine.engine_state
    assert state.total.stable.attempts / (PLAIN.warm_s - 1) == pytest.approx(1000, rel=0.02)
    assert state.total.candidate.attempts == 0
    assert state.watches["errors"].dispersion.phi("errors") < 1.6


def test_compared_answers_reach_their_guard() -> None:
    policy = {"preset": "fast", "guards": [{"indicator": "errors"}, {"indicator": "wrong"}]}
    wrong = replace(PLAIN, policy=policy, compared_per_s=5.0, wrong=(0.5, 0.0))
    assert not wrong.is_healthy
    (one,) = walked(wrong, 0, 1)
    assert one.state == "rolled_back"
    assert one.ended_at < 60


# --- whole runs -------------------------------------------------------------------------------------------------------


def test_runs_end_as_they_must() -> None:
    healthy = walked(PLAIN, 0, 3)
    assert {(one.state, one.code) for one in healthy} == {("promoted", "proven")}
    bad = walked(replace(PLAIN, faults=(Fault(0.5, 20, in_bake=True),)), 0, 3)
    for one in bad:
        assert one.state == "rolled_back"
        assert one.onset_at == one.stages[-1] + 20
        assert 0 < one.ended_at - one.onset_at < 60
        assert one.bad >= 5
        assert math.isfinite(one.others["flagger_5"]), "the others watch on"


def test_a_candidate_without_a_server_is_gone_only_where_that_is_seen() -> None:
    fault = Fault(1.0, 30, every_s=60, on_s=1)
    seen = walked(replace(PLAIN, faults=(replace(fault, is_seen=True),)), 0, 2)
    assert {(one.code, one.ended_at <= 32) for one in seen} == {("servers_gone", True)}
    assert "servers_gone" not in {one.code for one in walked(replace(PLAIN, faults=(fault,)), 0, 2)}


def test_runs_are_seeded_one_by_one() -> None:
    brief = replace(PLAIN, horizon_s=90, faults=(Fault(0.02),))
    assert walked(brief, 0, 4) == walked(brief, 0, 1) + walked(brief, 1, 3)


def test_scenarios_are_named_apart_and_can_be_walked() -> None:
    found = scenarios()
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert one.parsed().guards
        assert one.horizon_s % 60 == 0
        assert len(one.base) == len(one.late_s)


def test_objectives_are_written_as_models_write_them() -> None:
    """The policy ignores what it does not know: a misspelt objective would be none."""
    stated = [one.objectives for one in (*scenarios(), *cells())]
    for objectives in (*stated, real_premises.OBJECTIVES):
        problems: list[Problem] = []
        OBJECTIVES.read(objectives, "", problems)
        assert not problems, objectives


def test_the_kept_results_are_of_these_scenarios() -> None:
    kept = json.loads((Path(__file__).resolve().parents[2] / "docs" / "premises.json").read_text())
    assert [f"{one['group']}/{one['kind']}/{one['rate_per_s']:g}" for one in kept["scenarios"]] == [
        one.name for one in scenarios()
    ]


def told(ended_at: float, state: str, onset_at: float = 100.0, other: float = math.inf) -> Ran:
    away_at = ended_at if state == "rolled_back" else math.inf
    return Ran(state, ended_at, away_at, "code", onset_at, 5, (), dict.fromkeys(OTHERS, other), (0.0,))


def test_what_fires_before_the_fault_is_no_detection() -> None:
    faulty = replace(PLAIN, faults=(Fault(0.5, 100),))
    runs = [
        told(110, "rolled_back"),
        told(90, "rolled_back", other=120),
        told(500, "promoted"),
        told(130, "rolled_back"),
    ]
    rules = measured(faulty, runs)["rules"]
    ours, argo = rules["sluicegate"], rules["argo_0"]
    assert (ours["false"]["count"], ours["missed"]["count"], ours["missed"]["n"]) == (1, 1, 3)
    assert ours["delay_s"] == [30, None]
    assert (argo["false"]["count"], argo["missed"]["count"]) == (0, 3)
    healthy = measured(PLAIN, runs)
    assert healthy["rules"]["sluicegate"]["false"]["count"] == 3
    assert healthy["promoted"]["count"] == 1
    assert healthy["reasons"] == {"code": 3}


def test_quantiles_are_never_where_the_run_is() -> None:
    assert quantiles([1, 2, math.inf]) == [2, None]
    assert quantiles([]) == [None, None]


def test_tables_have_a_row_for_every_scenario() -> None:
    faulty = replace(PLAIN, group="fault", kind="half fail", faults=(Fault(0.5, 100),))
    healthy = replace(PLAIN, group="lag", kind="no lag")
    found = [measured(faulty, [told(110, "rolled_back")]), measured(healthy, [told(400, "promoted")])]
    said = of_group(found)
    assert "| half fail | 10 | 1 | 10 / 10 s | 5 / 5 | 0 % (0–97.5) |" in said
    assert "| no lag | 10 | 1 | 0 % (0–97.5) | – | 100 % |" in said
    assert said.index("no lag") < said.index("half fail")  # the healthy have a table of their own, which comes first
    assert {one.group for one in scenarios()} == set(TITLES)


def test_the_page_has_a_place_for_every_group(tmp_path: Path) -> None:
    """The words stay, and the figures are made anew."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "premises.md").read_text()
    assert set(re.findall("<!-- begin ([^>]*) -->", text)) == {"made by", "summary", *TITLES}
    faulty = replace(PLAIN, group="fault", kind="half fail", faults=(Fault(0.5, 100),))
    found = [measured(faulty, [told(math.inf, "baking")]), measured(PLAIN, [told(110, "rolled_back")])]
    page = tmp_path / "premises.md"
    page.write_text(text)
    write_page({"command": "x", "seed": 1, "numpy": "2", "took_s": 60, "scenarios": found}, page)
    said = page.read_text()
    assert "`x` · 2 rollouts in 2 scenarios · seed 1 · numpy 2 · 1 minutes" in said
    assert "in 0 of 1 scenarios. Not in: test, plain at 10/s: 100 %." in said
    assert "| half fail | 10 | 1 | never / never s |" in said
    assert "## How to read the tables" in said
