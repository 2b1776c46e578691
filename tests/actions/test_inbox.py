"""What waits for whom: the list, why a person may not, and the count of the navigation, which must agree with the list."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from ledger.core.canonical import canonical_bytes
from ledger.core.errors import Stale
from registry.actions import grant_waiver
from registry.core.lifecycle import ReleaseState
from registry.models import Release, ReleaseFile
from rollouts import actions
from rollouts.core.approvals import Digests
from rollouts.core.latency import NOTHING
from rollouts.core.recent_traffic import RecentTraffic
from rollouts.models import Approval, DecisionRecord, TrafficRecord
from rollouts.queries.approvals import pinned_by
from rollouts.queries.gateway_reads import MISSED, READ_WITHIN, route_standing
from rollouts.queries.inbox import WAIVERS_WITHIN, counted_for, waiting_approvals, waiting_waivers, with_changes
from serving.environments.queries.reporting import REPORTS_WITHIN
from serving.models import Node, Server, Sleep
from tests.support.worlds.factories import (
    make_actor,
    make_admin,
    make_blob,
    make_manifest,
    make_model,
    make_release,
    make_replica,
    make_server,
    make_user,
)
from tests.support.worlds.rollout_setup import awaiting, put, report_for, with_stable

pytestmark = pytest.mark.django_db


def mine(actor: Actor) -> list[str]:
    return [f"{one.rollout.pk} {one.stage}" for one in waiting_approvals(actor) if not one.why_not]


def count_waiting(actor: Actor, **over: Any) -> int:
    return counted_for(actor, **over).waiting


def test_a_model_without_a_serving_server_is_counted_for_those_who_see_it() -> None:
    rollout, _ = with_stable()
    stable, environment = rollout.stable, rollout.environment
    member, outsider = make_actor(Role.MODEL_TEAM), make_actor(Role.RELEASE_MANAGER, team="other")
    assert (counted_for(member).lost, counted_for(outsider).lost, counted_for(Actor.system("test")).lost) == (1, 0, 0)
    server = make_server(make_replica(stable, environment, state="ready"))
    assert counted_for(member).lost == 0
    Node.objects.update(seen_at=timezone.now() - REPORTS_WITHIN)  # the engine itself is silent what its servers do
    assert counted_for(member).lost == 1
    Node.objects.update(seen_at=timezone.now())
    Server.objects.filter(pk=server.pk).update(is_serving=False)
    assert counted_for(member).lost == 1
    Sleep.objects.create(model=rollout.model, environment=environment, state="asleep")
    assert counted_for(member).lost == 0


def test_a_model_behind_gateways_that_nobody_reads_is_counted_and_the_watcher_notices() -> None:
    rollout, _ = with_stable()
    make_server(make_replica(rollout.stable, rollout.environment, state="ready"))
    member, now = make_actor(Role.MODEL_TEAM), timezone.now()
    other = make_model("other", team=rollout.model.team)  # every gateway is read for all models at once

    def count(at: datetime, written_at: datetime) -> tuple[int, bool]:
        traffic = RecentTraffic().after(at.timestamp(), 0, 0, NOTHING).to_json()
        TrafficRecord.objects.update_or_create(
            model=other, environment=rollout.environment, defaults={"traffic": traffic, "at": written_at}
        )
        ((*_, is_unread),) = route_standing()
        return counted_for(member, now=now).lost, is_unread

    assert counted_for(member).lost == 0  # never counted: it is new
    assert count(now, now) == (0, False)
    earlier = now - 2 * MISSED
    assert count(earlier, earlier + MISSED / 2) == (0, False)  # the engine did not write since
    assert count(earlier, earlier + 1.5 * MISSED) == (1, True)  # it could not read them
    assert count(now - 2 * READ_WITHIN, now - 2 * READ_WITHIN) == (1, True)  # nobody knows


def test_a_stage_waits_for_those_who_may_and_says_why_not_to_the_others() -> None:
    rollout, requester, manager = awaiting()
    author = rollout.candidate.author
    assert author is not None
    found = {
        name: waiting_approvals(actor)
        for name, actor in (
            ("manager", manager), ("requester", requester), ("author", actor_for(author)),
            ("member", make_actor(Role.MODEL_TEAM)), ("outsider", make_actor(Role.RELEASE_MANAGER, team="other")),
        )
    }  # fmt: skip
    assert mine(manager) == [f"{rollout.pk} start"] and found["outsider"] == []
    assert "You asked for this rollout" in found["requester"][0].why_not
    assert "You made r2" in found["author"][0].why_not
    assert "takes the role release_manager" in found["member"][0].why_not
    one = found["manager"][0]
    assert one.is_held and one.since == rollout.created_at and one.missing == 1
    assert one.digests == pinned_by(rollout) and "is loaded and warmed in Production" in one.will
    assert with_changes([one])[0].changes[0].startswith("Files: 1 changed (artifact/model.onnx)")
    assert count_waiting(manager) == 1 and count_waiting(make_admin()) == 1
    for actor in (
        requester,
        actor_for(author),
        make_actor(Role.MODEL_TEAM),
        make_actor(Role.RELEASE_MANAGER, team="x"),
    ):
        assert count_waiting(actor) == 0


def test_the_next_stage_is_offered_once_the_one_before_is_complete() -> None:
    rollout, _, manager = awaiting(approvals={"start": 2, "bake": 1})
    actions.approve(actor=manager, rollout=rollout, expected_version=rollout.version)
    rollout.refresh_from_db()
    assert mine(manager) == [] and "You have approved start" in waiting_approvals(manager)[0].why_not
    assert count_waiting(manager) == 0
    other = make_actor(Role.RELEASE_MANAGER)
    assert mine(other) == [f"{rollout.pk} start"] and count_waiting(other) == 1
    actions.approve(actor=other, rollout=rollout, expected_version=rollout.version)
    assert mine(manager) == [f"{rollout.pk} bake"] and count_waiting(manager) == 1
    assert not waiting_approvals(manager)[0].is_held
    rollout.refresh_from_db()
    put(rollout, "baking")
    assert waiting_approvals(manager) == [] and count_waiting(manager) == 0


def test_what_holds_a_live_rollout_comes_before_what_may_be_given_beforehand() -> None:
    first, _, manager = awaiting(approvals={"bake": 1})
    second, _, _ = awaiting(approvals={"bake": 1})
    put(first, "shifting", step_index=0)
    put(second, "shifting", step_index=0, engine_state={"said": "hold:awaiting_approval"})
    at = timezone.now() - timedelta(minutes=3)
    DecisionRecord.objects.create(
        rollout=second, at=at, action="hold", code="awaiting_approval", reason="", actor="system:engine"
    )
    found = waiting_approvals(manager)
    assert [(one.rollout.pk, one.is_held) for one in found] == [(second.pk, True), (first.pk, False)]
    assert found[0].since == at


def test_an_approval_that_no_longer_counts_is_asked_for_again() -> None:
    rollout, _, manager = awaiting(approvals={"start": 1, "bake": 1})
    actions.approve(actor=manager, rollout=rollout, expected_version=rollout.version)
    other = make_actor(Role.RELEASE_MANAGER)
    assert mine(other) == [f"{rollout.pk} bake"]
    later = timezone.now() + timedelta(days=365)
    again = [f"{one.rollout.pk} {one.stage}" for one in waiting_approvals(other, now=later)]
    assert again == [f"{rollout.pk} start"] and count_waiting(other, now=later) == 1
    assert Approval.objects.count() == 1


def test_nothing_can_be_approved_on_a_superseded_report_and_the_count_knows() -> None:
    rollout, _, manager = awaiting()
    report_for(rollout.candidate)
    assert "has a newer report" in waiting_approvals(manager)[0].why_not
    assert count_waiting(manager) == 0


def test_an_approval_is_to_the_digests_that_were_seen() -> None:
    rollout, _, manager = awaiting()
    pinned = pinned_by(rollout)
    with pytest.raises(Stale, match="rests on other digests"):
        actions.approve(
            actor=manager,
            rollout=rollout,
            expected_version=rollout.version,
            seen=Digests("sha256:other", "", pinned.policy),
        )
    assert not Approval.objects.exists()
    actions.approve(actor=manager, rollout=rollout, expected_version=rollout.version, seen=pinned)
    assert Approval.objects.get().manifest_digest == pinned.manifest


def code_release(**over: Any) -> Release:
    """A sealed release with a file of source in it."""
    draft = make_release(over.pop("model", None), state=ReleaseState.DRAFT, author=over.pop("author", None))
    blob = make_blob()
    ReleaseFile.objects.create(release=draft, path="artifact/model.py", role="code", blob=blob)
    manifest = canonical_bytes(make_manifest(draft.model.slug, blob)).decode()
    columns = {"state": "sealed", "number": Release.objects.count(), "digest": f"sha256:{draft.pk.hex:>064}", **over}
    Release.objects.filter(pk=draft.pk).update(
        manifest=manifest, is_code_bearing=True, sealed_at=timezone.now(), **columns
    )
    draft.refresh_from_db()
    return draft


def test_code_waits_for_a_waiver_of_just_these_contents() -> None:
    manager = make_actor(Role.RELEASE_MANAGER)
    author = make_user("ana", team="search", role=Role.RELEASE_MANAGER)
    release = code_release(author=author)
    assert [one.kinds for one in waiting_waivers(manager)] == [("code",)] and count_waiting(manager) == 1
    assert waiting_waivers(manager)[0].paths == ("artifact/model.py",)
    assert (
        f"You pushed {release.name}" in waiting_waivers(actor_for(author))[0].why_not
        and count_waiting(actor_for(author)) == 0
    )
    assert waiting_waivers(make_actor(Role.RELEASE_MANAGER, team="other")) == []
    assert waiting_waivers(manager, now=timezone.now() + WAIVERS_WITHIN) == []
    grant_waiver(actor=manager, release=release, reason="Read by both of us.")
    assert waiting_waivers(manager) == [] and count_waiting(manager) == 0
    retired = code_release(model=release.model)
    Release.objects.filter(pk=retired.pk).update(state="retired", retired_at=timezone.now())
    assert waiting_waivers(manager) == []


def test_list_and_count_ask_as_much_for_many_as_for_one() -> None:
    manager = make_actor(Role.RELEASE_MANAGER)
    for number in (1, 30):
        for _ in range(number):
            awaiting(approvals={"start": 1})
            code_release()
        with CaptureQueriesContext(connection) as asked:
            found = len(waiting_approvals(manager)) + len(waiting_waivers(manager))
        assert found >= 2 * number and len(asked) == 2
        with CaptureQueriesContext(connection) as asked:
            assert count_waiting(manager) == found
        assert len(asked) == 1
    with CaptureQueriesContext(connection) as asked:
        assert count_waiting(Actor("ana", user_id=manager.user_id, roles=(("search", Role.MODEL_TEAM),))) == 0
    assert len(asked) == 1
