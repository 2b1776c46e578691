"""How lists are said, and the numbers beside the sentence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rollouts.core.decision import (
    EARLIER,
    Code,
    capital,
    code_now,
    evidence_of,
    facts_of,
    is_breached,
    listed,
    sentence,
)
from tests.core.test_decide import POLICY, judged, snapshot

BAR = POLICY.bar_worse_of(POLICY.guards[0])
BELOW = math.nextafter(BAR, 0)


def test_words_and_lists() -> None:
    assert (capital("wrong answers"), capital(""), sentence("Held"), sentence("Held.")) == (
        "Wrong answers",
        "",
        "Held.",
        "Held.",
    )
    said = [listed("abcd"[:count]) for count in range(5)]
    assert said == ["", "a", "a and b", "a, b and c", "a, b, c and d"]


def test_codes_of_older_versions_are_read_as_todays() -> None:
    assert not {code.value for code in Code} & EARLIER.keys()
    assert code_now("cold_start") == "confounded" and code_now("worse_than_stable") == "worse_than_stable"
    assert {code_now(code) for code in ("", "another")} == {"", "another"}  # people's decisions have none


@pytest.mark.parametrize(
    ("worse", "over", "has_stable", "breached"),
    [
        (BAR, -2.0, True, True),
        (BELOW, -2.0, True, False),
        (BAR, -2.0, False, False),
        (-2.0, BAR, False, True),
        (-2.0, BELOW, True, False),
    ],
)
def test_a_guard_is_breached_where_one_of_its_tests_reaches_the_bar(worse, over, has_stable, breached) -> None:
    one = judged(0, log_e_worse=worse, log_e_over=over)
    assert is_breached(snapshot(has_stable=has_stable), one) is breached


def test_dry_runs_that_would_have_acted_are_told_and_others_are_not() -> None:
    dry = replace(POLICY.guards[0], is_dry_run=True)
    loud, quiet = (replace(judged(0, log_e_worse=log_e), guard=dry) for log_e in (99.0, 0.0))
    assert facts_of(snapshot(judged=(loud, judged(1))))["dry_run_breaches"] == ["errors"]
    for others in ((quiet, judged(1)), (judged(0, log_e_worse=99.0), judged(1))):
        assert "dry_run_breaches" not in facts_of(snapshot(judged=others))


def test_facts_are_rounded_alike_so_that_they_stay_small() -> None:
    one = judged(
        0,
        phi=1.23456,
        log_e_worse=2.34567,
        log_e_fine=3.45678,
        log_e_better=4.56789,
        log_e_over=5.67891,
        log_e_stable_over=6.78912,
    )
    told = evidence_of(one)
    assert [told[name] for name in ("phi", "log_e_worse", "log_e_fine")] == [1.2346, 2.3457, 3.4568]
    assert [told[name] for name in ("log_e_better", "log_e_over", "log_e_stable_over")] == [4.5679, 5.6789, 6.7891]
    facts = facts_of(snapshot(now=950.12345, all_failing=7, all_failing_s=1.23456, judged=(one,)))
    assert (facts["elapsed_s"], facts["all_failing_s"]) == (50.123, 1.235)
    assert (facts["bar_worse"], facts["bar_fine"]) == (7.4831, 2.9957)
    assert facts["guards"] == {"errors": told}
