"""The hard rule for the obvious: a candidate that does nothing but fail is taken back, one that had a bad moment is not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from rollouts.core.counter_deltas import COMMON, ERRORS, SAVED, Arms, Counts
from rollouts.core.decision import Action, Code, Decision
from rollouts.core.engine_state import EngineState
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import Walk, walk
from rollouts.core.rules.all_failing import CHANCE, SILENT_FOR_S, AllFailing, is_silent
from rollouts.core.rules.servers_gone import CandidateServers
from tests.support.worlds.snapshots import keeping

#: Guards that nothing can breach, so that only the hard rule speaks.
DEAF = {"indicator": "errors", "max_frac": 1.0, "roll_back_over": {"ratio": 100, "plus_frac": 1.0}}
STABLE = (16, 0)
Ticks = Sequence[tuple[int, int]]  # attempts and errors of one arm in each tick


def walked(candidate: Ticks, stable: Ticks | None = None, *, tick_s: float = 1.0, **policy: object) -> list[Walk]:
    plan = parse_policy({"guards": [DEAF], "budget_bad": None, **policy})
    beside = stable or [STABLE] * len(candidate)

    def feed(tick: int, weight_bp: int) -> Arms | None:
        if tick > len(candidate):
            return None
        return Arms(*(Counts(n, n, {ERRORS: bad}) for n, bad in (candidate[tick - 1], beside[tick - 1])))

    return list(walk(plan, feed, tick_s=tick_s))


def last(walks: list[Walk]) -> Decision:
    return walks[-1].decision


def test_a_candidate_that_fails_throughout_is_rolled_back_in_at_the_second_reading_that_shows_it() -> None:
    walks = walked([(6, 0), (6, 0), (6, 3), (6, 6), (6, 6), (6, 6)])
    assert (last(walks).action, last(walks).code) == (Action.ROLL_BACK, Code.ALL_FAILING)
    assert walks[-1].tick == 5 and "The last 12 attempts" in last(walks).reason


@pytest.mark.parametrize("batch", [8, 16, 500])
@pytest.mark.parametrize("preset", ["standard", "demo"])
def test_one_poisoned_batch_is_one_event_however_large(batch: int, preset: str) -> None:
    alone = [(5, 0), (batch, batch), *[(5, 0)] * 5]
    among_others = [(5, 0), (batch + 3, batch), *[(5, 0)] * 5]
    then_quiet = [(5, 0), (batch, batch), *[(0, 0)] * 20, (5, 0)]
    for ticks in (alone, among_others, then_quiet):
        assert {walk.decision.action for walk in walked(ticks, preset=preset)} == {Action.HOLD}


def test_a_success_between_two_poisoned_batches_ends_the_row() -> None:
    assert last(walked([(16, 16), (1, 0), (16, 16), (17, 16), (16, 16)])).action is Action.HOLD


def test_a_refused_candidate_that_the_gateway_keeps_setting_aside_is_rolled_back_in() -> None:
    """Five failures, then nothing while it is set aside: quiet readings neither break nor extend the row."""
    quiet = [(0, 0)] * 3
    walks = walked([(5, 5), *quiet, (5, 5), *quiet])
    assert last(walks).code is Code.ALL_FAILING and walks[-1].tick == 5
    assert last(walked([(5, 5), *quiet, (4, 4), *quiet])).action is Action.HOLD  # nine are not ten
    assert last(walked([(5, 5), *quiet, (5, 4), *quiet])).action is Action.HOLD


def test_the_row_may_be_shorter_where_the_policy_says_so() -> None:
    assert last(walked([(3, 3), (2, 2)], preset="demo")).code is Code.ALL_FAILING
    assert last(walked([(3, 3), (2, 2)], preset="standard")).action is Action.HOLD


def test_early_looks_do_not_make_one_event_two() -> None:
    """Two readings 0.2 s apart may show the two halves of one batch; a later one that still shows only failures tells."""
    walks = walked([(8, 8), (8, 8)], tick_s=0.2)
    assert last(walks).action is Action.HOLD
    assert last(walked([(8, 8), (8, 8), (1, 1)], tick_s=0.21)).code is Code.ALL_FAILING


def test_stable_failing_likewise_is_nobodys_fault_until_it_recovers() -> None:
    bad = [(10, 10)] * 4
    held = walked(bad, [(16, 16)] * 4)
    assert (last(held).action, last(held).code) == (Action.HOLD, Code.BOTH_ARMS_BAD)
    assert last(walked([*bad, (10, 10)], [*[(16, 16)] * 4, STABLE])).code is Code.ALL_FAILING
    nearly = walked(bad, [(16, 15)] * 4)
    assert last(nearly).code is Code.BOTH_ARMS_BAD  # four good ones of sixty-four are no clear difference
    assert last(walked(bad, [(16, 8)] * 4)).code is Code.ALL_FAILING


def test_one_callers_burst_that_hits_both_arms_is_nobodys_fault() -> None:
    """The candidate's few attempts are all the caller's; stable, with its many others, looks the better only by its size."""
    quiet, burst = [(0, 0), (1, 0)] * 5, [(3, 3), (4, 4), (4, 4)]
    walks = walked([*quiet, *burst], [*[(4, 0)] * 10, *[(60, 57)] * 3])
    assert (last(walks).action, last(walks).code) == (Action.HOLD, Code.BOTH_ARMS_BAD)


def test_what_stable_cannot_save_either_makes_no_row() -> None:
    """A caller whose requests happen to be drawn for the candidate fails on stable too: second attempts tell."""

    def row(common: int) -> AllFailing:
        bad = {ERRORS: 10, COMMON: common, SAVED: 10 - common}
        counts = Arms(Counts(10, 10, bad), Counts(30, 30, {ERRORS: 0, COMMON: 0}))
        return AllFailing().after(1.0, counts).after(2.0, counts)

    assert (row(10).own, row(10).is_stable_better) == (0, False)
    assert (row(0).own, row(0).good, row(0).is_stable_better) == (20, 80, True)


def test_stable_that_nobody_asked_meanwhile_is_known_by_the_second_attempts() -> None:
    alone = Arms(Counts(10, 10, {ERRORS: 10, SAVED: 10}), Counts())
    assert AllFailing().after(1.0, alone).is_stable_better
    untold = Arms(Counts(10, 10, {ERRORS: 10, COMMON: 0}), Counts())
    assert not AllFailing().after(1.0, untold).is_stable_better


def test_stable_is_as_clearly_better_when_most_attempts_are_the_candidates() -> None:
    """In the bake stable has a twentieth of them."""
    for own, good in ((57, 3), (95, 5), (9500, 500)):
        assert AllFailing(own, 0.0, 1.0, own, good, 0).is_stable_better
    assert not AllFailing(95, 0.0, 1.0, 95, 1, 0).is_stable_better  # one good one may be chance
    own, good, bad = 30, 4, 20  # the tail in whole numbers
    told = math.comb(own + bad, own) / math.comb(own + bad + good, own) <= CHANCE
    assert AllFailing(own, 0.0, 1.0, own, good, bad).is_stable_better is told


def test_the_row_survives_json() -> None:
    row = AllFailing()
    for at, failed in ((3.5, 4), (4.25, 2)):
        row = row.after(at, Arms(Counts(failed, failed, {ERRORS: failed}), Counts(8, 8, {ERRORS: 1})))
    assert (row.attempts, row.spread_s, row.good, row.bad) == (6, 0.75, 14, 2)
    kept = keeping(row, CandidateServers(7.0, has_failed=True), asked_at=1.0)
    assert EngineState.from_json(json.loads(json.dumps(kept.to_json()))) == kept


@pytest.mark.parametrize(
    ("attempts", "over_s", "quiet_s", "silent"),
    [
        (100, 10.0, 0.3, True),  # three were due
        (100, 10.0, 0.2, False),
        (100, 10.0, 0.0, False),
        (5, 10.0, 5.0, False),  # one in two seconds may well not come
        (100, 10.0, SILENT_FOR_S + 1, False),  # it answers slowly, and is looked at as often as any other
        (0, 0.0, 5.0, False),  # nobody has asked it yet
    ],
)
def test_a_candidate_is_silent_when_several_attempts_were_due_and_none_ended(
    attempts: int, over_s: float, quiet_s: float, silent: bool
) -> None:
    assert is_silent(attempts, over_s, quiet_s) is silent
