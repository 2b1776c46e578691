"""Approvals: whose yes counts, for what, and for how long."""

from __future__ import annotations

import pytest

from accounts.core.access import Role
from accounts.core.errors import Refused, Stale, StateChanged
from rollouts import actions
from rollouts.models import Approval
from tests.factories import (
    make_actor,
)
from tests.rollout_setup import awaiting

pytestmark = pytest.mark.django_db


def test_nobody_approves_their_own_release_or_request() -> None:
    from accounts.actions import actor_for

    rollout, requester, manager = awaiting()
    assert rollout.state == "awaiting_approval" and rollout.candidate.author is not None
    for own in (requester, actor_for(rollout.candidate.author)):
        with pytest.raises(Refused) as caught:
            actions.approve(actor=own, rollout=rollout, expected_version=rollout.version, reason="Fine.")
        assert caught.value.code == "own_release"
    with pytest.raises(Refused, match="release_manager"):
        actions.approve(actor=make_actor(Role.MODEL_TEAM), rollout=rollout, expected_version=rollout.version)
    done = actions.approve(actor=manager, rollout=rollout, expected_version=rollout.version, reason="Read the report.")
    assert done.state == "preparing"
    approval = Approval.objects.get(rollout=rollout)
    assert (approval.manifest_digest, approval.policy_digest) == (rollout.candidate.digest, rollout.policy_digest)


def test_an_approval_of_another_version_is_stale_and_a_second_one_comes_too_late() -> None:
    rollout, _, manager = awaiting()
    with pytest.raises(Stale):
        actions.approve(actor=manager, rollout=rollout, expected_version=rollout.version - 1)
    rejected = actions.reject(actor=manager, rollout=rollout, expected_version=rollout.version, reason="Not this week.")
    assert rejected.state == "rejected" and rejected.ended_at is not None
    with pytest.raises(StateChanged):
        actions.approve(actor=manager, rollout=rejected, expected_version=rejected.version)
