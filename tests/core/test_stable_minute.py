"""Stable's last minute: when it is over its objective, for how long, and what of an incident is kept."""

from __future__ import annotations

import pytest

from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.decision import EXCUSES, Action, Code
from rollouts.core.dispersion import Dispersion
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import Walk, walk
from rollouts.core.stable_minute import PART_S, StableMinute

LIMIT = 0.013
POLICY = parse_policy({"preset": "standard"})
CLEAN = Dispersion()


def after(minute: StableMinute, seconds: int, bad: float, attempts: int = 100, since: int = 0) -> StableMinute:
    """So many more seconds of these counts, from second `since` on."""
    for at in range(since, since + seconds):
        minute = minute.after(float(at), bad, attempts, name="errors", limit=LIMIT, dispersion=CLEAN)
    return minute


def test_only_the_last_minute_counts() -> None:
    minute = after(after(StableMinute(), 100, bad=0), 60, bad=1, since=100)
    assert (minute.attempts, minute.bad) == (6000, 60)
    silent = minute.after(1000.0, 0, 100, name="errors", limit=LIMIT, dispersion=CLEAN)
    assert (silent.attempts, silent.bad, silent.share) == (100, 0, 0)


def test_stable_is_over_from_ten_to_one_until_the_share_is_within_the_objective() -> None:
    calm = after(StableMinute(), 60, bad=1)
    assert not calm.is_over
    burning = after(calm, 5, bad=20, since=60)
    assert burning.is_over and not burning.has_lasted
    assert after(burning, 55, bad=0, since=65).is_over  # its share is 1.6 % still
    assert not after(burning, 60, bad=0, since=65).is_over


def test_a_few_failures_among_few_attempts_are_no_incident() -> None:
    assert not after(StableMinute(), 60, bad=0.04, attempts=1).is_over  # 2 of 60


def test_an_incident_lasts_when_several_parts_of_the_minute_are_over() -> None:
    calm = after(StableMinute(), 60, bad=0)
    assert not after(calm, int(3 * PART_S), bad=20, since=60).has_lasted
    assert after(calm, int(4 * PART_S), bad=20, since=60).has_lasted
    clump = after(after(calm, 1, bad=100, since=60), 30, bad=0, since=61)
    assert clump.is_over and not clump.has_lasted  # one instant, with any number of failures


def test_it_survives_json() -> None:
    minute = after(after(StableMinute(), 60, bad=0), 30, bad=20, since=60)
    assert StableMinute.from_json(minute.to_json()) == minute
    assert StableMinute.from_json(()) == StableMinute()


# --- in a rollout -----------------------------------------------------------------------------------------------------


def told(
    seconds: int, shares: dict[range, tuple[float, float]], per_s: int = 200, *, is_common: bool = False
) -> list[Walk]:
    """A walk in which both arms fail .5 %, and in these seconds besides (candidate, stable) shares, in whole counts. `is_common`: all
    failures are of requests that fail wherever they go."""
    owed = [0.0, 0.0]

    def feed(tick: int, weight_bp: int) -> Arms | None:
        if tick > seconds:
            return None
        more = next((share for when, share in shares.items() if tick in when), (0.0, 0.0))
        arms = []
        for arm, part in enumerate((weight_bp / 10_000, 1 - weight_bp / 10_000)):
            attempts = round(per_s * part)
            owed[arm] += attempts * (0.005 + more[arm])
            bad, owed[arm] = int(owed[arm]), owed[arm] % 1
            arms.append(Counts(attempts, attempts, {"errors": bad, **({"common": bad} if is_common else {})}))
        return Arms(*arms)

    return list(walk(POLICY, feed))


def codes(walks: list[Walk], when: range) -> set[Code]:
    return {one.decision.code for one in walks if one.tick in when}


def test_a_shared_incident_holds_while_it_lasts_and_a_minute_more() -> None:
    walks = told(900, {range(60, 360): (0.3, 0.3)})
    assert codes(walks, range(80, 360)) == {Code.BOTH_ARMS_BAD}
    after_it = codes(walks, range(425, 901))
    assert Code.BOTH_ARMS_BAD not in after_it and Code.PROVEN in after_it


def test_evidence_begins_afresh_when_the_incident_is_over() -> None:
    walks = told(500, {range(60, 260): (0.3, 0.3)})
    errors = {one.tick: one.judged[0] for one in walks}
    assert errors[310].rate_candidate > 0.1
    assert errors[340].rate_candidate < 0.01 and errors[340].candidate < errors[310].candidate


def test_an_incident_of_stable_alone_leaves_no_scatter_behind() -> None:
    walks = told(1400, {range(100, 220, 2): (0.0, 0.4), range(1000, 1400): (0.05, 0.0)})
    errors = {one.tick: one.judged[0] for one in walks}
    assert errors[215].phi > 10 and errors[300].phi == 1
    end = walks[-1]
    assert end.decision.code in {Code.WORSE_THAN_STABLE, Code.OBJECTIVE_BREACHED} and end.tick < 1060


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_nothing_opens_into_an_outage_of_most_requests(share: float) -> None:
    walks = told(1500, {range(160, 460): (share, share)}, is_common=True)
    assert codes(walks, range(168, 460)) == {Code.BOTH_ARMS_BAD}
    held = next(one.decision for one in walks if one.tick == 300)
    assert held.action is Action.HOLD and "most requests fail" in held.reason
    assert codes(walks, range(475, 1501)) >= {Code.PROVEN} and not codes(walks, range(475, 1501)) & EXCUSES
    errors = {one.tick: one.judged[0] for one in walks}
    assert errors[480].bad_candidate < 10  # nothing of the outage is kept


def test_a_caller_that_always_fails_holds_nothing() -> None:
    for per_s in (20, 200):
        walks = told(1500, {range(1, 1501): (0.1, 0.1)}, per_s, is_common=True)
        assert Code.BOTH_ARMS_BAD not in codes(walks, range(1, 1501))


def test_an_outage_of_stable_alone_does_not_hold_a_candidate_that_answers() -> None:
    walks = told(400, {range(160, 400): (0.0, 0.9)}, is_common=True)
    assert Code.BOTH_ARMS_BAD not in codes(walks, range(1, 401))


def test_most_requests_fail_if_more_than_half_of_the_newest_do() -> None:
    def minute(all_bad: float, attempts: int, seconds: int = 30) -> StableMinute:
        found = StableMinute()
        for at in range(seconds):
            found = found.after(float(at), 0, attempts, name="errors", limit=LIMIT, dispersion=CLEAN, all_bad=all_bad)
        return found

    assert minute(6, 10).failing == (30, 50) and minute(6, 10).is_over and minute(6, 10).has_lasted
    assert minute(5, 10).failing is None and not minute(5, 10).is_over
    assert minute(1, 1, 19).failing is None and minute(1, 1).failing == (20, 20)
    assert StableMinute.from_json(minute(6, 10).to_json()) == minute(6, 10)
