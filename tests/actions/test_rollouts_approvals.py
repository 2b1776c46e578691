"""Approvals: whose yes counts, for what, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from accounts.models import Membership, User
from ledger.core.errors import DomainError, Invalid, Refused, Stale, StateChanged
from ledger.models import Event
from ledger.queries import clock
from rollouts import actions
from rollouts.models import Approval, DecisionRecord, Rollout
from rollouts.queries import approvals_of
from rollouts.queries.approvals import given_to, who_may_approve
from serving.models import Route
from tests.support.worlds.factories import make_actor, make_admin, make_user
from tests.support.worlds.rollout_setup import awaiting, production, put, release_of, report_for, with_stable

pytestmark = pytest.mark.django_db
STAGED = {"approvals": {"start": 2, "step 2": 1, "promote": 2}}


def manager() -> Actor:
    return make_actor(Role.RELEASE_MANAGER)


def approve(rollout: Rollout, actor: Actor | None = None, stage: str | None = None, reason: str = "Looked.") -> Rollout:
    return actions.approve(
        actor=actor or manager(), rollout=rollout, expected_version=rollout.version, reason=reason, stage=stage
    )


def refused(kind: type[DomainError], code: str, rollout: Rollout, **said: Any) -> DomainError:
    with pytest.raises(kind) as caught:
        approve(rollout, **said)
    assert caught.value.code == code and caught.value.message.endswith(".")
    return caught.value


def counts(rollout: Rollout) -> dict[str, int]:
    rollout = Rollout.objects.select_related("candidate", "report").get(pk=rollout.pk)
    return approvals_of([rollout]).get(rollout.pk, {})


def test_nobody_approves_their_own_release_or_request() -> None:
    rollout, requester, other = awaiting()
    assert rollout.state == "awaiting_approval" and rollout.candidate.author is not None
    for own in (requester, actor_for(rollout.candidate.author)):
        refused(Refused, "own_release", rollout, actor=own)
    with pytest.raises(Refused, match="release_manager"):
        approve(rollout, make_actor(Role.MODEL_TEAM))
    refused(Refused, "no_person", rollout, actor=Actor.system("engine"))
    done = approve(rollout, other, reason="Read the report.")
    assert done.state == "preparing"
    approval = Approval.objects.get(rollout=rollout)
    assert (approval.manifest_digest, approval.policy_digest) == (rollout.candidate.digest, rollout.policy_digest)
    assert approval.stage == "start" and approval.expires_at is not None


def test_an_administrator_is_no_exception_to_four_eyes() -> None:
    admin = make_admin()
    rollout = actions.start_rollout(actor=admin, candidate=release_of(), environment=production(needs_approval=True))
    refused(Refused, "own_release", rollout, actor=admin)


@pytest.mark.takes("rollout: awaiting_approval → rejected")
def test_an_approval_of_another_version_is_stale_and_a_second_one_comes_too_late() -> None:
    rollout, _, other = awaiting()
    with pytest.raises(Stale):
        actions.approve(actor=other, rollout=rollout, expected_version=rollout.version - 1)
    rejected = actions.reject(actor=other, rollout=rollout, expected_version=rollout.version, reason="Not this week.")
    assert rejected.state == "rejected" and rejected.ended_at is not None
    refused(StateChanged, "wrong_state", rejected, actor=other)


def test_the_environments_rule_is_pinned_with_the_policy() -> None:
    rollout, _, _ = awaiting()
    assert rollout.effective_policy.approvals == {"start": 1} and rollout.started_at is None
    two, _, _ = awaiting(approvals={"start": 2})
    assert two.effective_policy.approvals == {"start": 2}
    assert "2 approvals" in two.reason


@pytest.mark.takes("rollout: awaiting_approval → preparing")
def test_k_of_n_takes_k_different_people_and_the_last_one_lets_it_prepare() -> None:
    rollout, _, _ = awaiting(**STAGED)
    first = manager()
    rollout = approve(rollout, first)
    assert (rollout.state, rollout.reason) == (
        "awaiting_approval", f"Start approved by {first.name}, 1 of 2: Looked. It takes 1 more.",
    )  # fmt: skip
    assert "already" in refused(StateChanged, "already_approved", rollout, actor=first).message
    before = timezone.now()
    rollout = approve(rollout)
    assert rollout.state == "preparing" and rollout.started_at is not None and rollout.started_at >= before
    assert counts(rollout) == {"start": 2}
    verbs = Event.objects.filter(subject_id=str(rollout.pk), verb="rollout.approved").order_by("seq")
    assert [event.to_state for event in verbs] == ["awaiting_approval", "preparing"]


def test_an_approval_that_expires_while_it_waits_counts_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout, _, _ = awaiting(**STAGED)
    first, now = manager(), clock.now
    with monkeypatch.context() as two_days_ago:
        two_days_ago.setattr(clock, "now", lambda: now() - timedelta(days=2))
        rollout = approve(rollout, first)
    assert counts(rollout) == {}
    rollout = approve(rollout)
    assert rollout.state == "awaiting_approval" and counts(rollout) == {"start": 1}
    assert approve(rollout, first).state == "preparing"  # who approved too early may do it again


def test_later_stages_are_approved_beforehand_or_when_they_come() -> None:
    rollout, _, _ = awaiting(**STAGED)
    early = approve(rollout, stage="promote")
    assert early.state == "awaiting_approval" and early.reason == rollout.reason  # it still says what it waits for
    rollout = approve(approve(early))
    assert rollout.state == "preparing"
    rollout = approve(put(rollout, "shifting", step_index=0, weight_bp=500, reason="Holding at 5 %."))
    assert (rollout.state, rollout.weight_bp, rollout.reason) == ("shifting", 500, "Holding at 5 %.")
    assert counts(rollout) == {"promote": 1, "start": 2, "step 2": 1}
    assert counts(approve(rollout)) == {"promote": 2, "start": 2, "step 2": 1}
    refused(StateChanged, "no_approval_needed", Rollout.objects.get(pk=rollout.pk))
    said = DecisionRecord.objects.filter(rollout=rollout, action="approve").order_by("-pk").first()
    assert said is not None and said.facts["stage"] == "promote" and said.facts["given"] == 2


def test_what_cannot_be_approved_is_said_with_the_stages_that_can() -> None:
    rollout, _, _ = awaiting(**STAGED)
    error = refused(Invalid, "no_such_stage", rollout, stage="step 9")
    assert error.facts["errors"][0]["field"] == "stage" and "step 2" in error.facts["errors"][0]["fix"]
    assert "start, step 2, promote" in refused(StateChanged, "no_approval_needed", rollout, stage="bake").message
    live = put(rollout, "shifting", step_index=1)
    refused(StateChanged, "stage_passed", live, stage="step 2")
    refused(StateChanged, "wrong_state", put(rollout, "rolling_back"))


def test_a_newer_report_voids_what_was_approved_and_stops_further_approval() -> None:
    candidate = release_of()
    report_for(candidate)
    rollout = actions.start_rollout(
        actor=manager(),
        candidate=candidate,
        environment=production(needs_approval=True, needs_passed_report=True),
        policy={"approvals": {"start": 2}},
    )
    rollout = approve(rollout)
    report_for(candidate, policy="sha256:" + "1" * 64)  # under another gate policy: another question
    assert counts(rollout) == {"start": 1}
    newer = report_for(candidate)
    assert counts(rollout) == {}
    assert refused(Refused, "report_superseded", rollout).facts["newest"] == newer.digest
    assert [one.void for one in given_to(rollout)] == ["report_superseded"]


def test_where_no_report_was_pinned_one_that_comes_later_voids_it() -> None:
    rollout, _, _ = awaiting(**STAGED)
    rollout = approve(rollout)
    assert rollout.report is None and counts(rollout) == {"start": 1}
    report_for(rollout.candidate, "failed")
    assert counts(rollout) == {}


def test_who_lost_the_role_or_was_barred_counts_no_longer() -> None:
    rollout, _, _ = awaiting(approvals={"start": 3})
    left, barred = manager(), manager()
    rollout = approve(approve(rollout, left), barred)
    assert counts(rollout) == {"start": 2}
    Membership.objects.filter(user=left.user_id).delete()
    assert counts(rollout) == {"start": 1}
    User.objects.filter(pk=barred.user_id).update(is_active=False)
    assert counts(rollout) == {}
    assert [one.void for one in given_to(rollout)] == ["no_longer_may", "no_longer_may"]


def test_many_rollouts_are_counted_with_one_query() -> None:
    rollouts = [approve(awaiting(**STAGED)[0]) for _ in range(3)] + [with_stable()[0]]
    rows = list(Rollout.objects.select_related("candidate", "report").filter(pk__in=[one.pk for one in rollouts]))
    with CaptureQueriesContext(connection) as said:
        found = approvals_of(rows)
    assert len(said) == 1 and found == {one.pk: {"start": 1} for one in rollouts[:3]}
    with CaptureQueriesContext(connection) as said:
        assert approvals_of([rollouts[3]]) == {}
    assert len(said) == 0


def test_who_may_approve_is_told_by_name() -> None:
    rollout, requester, other = awaiting()
    make_user("stranger", team="elsewhere", role=Role.RELEASE_MANAGER)
    User.objects.filter(pk=manager().user_id).update(is_active=False)
    admin = make_admin("root")
    assert who_may_approve(rollout) == sorted([other.name, admin.name])
    assert requester.name not in who_may_approve(rollout)


# --- no ---------------------------------------------------------------------------------------------------------------


def test_a_no_to_a_later_stage_takes_the_traffic_back_for_good() -> None:
    rollout, stable = with_stable(approvals={"bake": 1})
    with pytest.raises(Invalid, match="Say why"):
        actions.reject(actor=manager(), rollout=rollout, expected_version=rollout.version, reason=" ")
    actor = manager()
    done = actions.reject(actor=actor, rollout=rollout, expected_version=rollout.version, reason="Wrong labels.")
    assert (done.state, done.weight_bp) == ("rolling_back", 0)
    assert done.reason == f"Rolling back to {stable.name}, by {actor.name}: rejected before bake: Wrong labels."
    assert Route.objects.get(model=rollout.model).candidate_bp == 0
    event = Event.objects.get(verb="rollout.rejected", subject_id=str(rollout.pk))
    assert (event.from_state, event.to_state) == ("shifting", "rolling_back")


def test_without_a_gate_ahead_there_is_nothing_to_say_no_to() -> None:
    rollout, _ = with_stable(approvals={"step 2": 1})
    with pytest.raises(StateChanged) as caught:
        actions.reject(actor=manager(), rollout=rollout, expected_version=rollout.version, reason="No.")
    assert caught.value.code == "nothing_to_reject" and "roll it back" in caught.value.message
    with pytest.raises(Refused):
        actions.reject(
            actor=make_actor(Role.MODEL_TEAM), rollout=rollout, expected_version=rollout.version, reason="No."
        )
