"""People's verbs on a running rollout."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import Invalid, Refused, Stale, StateChanged
from ledger.models import Event
from rollouts import actions
from rollouts.models import Rollout
from serving.models import Replica, Route
from tests.support.worlds.factories import (
    make_actor,
    make_admin,
    make_replica,
)
from tests.support.worlds.rollout_setup import frozen_now, put, started, with_stable

pytestmark = pytest.mark.django_db
STAGE = {"min_s": 1, "min_samples": 10}
CLOCKS = {
    "shadow": {"sample_pct": 10, **STAGE, "deadline_s": 600},
    "steps": [{"weight_pct": weight, **STAGE, "deadline_s": 700} for weight in (5, 25, 50)],
    "bake": {**STAGE, "deadline_s": 800},
}


def manager() -> Actor:
    return make_actor(Role.RELEASE_MANAGER)


def act(verb: str, rollout: Rollout, actor: Actor | None = None, reason: str = "So.", **more: Any) -> Rollout:
    done: Rollout = getattr(actions, verb)(
        actor=actor or make_admin(), rollout=rollout, expected_version=rollout.version, reason=reason, **more
    )
    return done


def approved(rollout: Rollout, stage: str) -> Rollout:
    return act("approve", rollout, manager(), stage=stage)


def test_rolling_back_writes_the_route_in_the_same_transaction() -> None:
    rollout, stable = with_stable()
    actor = make_actor(Role.CI)  # shutting takes less than opening
    done = actions.roll_back(actor=actor, rollout=rollout, expected_version=rollout.version, reason="Users complain.")
    route = Route.objects.get(model=rollout.model)
    assert (done.state, done.weight_bp, route.stable_id, route.candidate_bp) == ("rolling_back", 0, stable.pk, 0)
    assert done.decided_at is not None and "Users complain." in done.reason
    assert Event.objects.filter(verb="rollout.aborted", subject_id=str(done.pk)).exists()


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("awaiting_approval", marks=pytest.mark.takes("rollout: awaiting_approval → cancelled")),
        pytest.param("preparing", marks=pytest.mark.takes("rollout: preparing → cancelled")),
        pytest.param("shadowing", marks=pytest.mark.takes("rollout: shadowing → rolling_back")),
        pytest.param("shifting", marks=pytest.mark.takes("rollout: shifting → rolling_back")),
        pytest.param("paused", marks=pytest.mark.takes("rollout: paused → rolling_back")),
        pytest.param("baking", marks=pytest.mark.takes("rollout: baking → rolling_back")),
        pytest.param("stuck", marks=pytest.mark.takes("rollout: stuck → rolling_back")),
    ],
)
def test_abort_ends_it_from_every_state(state: str) -> None:
    rollout, _ = with_stable()
    put(rollout, state)
    done = actions.abort(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="Enough.")
    assert done.state == ("cancelled" if state in {"awaiting_approval", "preparing"} else "rolling_back")


def test_cancelling_while_preparing_lets_the_candidate_go() -> None:
    rollout = started()
    replica = make_replica(rollout.candidate, rollout.environment)
    done = actions.cancel(
        actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="Wrong release."
    )
    assert done.state == "cancelled" and not Replica.objects.get(pk=replica.pk).is_wanted


@pytest.mark.parametrize(
    ("state", "deadline_s"),
    [
        pytest.param(
            "shadowing",
            600,
            marks=pytest.mark.takes("rollout: shadowing → paused", "rollout: paused → shadowing"),
        ),
        pytest.param(
            "shifting", 700, marks=pytest.mark.takes("rollout: shifting → paused", "rollout: paused → shifting")
        ),
        pytest.param("baking", 800, marks=pytest.mark.takes("rollout: baking → paused", "rollout: paused → baking")),
    ],
)
def test_pause_and_resume_come_back_to_where_it_was_with_that_stages_clock(state: str, deadline_s: int) -> None:
    rollout, _ = with_stable(**CLOCKS)
    put(rollout, state, step_started_at=timezone.now() - timedelta(hours=1))
    paused = actions.pause(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="Lunch")
    assert (paused.state, paused.resume_state) == ("paused", state) and "Lunch." in paused.reason
    back = actions.resume(actor=make_admin(), rollout=paused, expected_version=paused.version, reason="Back")
    assert (back.state, back.resume_state) == (state, "")
    assert back.step_started_at is not None and back.due_at is not None
    assert timezone.now() - back.step_started_at < timedelta(minutes=1)
    assert (back.due_at - back.step_started_at).total_seconds() == deadline_s


def test_a_clock_that_had_not_begun_begins_with_the_acknowledgement() -> None:
    rollout, _ = with_stable()
    paused = actions.pause(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="Wait.")
    back = actions.resume(actor=make_admin(), rollout=paused, expected_version=paused.version, reason="Go.")
    assert back.step_started_at is None and back.due_at is None


def test_what_was_paused_is_not_promoted_by_whoever_resumes_it() -> None:
    rollout, _ = with_stable()
    rollout = act("promote_now", rollout, manager())
    paused = act("pause", rollout, make_actor(Role.CI))
    assert not paused.promote_now
    resumed = act("resume", put(paused, "paused", promote_now=True), make_actor(Role.MODEL_TEAM))
    assert (resumed.state, resumed.promote_now) == ("baking", False)


def test_advance_takes_a_release_manager_and_ends_before_the_bake_does() -> None:
    rollout, _ = with_stable()
    with pytest.raises(Refused):
        actions.advance(
            actor=make_actor(Role.MODEL_TEAM), rollout=rollout, expected_version=rollout.version, reason="Hurry."
        )
    manager = make_actor(Role.RELEASE_MANAGER)
    while rollout.state == "shifting":
        rollout = actions.advance(actor=manager, rollout=rollout, expected_version=rollout.version, reason="Known fix.")
        assert Route.objects.get(model=rollout.model).candidate_bp == rollout.weight_bp > 2500
    assert (rollout.state, rollout.weight_bp) == ("baking", 9500)
    with pytest.raises(StateChanged, match="ends by evidence"):
        actions.advance(actor=manager, rollout=rollout, expected_version=rollout.version, reason="Hurry.")


@pytest.mark.parametrize("verb", ["pause", "abort", "roll_back", "advance", "promote_now"])
def test_a_reason_a_version_and_a_fitting_state_are_needed(verb: str) -> None:
    rollout, _ = with_stable()
    act, admin = getattr(actions, verb), make_admin()
    with pytest.raises(Invalid, match="Say why"):
        act(actor=admin, rollout=rollout, expected_version=rollout.version, reason=" ")
    with pytest.raises(Stale):
        act(actor=admin, rollout=rollout, expected_version=rollout.version + 1, reason="So.")
    put(rollout, "promoted")
    with pytest.raises(StateChanged):
        act(actor=admin, rollout=rollout, expected_version=rollout.version, reason="So.")


@pytest.mark.takes("rollout: shadowing → shifting")
def test_advance_leaves_shadowing_for_the_first_step_and_goes_on_mirroring() -> None:
    rollout, _ = with_stable(**CLOCKS)
    put(rollout, "shadowing", step_index=-1, weight_bp=0, mirror_bp=1000)
    done = act("advance", rollout, manager())
    route = Route.objects.get(model=rollout.model)
    assert (done.state, done.step_index, done.weight_bp, done.mirror_bp) == ("shifting", 0, 500, 1000)
    assert (route.candidate_bp, route.mirror_bp) == (500, 1000)


# --- promoting now ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "columns"),
    [
        pytest.param(
            "shadowing",
            {"step_index": -1, "weight_bp": 0},
            marks=pytest.mark.takes("rollout: shadowing → baking"),
        ),
        ("shifting", {}),
        ("baking", {"step_index": 2, "weight_bp": 9500}),
    ],
)
def test_promote_now_goes_to_the_bakes_weight_and_asks_for_the_promotion(state: str, columns: dict[str, int]) -> None:
    rollout, _ = with_stable()
    put(rollout, state, **columns)
    for role in (Role.MODEL_TEAM, Role.CI):
        with pytest.raises(Refused, match="release_manager"):
            act("promote_now", rollout, make_actor(role))
    with pytest.raises(Invalid, match="Say why"):
        act("promote_now", rollout, manager(), reason="")
    done = act("promote_now", rollout, manager(), reason="Hotfix, proven elsewhere.")
    assert (done.state, done.promote_now, done.weight_bp, done.step_index) == ("baking", True, 9500, 2)
    assert "without waiting for proof: Hotfix" in done.reason
    event = Event.objects.get(verb="rollout.promoting", subject_id=str(rollout.pk))
    assert (event.from_state, event.to_state) == (state, "baking")
    if state != "baking":
        assert Route.objects.get(model=rollout.model).candidate_bp == 9500
    with pytest.raises(StateChanged) as caught:
        act("promote_now", done, manager())
    assert caught.value.code == "already_promoting"


@pytest.mark.parametrize("state", ["awaiting_approval", "preparing", "paused", "rolling_back", "stuck"])
def test_only_what_moves_forward_can_be_promoted(state: str) -> None:
    rollout, _ = with_stable()
    with pytest.raises(StateChanged, match=f"is {state.replace('_', ' ')}, so promote does nothing there"):
        act("promote_now", put(rollout, state), manager())


def test_skipping_the_wait_skips_no_approval() -> None:
    rollout, _ = with_stable(approvals={"step 3": 1, "bake": 1, "promote": 2})
    with pytest.raises(Refused) as caught:
        act("advance", rollout, manager())
    assert caught.value.code == "approval_missing" and caught.value.facts["missing"] == {"step 3": 1}
    rollout = act("advance", approved(rollout, "step 3"), manager())
    assert rollout.step_index == 2
    with pytest.raises(Refused) as caught:
        act("promote_now", approved(rollout, "promote"), manager())
    assert caught.value.facts["missing"] == {"bake": 1, "promote": 1}
    assert "bake 0 of 1, promote 1 of 2" in caught.value.message
    rollout = Rollout.objects.get(pk=rollout.pk)
    with pytest.raises(Refused, match="bake 0 of 1"):
        act("advance", rollout, manager())
    rollout = approved(approved(rollout, "bake"), "promote")
    assert act("promote_now", rollout, manager()).promote_now


# --- freeze windows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "state"),
    [("advance", "shifting"), ("advance", "shadowing"), ("resume", "paused"), ("promote_now", "baking")],
)
def test_a_freeze_window_stops_what_opens(verb: str, state: str) -> None:
    rollout, _ = with_stable()
    put(rollout, state, policy={**rollout.policy, **frozen_now()}, resume_state="shifting")
    with pytest.raises(Refused) as caught:
        act(verb, rollout)  # an administrator is no exception
    assert caught.value.code == "frozen" and caught.value.facts["why"] == "Year-end closing"
    assert datetime.fromisoformat(caught.value.facts["until"]) > timezone.now()
    assert "Year-end closing" in caught.value.message and "what shuts works" in caught.value.message
    assert Rollout.objects.get(pk=rollout.pk).version == rollout.version


@pytest.mark.parametrize(
    ("verb", "to"), [("pause", "paused"), ("abort", "rolling_back"), ("roll_back", "rolling_back")]
)
def test_a_freeze_window_does_not_stop_what_shuts(verb: str, to: str) -> None:
    rollout, _ = with_stable()
    put(rollout, "shifting", policy={**rollout.policy, **frozen_now()})
    assert act(verb, rollout).state == to
