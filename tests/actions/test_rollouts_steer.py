"""People's verbs on a running rollout."""

from __future__ import annotations

import pytest

from accounts.core.access import Role
from accounts.core.errors import Invalid, Refused, Stale, StateChanged
from ledger.models import Event
from rollouts import actions
from serving.models import Deployment, Route
from tests.factories import (
    make_actor,
    make_admin,
    make_deployment,
)
from tests.rollout_setup import put, started, with_stable

pytestmark = pytest.mark.django_db


def test_rolling_back_writes_the_route_in_the_same_transaction() -> None:
    rollout, stable = with_stable()
    actor = make_actor(Role.CI)  # shutting takes less than opening
    done = actions.roll_back(actor=actor, rollout=rollout, expected_version=rollout.version, reason="Users complain.")
    route = Route.objects.get(model=rollout.model)
    assert (done.state, done.weight_bp, route.stable_id, route.candidate_bp) == ("rolling_back", 0, stable.pk, 0)
    assert done.decided_at is not None and "Users complain." in done.reason
    assert Event.objects.filter(verb="rollout.aborted", subject_id=str(done.pk)).exists()


@pytest.mark.parametrize(
    "state", ["requested", "awaiting_approval", "preparing", "shifting", "paused", "baking", "stuck"]
)
def test_abort_ends_it_from_every_state(state: str) -> None:
    rollout, _ = with_stable()
    put(rollout, state)
    done = actions.abort(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="Enough.")
    assert done.state == ("cancelled" if state in {"requested", "awaiting_approval", "preparing"} else "rolling_back")


def test_cancelling_while_preparing_lets_the_candidate_go() -> None:
    rollout = started()
    deployment = make_deployment(rollout.candidate, rollout.environment)
    done = actions.cancel(
        actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="Wrong release."
    )
    assert done.state == "cancelled" and not Deployment.objects.get(pk=deployment.pk).is_wanted


def test_pause_and_resume_come_back_to_where_it_was() -> None:
    rollout, _ = with_stable()
    put(rollout, "baking")
    paused = actions.pause(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="Lunch")
    assert (paused.state, paused.resume_state) == ("paused", "baking") and "Lunch." in paused.reason
    assert (
        actions.resume(actor=make_admin(), rollout=paused, expected_version=paused.version, reason="Back").state
        == "baking"
    )


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


@pytest.mark.parametrize("verb", ["pause", "abort", "roll_back", "advance"])
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
