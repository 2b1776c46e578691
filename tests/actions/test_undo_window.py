"""The undo window of a promotion closes by evidence, or by a person, and is held open while an objective burns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import Refused, StateChanged
from ledger.hooks.job_handlers import Again
from ledger.models import Event, Job
from rollouts import actions
from rollouts.actions.control import begin_control
from rollouts.actions.undo_window import DRAIN_PREVIOUS, HOLD_S, settle_undo_window
from rollouts.core.policy import Control
from rollouts.core.watch.watched import Watched, WatchedMinute
from rollouts.models import Alarm, Rollout, WatchRecord
from rollouts.queries import ended_to_settle
from rollouts.queries.undo_window import AHEAD_S, is_open
from rollouts.tasks import drain_previous_release
from serving.models import Gateway, Replica, Route, RouteAck
from tests.support.worlds.factories import make_actor, make_admin
from tests.support.worlds.rollout_setup import promoted, put, release_of, started

pytestmark = pytest.mark.django_db


def over(rollout: Rollout, *, hours: float = 1.0, left_s: float = -1.0) -> Rollout:
    """Promoted `hours` ago, under a window that ends in `left_s`."""
    now = timezone.now()
    policy = {**rollout.policy, "instant_window_s": 3600 * hours + left_s, "undo_max_s": 86_400}
    return put(
        rollout,
        "promoted",
        policy=policy,
        ended_at=now - timedelta(hours=hours),
        undo_until=now + timedelta(seconds=left_s),
    )


def counted(rollout: Rollout, *, bad: int = 0, attempts: int = 5000) -> None:
    now = timezone.now()
    at = now.timestamp()
    told = Watched(
        str(rollout.candidate.digest), at - 3600, bad=bad, attempts=attempts, at=at, asked_at=at,
        minutes=(WatchedMinute(int(at // 60), bad, attempts),),
    )  # fmt: skip
    WatchRecord.objects.update_or_create(
        environment=rollout.environment,
        model=rollout.model,
        defaults={"objectives": {"errors": told.to_json()}, "at": now},
    )


def burning(rollout: Rollout) -> Alarm:
    return Alarm.objects.create(
        environment=rollout.environment, model=rollout.model, release=rollout.candidate, objective="errors", tier="page",
        reason="It burns.", opened_at=timezone.now(), facts={"burn": 12.0},
    )  # fmt: skip


def settled(rollout: Rollout) -> Rollout:
    settle_undo_window(rollout)
    rollout.refresh_from_db()
    return rollout


def is_warm(rollout: Rollout) -> bool:
    assert rollout.stable is not None
    return Replica.objects.filter(release=rollout.stable, is_wanted=True, gone_at=None).exists()


def test_it_closes_when_each_objective_is_proven_to_be_met_and_the_event_lists_the_counts() -> None:
    rollout = over(promoted()[0])
    counted(rollout)
    assert settled(rollout).undo_until is None and not is_open(rollout)
    closed = Event.objects.get(verb="rollout.undo_closed")
    assert closed.facts["verdict"] == "met"
    assert closed.reason.startswith("r2 has met each objective since its promotion: 0 of 5000 errors (0.00%), with ")
    assert [one["attempts"] for one in closed.facts["objectives"]] == [5000]
    assert Event.objects.get(verb="deployment.drained").reason == closed.reason


def test_it_stays_open_while_an_objective_burns_however_long() -> None:
    rollout = over(promoted()[0], hours=300)
    counted(rollout)
    burning(rollout)
    held = settled(rollout)
    assert held.undo_until is not None and held.undo_until > timezone.now() + timedelta(seconds=HOLD_S - 30)
    assert is_open(rollout) and is_warm(rollout)
    event = Event.objects.get(verb="rollout.undo_held")
    assert event.reason.startswith("r1 stays warm, because an objective burns: 0 of 5000 errors")
    later = {
        "undo_until": timezone.now(),
        "ended_at": rollout.ended_at - timedelta(hours=1),
    }  # an hour after the policy's own end
    put(rollout, "promoted", **later)
    settled(rollout)
    assert Event.objects.filter(verb="rollout.undo_held").count() == 1, "it is told once"
    Alarm.objects.update(state="closed")
    put(rollout, "promoted", undo_until=timezone.now())
    assert settled(rollout).undo_until is None


def test_a_window_that_is_held_is_never_closed_in_between() -> None:
    """It is prolonged before it ends, so no reader of `undo_until` sees it over."""
    rollout = over(promoted()[0], left_s=AHEAD_S - 5)
    burning(rollout)
    assert rollout in ended_to_settle(timezone.now())
    before = rollout.undo_until
    assert before is not None and is_open(rollout)
    held = settled(rollout).undo_until
    assert held is not None and held > before
    assert rollout not in ended_to_settle(timezone.now())


def test_what_cannot_be_judged_stays_open_until_the_longest_time_and_the_event_states_it() -> None:
    rollout = over(promoted()[0], hours=2)
    assert settled(rollout).undo_until is not None
    assert "because not every objective is proven to be met yet" in Event.objects.get(verb="rollout.undo_held").reason
    rollout = over(rollout, hours=25)
    counted(rollout, attempts=3)
    assert settled(rollout).undo_until is None and not is_warm(rollout)
    closed = Event.objects.get(verb="rollout.undo_closed")
    assert closed.facts["verdict"] == "not_judged" and "Whether r2 meets its objectives was not judged" in closed.reason


def test_a_window_whose_time_is_not_over_is_left_alone() -> None:
    rollout = over(promoted()[0], left_s=AHEAD_S - 5)
    counted(rollout)
    before = rollout.undo_until
    assert settled(rollout).undo_until == before and not Event.objects.filter(verb__startswith="rollout.undo").exists()


@pytest.mark.parametrize("stored", [{"undo_max_s": 0}, None])
def test_a_policy_that_asks_for_no_evidence_or_is_older_closes_by_the_clock_and_claims_nothing(stored: Any) -> None:
    rollout = over(promoted()[0])
    policy = {key: value for key, value in rollout.policy.items() if key != "undo_max_s"} | (stored or {})
    put(rollout, "promoted", policy=policy)
    burning(rollout)
    assert settled(rollout).undo_until is None
    assert Event.objects.get(verb="rollout.undo_closed").reason == (
        "The undo window's time is over. Its policy asks for no evidence, so nothing checked how r2 served."
    )


def test_another_rollout_ends_it_even_while_an_objective_burns() -> None:
    rollout = over(promoted()[0])
    burning(rollout)
    following = started(candidate=release_of(rollout.model))
    put(rollout, "promoted", undo_until=timezone.now() - timedelta(seconds=1))
    assert settled(rollout).undo_until is None
    assert f"Rollout {following.pk} has begun" in Event.objects.get(verb="rollout.undo_closed").reason


def test_a_person_closes_it_with_a_reason() -> None:
    rollout = over(promoted()[0], left_s=600)
    burning(rollout)
    asked = {"rollout": rollout, "expected_version": rollout.version, "reason": "The alarm is known."}
    with pytest.raises(Refused):
        actions.close_undo_window(actor=make_actor(Role.CI), **asked)
    actor = make_admin()
    assert actions.close_undo_window(actor=actor, **asked).undo_until is None
    assert not is_warm(rollout)
    event = Event.objects.get(verb="rollout.undo_closed")
    assert event.reason == f"{actor.name} closed the undo window: The alarm is known."
    rollout.refresh_from_db()
    with pytest.raises(StateChanged, match="no open undo window"):
        actions.close_undo_window(actor=actor, **{**asked, "expected_version": rollout.version})


def test_a_control_loses_its_share_first_and_is_drained_once_every_gateway_follows() -> None:
    rollout = over(promoted()[0])
    put(rollout, "promoted", policy={**rollout.policy, "watch": {"control_pct": 5, "roll_back": "never"}})
    counted(rollout)
    begin_control(rollout, Control(500), actor=Actor.system("test"), fence=9)
    gateway = Gateway.objects.create(environment=rollout.environment, name="one", admin_url="", seen_at=timezone.now())
    assert settled(rollout).undo_until is None
    route = Route.objects.get(model=rollout.model)
    assert (route.stable_id, route.candidate_id) == (rollout.candidate_id, None)
    assert is_warm(rollout)
    job = Job.objects.get(kind=DRAIN_PREVIOUS)
    with pytest.raises(Again, match="Not every gateway"):
        drain_previous_release(job, lambda **_: True)
    RouteAck.objects.create(gateway=gateway, route=route, generation=route.generation, acked_at=timezone.now())
    drain_previous_release(job, lambda **_: True)
    assert not is_warm(rollout)


def test_a_rollout_that_begins_ends_the_control_before_it_needs_the_room() -> None:
    rollout = over(promoted()[0], left_s=600)
    begin_control(rollout, Control(500), actor=Actor.system("test"), fence=9)
    started(candidate=release_of(rollout.model))
    rollout.refresh_from_db()
    settled(rollout)
    assert Route.objects.get(model=rollout.model).candidate_id is None and rollout.undo_until is None
