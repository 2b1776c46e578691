"""Sources other than the gateways that fail: what waits for them, and what does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Source
from rollouts.core.policy_schema import parse_policy
from rollouts.core.snapshot import Snapshot
from tests.core.test_decide import judged, snapshot
from tests.support.worlds.snapshots import changed

S = RolloutState
EXTERNAL = {
    "indicator": "external",
    "label": "checkout",
    "max_frac": 0.01,
    "bad_query": 'sum(bad{release="$release"})',
    "total_query": 'sum(all{release="$release"})',
}
WRONG = {"indicator": "wrong", "max_frac": 0.01}
PROBLEMS = {"external_checkout": "checkout cannot be told (timeout)", "wrong": "nobody compares answers"}


def deaf(guard: dict[str, Any], **over: Any) -> Snapshot:
    """A snapshot whose every guard is proven fine, and whose other source fails now."""
    seen = snapshot()
    policy = parse_policy({**seen.policy.document, "guards": [{"indicator": "errors"}, guard]}, {})
    mine = next(one for one in policy.guards if one.source is not Source.GATEWAY)
    proven: Judged = replace(judged(0), guard=mine)
    where = {"policy": policy, "judged": (judged(0), proven), "source_problems": PROBLEMS}
    return changed(seen, **{**where, **over})


@pytest.mark.parametrize("guard", [EXTERNAL, WRONG], ids=["external", "wrong"])
@pytest.mark.parametrize("state", [S.SHIFTING, S.PAUSED, S.BAKING])
def test_a_failing_source_holds_at_once_whatever_was_proven_before(guard: dict[str, Any], state: RolloutState) -> None:
    found = decide(deaf(guard, state=state))
    assert (found.action, found.code) == (Action.HOLD, Code.NO_DATA)
    assert any(problem in found.reason for problem in PROBLEMS.values())
    well = decide(deaf(guard, state=state, source_problems={}))
    assert well.code is (Code.PAUSED if state is S.PAUSED else Code.PROVEN)


@pytest.mark.parametrize("guard", [EXTERNAL, WRONG], ids=["external", "wrong"])
def test_a_guard_that_need_not_have_data_or_is_a_dry_run_waits_for_nobody(guard: dict[str, Any]) -> None:
    for word in ({"must_have_data": False}, {"dry_run": True}):
        assert decide(deaf({**guard, **word})).code is Code.PROVEN


def test_users_orders_are_not_waited_for_before_there_are_users() -> None:
    shadowing = {"state": S.SHADOWING, "weight_bp": 0, "silent_s": {"external_checkout": 9e9}}
    found = decide(deaf(EXTERNAL, **shadowing))
    assert found.code is not Code.NO_DATA and "checkout" not in found.reason
    assert decide(deaf(WRONG, **{**shadowing, "silent_s": {}})).code is Code.NO_DATA
    paused = {**shadowing, "state": S.PAUSED, "paused_in": S.SHADOWING}
    assert decide(deaf(EXTERNAL, **paused)).code is Code.PAUSED


def test_a_failing_source_holds_up_no_promotion_that_the_gateways_were_told_of() -> None:
    assert decide(deaf(EXTERNAL, state=S.BAKING, is_promoting=True)).action is Action.PROMOTE


def test_a_proven_breach_does_not_wait_for_a_failing_source() -> None:
    worse = replace(judged(0), log_e_worse=99.0, bad_candidate=60)
    seen = deaf(EXTERNAL)
    assert decide(changed(seen, judged=(worse, seen.evidence.judged[1]))).action is Action.ROLL_BACK
