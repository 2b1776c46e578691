"""What excuses a candidate, and when a split is off: every limit at its very edge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.decide import decide
from rollouts.core.decision import Code
from rollouts.core.evidence import Tolerance
from rollouts.core.judged import Judged
from rollouts.core.rules.confounders import is_split_off
from tests.core.test_confounders import OTHER_MIX, WORSE
from tests.core.test_decide import ALONE, POLICY, judged, snapshot

SLOW = POLICY.guards[1]
#: Tolerates exactly what stable does.
STRICT = replace(SLOW, roll_back_over=Tolerance(1.0, 0.0))


def blamed(one: Judged, **over: Any) -> str:
    """The cause or code for a candidate that this guard alone proves worse; `+ forget` if its evidence is dropped."""
    found = decide(snapshot(judged=(one,), **over))
    return found.facts.get("because", found.code.value) + (" + forget" if "forget" in found.facts else "")


@pytest.mark.parametrize(("index", "most"), [(0, 25), (1, 250)])  # of 500: 5 % of errors, half of the slow ones
def test_a_mix_explains_what_exceeds_stable_by_so_much_and_no_more(index: int, most: int) -> None:
    for bad, code in ((most, "mix_shift"), (most + 1, "worse_than_stable")):
        assert blamed(judged(index, bad_candidate=bad, bad_stable=0, log_e_worse=30.0), mix=OTHER_MIX) == code
    # It is the excess over stable that counts: 30 of 500 are 2 % more than 60 of 1500.
    assert blamed(judged(index, bad_candidate=30, bad_stable=60, log_e_worse=30.0), mix=OTHER_MIX) == "mix_shift"


def test_without_a_stable_neither_mix_nor_hardware_excuses() -> None:
    alone = {"policy": ALONE, "has_stable": False, "hardware": "other hardware", "mix": OTHER_MIX, "weight_bp": 10_000}
    found = decide(snapshot(judged=(judged(1, ALONE, bad_candidate=60, log_e_over=30.0),), **alone))
    assert found.facts["breach"] == Code.OBJECTIVE_BREACHED


def test_a_server_is_cold_until_it_has_answered_as_often_as_the_policy_says() -> None:
    assert blamed(judged(1, **WORSE), attempts_since_server=19) == "cold_start"
    assert blamed(judged(1, **WORSE), attempts_since_server=20) == "worse_than_stable"


def test_a_warm_up_lasts_for_the_time_of_the_policy_and_no_longer() -> None:
    """The policy's `cold_s` is 120, however slow the server is until then. After that, slowness is proven anew, once."""
    every = judged(1, bad_candidate=500, log_e_worse=30.0)
    new = {"attempts_since_server": 900, "first": {SLOW.name: (40, 50)}}
    assert blamed(every, served_s=119.9, **new) == "cold_start"
    assert blamed(every, served_s=120.0, **new) == "cold_start + forget"
    assert blamed(every, served_s=120.0, forgotten=1, **new) == "worse_than_stable"


def test_what_a_server_did_in_its_first_while_is_dropped_when_that_is_over() -> None:
    mild = judged(1, **WORSE)  # 12 %
    new = {"attempts_since_server": 900, "first": {SLOW.name: (40, 50)}}
    assert blamed(mild, served_s=119.9, **new) == "cold_start"
    assert blamed(mild, served_s=120.0, **new) == "cold_start + forget"
    # A server that was warm when this stage began has nothing to excuse in it.
    assert blamed(mild, served_s=120.0, step_started_at=1000.0, **new) == "worse_than_stable"
    assert blamed(mild, served_s=129.9, step_started_at=990.0, **new) == "cold_start + forget"
    assert blamed(mild, served_s=130.0, step_started_at=990.0, **new) == "worse_than_stable"


def test_a_first_attempt_tells_and_as_slow_as_tolerated_is_not_slow() -> None:
    new = {"attempts_since_server": 900, "served_s": 5.0}
    assert blamed(judged(1, **WORSE), first={SLOW.name: (1, 1)}, **new) == "cold_start"
    strict = replace(judged(1, bad_candidate=400, bad_stable=500, stable=1000, log_e_worse=30.0), guard=STRICT)
    assert blamed(strict, first={SLOW.name: (25, 50)}, **new) == "worse_than_stable"
    assert blamed(strict, first={SLOW.name: (26, 50)}, **new) == "cold_start"


def test_only_a_young_server_with_enough_recent_attempts_that_are_well_was_warming_up() -> None:
    strict = replace(judged(1, bad_candidate=400, bad_stable=500, stable=1000, log_e_worse=30.0), guard=STRICT)
    young = {"attempts_since_server": 900, "server_age_s": 299.9, "recent": {SLOW.name: (30, 60)}}
    assert blamed(strict, **young) == "cold_start + forget"
    assert "the last 60 attempts are within the tolerance" in decide(snapshot(judged=(strict,), **young)).reason
    assert blamed(strict, **young, forgotten=1) == "cold_start + forget"
    assert blamed(strict, **{**young, "server_age_s": 300.0}) == "worse_than_stable"
    assert blamed(strict, **{**young, "server_age_s": None}) == "worse_than_stable"
    assert blamed(strict, **{**young, "recent": {SLOW.name: (31, 60)}}) == "worse_than_stable"
    assert blamed(strict, **{**young, "recent": {SLOW.name: (0, 20)}}) == "cold_start + forget"
    assert blamed(strict, **{**young, "recent": {SLOW.name: (0, 19)}}) == "worse_than_stable"
    assert blamed(strict, **{**young, "recent": {}}) == "worse_than_stable"


@pytest.mark.parametrize(
    ("weight_bp", "well", "off"),
    [
        (2500, 84, 85),  # a quarter of 200, and over it 2 % and five standard deviations, sqrt(0.25 * 0.75 / 200) each
        (2500, 16, 15),
        (0, 4, 5),  # no chance in it
    ],
)
def test_a_split_is_off_beyond_two_percent_and_five_standard_deviations(weight_bp: int, well: int, off: int) -> None:
    def is_off(candidate: int, routed: int = 200, **over: Any) -> bool:
        counts = {"routed_candidate": candidate, "routed_stable": routed - candidate}
        return is_split_off(snapshot(weight_bp=weight_bp, **counts, **over))

    assert not is_off(well) and is_off(off)
    assert is_off(200) and not is_off(199, 199)  # too few
    assert not is_off(200, has_stable=False)
