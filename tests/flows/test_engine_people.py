"""People and the engine at the same rollout: approvals of later stages, promoting now, pausing, the way back after a promotion."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Actor, Role
from accounts.models import Membership
from ledger.models import Event
from rollouts import actions
from rollouts.models import DecisionRecord, Rollout
from rollouts.queries.replay import replayed
from rollouts.queries.undo_window import is_open
from serving.models import Replica
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.worlds.factories import make_actor, make_release, make_user
from tests.support.worlds.rollout_story import AT_ONCE, POLICY, Story
from validators.queries.seen_sizes import seen_sizes

pytestmark = pytest.mark.django_db(transaction=True)


def manager() -> Actor:
    return make_actor(Role.RELEASE_MANAGER)


def act(story: Story, verb: str, actor: Actor | None = None, **more: Any) -> Rollout:
    story.rollout.refresh_from_db()
    done: Rollout = getattr(actions, verb)(
        actor=actor or manager(), rollout=story.rollout, expected_version=story.rollout.version, reason="So.", **more
    )
    story.rollout.refresh_from_db()
    return done


def said(story: Story, code: str) -> bool:
    return DecisionRecord.objects.filter(rollout=story.rollout, code=code).exists()


def turns(story: Story, count: int = 12) -> None:
    for _ in range(count):
        story.turn()


def test_the_engine_waits_for_the_approval_of_a_later_stage_and_goes_on_by_itself() -> None:
    story = Story(approvals={"start": 1, "step 2": 2, "promote": 1})
    assert story.rollout.state == "awaiting_approval"
    turns(story, 2)
    act(story, "approve")
    story.until("shifting")
    turns(story)
    assert (story.rollout.state, story.rollout.step_index) == ("shifting", 0)
    assert story.rollout.reason == "Ready to go on, but step 2 needs 2 more approvals."
    act(story, "approve")
    turns(story, 3)
    assert story.rollout.reason == "Ready to go on, but step 2 needs 1 more approval."
    act(story, "approve")
    story.until("baking")
    turns(story)
    assert story.rollout.state == "baking" and "promote needs 1 more approval" in story.rollout.reason
    act(story, "approve", stage="promote")
    story.until("promoted")


def test_a_start_whose_approval_is_void_by_the_time_it_is_ready_waits_for_another() -> None:
    story = Story(approvals={"start": 1})
    first = manager()
    act(story, "approve", first)
    assert story.rollout.state == "preparing"
    Membership.objects.filter(user=first.user_id).delete()
    turns(story, 3)
    assert story.rollout.state == "preparing" and "start needs 1 more approval" in story.rollout.reason
    act(story, "approve")
    story.until("shifting")


def test_promote_now_promotes_at_once_and_leaves_out_no_check() -> None:
    story = Story(bake={"min_s": 3600, "min_samples": 10**6, "deadline_s": 7200})
    story.until("shifting")
    act(story, "promote_now")
    assert (story.rollout.state, story.route().candidate_bp) == ("baking", 9500)
    story.until("promoted", turns=6)
    assert said(story, "by_hand")
    verbs = Event.objects.filter(subject_type="rollout", subject_id=str(story.rollout.pk)).order_by("seq")
    assert list(verbs.values_list("verb", flat=True))[-2:] == ["rollout.promoting", "rollout.promoted"]


def test_promote_now_of_a_candidate_that_breaks_is_rolled_back() -> None:
    story = Story(bake={"min_s": 3600, "min_samples": 10**6, "deadline_s": 7200})
    story.until("shifting")
    story.gateway.set_arm(story.candidate.digest, error_frac=0.5)
    story.gateway.traffic(400)
    act(story, "promote_now")
    story.until("rolled_back", turns=20)
    assert not story.rollout.promote_now


def test_the_way_back_stays_open_for_its_window_and_takes_the_traffic_in_one_write() -> None:
    story = Story(instant_window_s=600)
    promoted = story.until("promoted")
    assert story.stable is not None and is_open(promoted) and promoted.undo_until is not None
    assert promoted.reason == f"All traffic went to {story.candidate.name}."  # true for ever, unlike a time to come
    event = Event.objects.get(verb="rollout.promoted", subject_id=str(promoted.pk))
    assert event.facts["undo_until"] == promoted.undo_until.isoformat()
    seen = seen_sizes(story.model)
    assert seen is not None and seen.requests >= 1000 and seen.until_at == promoted.ended_at
    assert Replica.objects.get(release=story.stable).is_wanted
    done = actions.roll_back_model(actor=manager(), model=story.model, environment=story.environment, reason="Back.")
    assert done.pk == promoted.pk and story.route().stable_id == story.stable.pk
    turns(story, 3)
    assert Replica.objects.get(release=story.stable).is_wanted
    assert story.route().stable_id == story.stable.pk  # the engine leaves it so


def test_after_the_window_the_release_before_is_let_go() -> None:
    story = Story(timings=replace(AT_ONCE, sweep_every_s=0.0), instant_window_s=600, undo_max_s=0)
    promoted = story.until("promoted")
    Rollout.objects.filter(pk=promoted.pk).update(undo_until=timezone.now() - timedelta(seconds=1))
    story.engine.step()
    promoted.refresh_from_db()
    assert promoted.undo_until is None and not Replica.objects.get(release=story.stable).is_wanted


def test_the_release_before_that_is_rolled_out_anew_is_not_let_go_under_it() -> None:
    story = Story(instant_window_s=600)
    story.until("promoted")
    assert story.stable is not None
    story.rollout = actions.start_rollout(actor=story.admin, candidate=story.stable, environment=story.environment)
    story.until("promoted")
    assert story.route().stable_id == story.stable.pk
    assert Replica.objects.get(release=story.stable).is_wanted


def test_a_superseded_rollout_is_left_alone_and_the_new_one_goes_its_way() -> None:
    story = Story()
    newer = story.serve(make_release(story.model))
    new = act(story, "supersede", candidate=newer)
    old = story.rollout
    story.rollout = new
    story.until("promoted")
    old.refresh_from_db()
    assert (old.state, story.route().stable_id) == ("superseded", newer.pk)
    assert new.stable_id == story.stable.pk if story.stable else False


def test_a_rollout_that_was_run_can_be_judged_again_by_its_own_and_by_another_policy() -> None:
    story = Story()
    done = story.until("promoted")
    same = replayed(Rollout.objects.get(pk=done.pk), None)
    assert same["is_own_policy"] and same["roll_back"] is None and same["not_counted"] == []
    acts = [turn["action"] for turn in same["turns"] if turn["action"] != "hold"]
    assert acts == ["advance", "bake", "promote", "promote"]
    assert [one["action"] for one in same["happened"]["decisions"]] == ["request", "start", *acts]
    patient = {**POLICY, "steps": [{"weight_pct": 25, "min_s": 0, "min_samples": 10**6, "deadline_s": 600}]}
    other = replayed(Rollout.objects.get(pk=done.pk), patient)
    assert not other["is_own_policy"]
    first = next(turn for turn in other["turns"] if turn["state"] == "shifting" and turn["step_index"] == 0)
    assert first["action"] == "hold" and "1000000 attempts" in first["reason"]
    client = Client()
    client.force_login(make_user(team="search"))
    page = client.get(reverse("rollout_replay", args=[done.pk]), {"preset": "careful"})
    assert page.status_code == 200 and "What happened" in page.content.decode()
