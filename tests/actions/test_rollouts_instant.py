"""Going back to the release before, in one step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import current_app
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import Invalid, NotFound, Refused, Stale, StateChanged
from ledger.hooks.job_handlers import Again
from ledger.models import Event, Job
from rollouts import actions
from rollouts.actions.engine_effects import finish_rollback, write_route
from rollouts.actions.instant_rollback import DRAIN_REVERTED
from rollouts.models import DecisionRecord, Rollout
from rollouts.queries import decision_row
from rollouts.queries.undo_window import is_open
from rollouts.tasks import drain_reverted_release
from serving.models import Gateway, Replica, Route, RouteAck
from tests.support.worlds.factories import make_actor, make_admin, make_replica, make_server
from tests.support.worlds.rollout_setup import awaiting, promoted, put, release_of, started, with_stable

pytestmark = pytest.mark.django_db


def test_rolling_back_a_model_takes_back_its_active_rollout() -> None:
    rollout, _ = with_stable()
    done = actions.roll_back_model(
        actor=make_admin(), model=rollout.model, environment=rollout.environment, reason="Now."
    )
    assert (done.pk, done.state) == (rollout.pk, "rolling_back")
    again = actions.roll_back_model(
        actor=make_admin(), model=rollout.model, environment=rollout.environment, reason="Now!"
    )
    assert again.version == done.version


def back(rollout: Rollout, actor: Actor | None = None, reason: str = "Now.") -> Rollout:
    return actions.roll_back_model(
        actor=actor or make_admin(), model=rollout.model, environment=rollout.environment, reason=reason
    )


def nothing(rollout: Rollout, says: str) -> None:
    with pytest.raises(NotFound, match=says) as caught:
        back(rollout)
    assert caught.value.code == "no_active_rollout"


def test_a_decision_of_an_older_version_has_the_code_of_today() -> None:
    stored = DecisionRecord(rollout=promoted()[0], at=timezone.now(), action="roll_back", code="instant")
    assert decision_row(stored)["code"] == "by_hand"


@pytest.mark.takes("rollout: promoted → reverted")
def test_the_release_before_takes_all_traffic_again_in_one_step() -> None:
    rollout, stable = promoted()
    robot = make_actor(Role.CI)
    done = back(rollout, robot, "Conversion fell.")
    assert Route.objects.get(model=rollout.model).stable_id == stable.pk
    assert (done.state, done.undo_until, done.version) == ("reverted", None, rollout.version + 1)
    assert done.reason == f"{robot.name} went back to {stable.name}, still warm: Conversion fell."
    event = Event.objects.get(verb="rollout.reverted", subject_id=str(rollout.pk))
    assert (event.from_state, event.to_state, done.ended_at) == ("promoted", "reverted", rollout.ended_at)
    assert (event.facts["from"], event.facts["to"]) == (rollout.candidate.name, stable.name)
    decision = done.decisions.get(action="roll_back")
    assert (decision.code, decision.actor) == ("by_hand", robot.name)
    kept = Replica.objects.get(release=stable)
    assert kept.is_wanted and kept.state == "ready"
    nothing(rollout, "was taken back already")


def test_a_second_rollback_does_not_go_one_release_further() -> None:
    rollout, stable = promoted()
    older = release_of(rollout.model)
    make_server(make_replica(older, rollout.environment, state="ready"))
    columns = {"model": rollout.model, "environment": rollout.environment, "policy": {}, "policy_digest": ""}
    before = Rollout.objects.create(candidate=stable, stable=older, state="promoted", weight_bp=10_000, **columns)
    Rollout.objects.filter(pk=before.pk).update(id=rollout.pk - 1, undo_until=rollout.undo_until)
    assert back(rollout).pk == rollout.pk
    nothing(rollout, "was taken back already")
    assert Route.objects.get(model=rollout.model).stable_id == stable.pk


def test_a_reason_is_needed_and_nothing_moves_without_one() -> None:
    rollout, _ = promoted()
    with pytest.raises(Invalid, match="Say why"):
        back(rollout, reason=" ")
    assert Route.objects.get(model=rollout.model).stable_id == rollout.candidate_id


def test_what_is_not_warm_any_more_cannot_be_gone_back_to() -> None:
    rollout, stable = promoted(is_ready=False)
    nothing(rollout, f"{stable.name}, the release before, is no longer warm: start a rollout of it")
    make_server(
        make_replica(stable, rollout.environment, state="ready", is_wanted=False)
    )  # its agent is about to end it
    nothing(rollout, "no longer warm")


def test_the_first_release_and_a_model_without_rollouts_have_nothing_before_them() -> None:
    rollout, _ = promoted()
    Rollout.objects.filter(pk=rollout.pk).update(stable=None)
    nothing(rollout, "was the first release there")
    Rollout.objects.filter(pk=rollout.pk).update(state="rolled_back")
    nothing(rollout, "There is nothing to take back")


def test_only_members_of_the_team_may() -> None:
    rollout, _ = promoted()
    with pytest.raises(Refused):
        back(rollout, make_actor(team="elsewhere"))


def test_a_rollout_that_begins_to_prepare_ends_the_window_of_the_one_before() -> None:
    rollout, _ = promoted()
    waiting = actions.start_rollout(
        actor=make_actor(Role.RELEASE_MANAGER),
        candidate=release_of(rollout.model),
        environment=rollout.environment,
        policy={"approvals": {"start": 1}},
    )
    rollout.refresh_from_db()
    assert (
        rollout.undo_until is not None and rollout.undo_until > timezone.now()
    )  # while it waits, the undo window is open
    actions.approve(actor=make_actor(Role.RELEASE_MANAGER), rollout=waiting, expected_version=waiting.version)
    rollout.refresh_from_db()
    assert rollout.undo_until <= timezone.now() and not is_open(rollout)


def test_the_release_that_was_kept_is_wanted_again_when_it_is_rolled_out_anew() -> None:
    rollout, stable = promoted()
    started(candidate=stable)
    rollout.refresh_from_db()
    assert rollout.undo_until is None


@pytest.mark.parametrize("state", ["awaiting_approval", "preparing"])
def test_beside_a_rollout_without_traffic_a_promotion_is_undone_only_while_the_window_is_open(state: str) -> None:
    rollout, stable = promoted()
    beside = put(started(candidate=release_of(rollout.model)), state)
    if state == "awaiting_approval":
        put(rollout, "promoted", undo_until=timezone.now() + timedelta(seconds=60))
    done = back(rollout)
    beside.refresh_from_db()
    assert beside.state == "cancelled"
    is_back = state == "awaiting_approval"
    assert done.pk == (rollout.pk if is_back else beside.pk)
    assert Route.objects.get(model=rollout.model).stable_id == (stable.pk if is_back else rollout.candidate_id)


# --- afterwards -------------------------------------------------------------------------------------------------------


def let_go_after(rollout: Rollout) -> None:
    """What the worker does with the job that an instant rollback left."""
    job = Job.objects.get(kind=DRAIN_REVERTED)
    assert job.due_at > timezone.now()  # nothing is sent to a broker now
    drain_reverted_release(job, lambda **_: True)


def acknowledge(rollout: Rollout) -> None:
    gateway = Gateway.objects.create(
        environment=rollout.environment,
        name="one",
        admin_url="",
        http_url="",
        grpc_address="",
        seen_at=timezone.now() + timedelta(hours=1),
    )
    route = Route.objects.get(model=rollout.model)
    RouteAck.objects.create(gateway=gateway, route=route, generation=route.generation, acked_at=timezone.now())


def test_the_release_that_was_rolled_back_in_goes_once_no_gateway_sends_there_any_more() -> None:
    rollout, stable = promoted()
    taken = make_replica(rollout.candidate, rollout.environment, state="ready")
    back(rollout)
    with pytest.raises(Again, match="Not every gateway"):
        let_go_after(rollout)
    acknowledge(rollout)
    let_go_after(rollout)
    taken.refresh_from_db()
    assert not taken.is_wanted
    assert Replica.objects.get(release=stable).is_wanted
    let_go_after(rollout)  # again is harmless


def test_a_release_that_is_rolled_out_again_meanwhile_stays() -> None:
    rollout, _ = promoted()
    taken = make_replica(rollout.candidate, rollout.environment, state="ready")
    back(rollout)
    actions.start_rollout(
        actor=make_actor(Role.RELEASE_MANAGER),
        candidate=rollout.candidate,
        environment=rollout.environment,
        again=True,
    )
    acknowledge(rollout)
    let_go_after(rollout)
    taken.refresh_from_db()
    assert taken.is_wanted


def test_it_works_without_broker_blobs_and_metrics(
    settings: Any, tmp_path: Path, django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of everything around, only PostgreSQL answers: the route is written, and the control plane is told by it."""
    rollout, stable = promoted()
    settings.BLOB_STORE, settings.PROMETHEUS_URL = str(tmp_path / "gone"), "http://127.0.0.1:1"
    monkeypatch.setattr(current_app.conf, "broker_url", "redis://127.0.0.1:1/0")
    with CaptureQueriesContext(connection) as said, django_capture_on_commit_callbacks(execute=True):
        back(rollout)
    assert Route.objects.get(model=rollout.model).stable_id == stable.pk
    assert any("pg_notify" in query["sql"] for query in said.captured_queries)


def test_an_engine_that_looked_before_a_person_shut_does_not_open_again() -> None:
    rollout, _ = with_stable()
    seen = Rollout.objects.get(pk=rollout.pk)
    actions.abort(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="It is bad.")
    with pytest.raises(StateChanged):
        write_route(seen, 2500, fence=7, reason="Step 1.")
    assert Route.objects.get(model=rollout.model).candidate_bp == 0


def _cancel() -> Callable[[], Any]:
    rollout, admin = started(), make_admin()
    return lambda: actions.cancel(actor=admin, rollout=rollout, expected_version=rollout.version, reason="Not now.")


def _supersede() -> Callable[[], Any]:
    old, admin = started(), make_admin()
    newer = release_of(old.model)
    return lambda: actions.supersede(
        actor=admin, rollout=old, expected_version=old.version, candidate=newer, reason="A newer one."
    )


def _finish_rollback() -> Callable[[], Any]:
    rollout = put(with_stable()[0], "rolling_back")
    return lambda: finish_rollback(rollout, confirmed_at=timezone.now(), fence=7)


@pytest.mark.parametrize("prepared", [_cancel, _supersede, _finish_rollback])
def test_the_logs_lock_is_taken_after_those_of_the_routes_and_the_replica(
    prepared: Callable[[], Callable[[], Any]],
) -> None:
    """Everybody takes them in this order, so that nobody waits for each other: a deadlock costs a second, and one of the two."""
    end = prepared()
    with CaptureQueriesContext(connection) as said:
        end()
    locks = [sql for sql in (query["sql"] for query in said.captured_queries) if "FOR NO KEY" in sql or "_lock(" in sql]
    of_routes, of_replica, of_log = (
        next(i for i, sql in enumerate(locks) if what in sql)
        for what in ('FROM "serving_environment"', 'FROM "serving_deployment"', "pg_advisory_xact_lock")
    )
    assert of_routes < of_replica < of_log


def test_a_no_takes_the_routes_lock_before_the_logs() -> None:
    rollout, _, other = awaiting()
    with CaptureQueriesContext(connection) as said:
        actions.reject(actor=other, rollout=rollout, expected_version=rollout.version, reason="Wrong labels.")
    locks = [sql for sql in (query["sql"] for query in said.captured_queries) if "FOR NO KEY" in sql or "_lock(" in sql]
    of_routes, of_log = (
        next(i for i, sql in enumerate(locks) if what in sql)
        for what in ('FROM "serving_environment"', "pg_advisory_xact_lock")
    )
    assert of_routes < of_log


# --- one rollout, however far it has come -----------------------------------------------------------------------------


def shut_rollout(rollout: Rollout) -> Rollout:
    return actions.shut_rollout(actor=make_actor(Role.CI), rollout=rollout, reason="Now.")


@pytest.mark.parametrize(
    ("state", "becomes"),
    [
        ("awaiting_approval", "cancelled"), ("preparing", "cancelled"), ("shadowing", "rolling_back"), ("shifting", "rolling_back"),
        ("paused", "rolling_back"), ("baking", "rolling_back"), ("stuck", "rolling_back"), ("rolling_back", "rolling_back"),
        ("rolled_back", "rolled_back"), ("rejected", "rejected"), ("cancelled", "cancelled"), ("superseded", "superseded"),
    ],
)  # fmt: skip
def test_whatever_a_rollout_is_doing_it_is_rolled_back_in(state: str, becomes: str) -> None:
    rollout, _ = with_stable()
    seen = Rollout.objects.get()
    put(rollout, state)
    assert shut_rollout(seen).state == becomes  # as an old page knows it


def test_taking_back_a_promoted_one_goes_back_and_takes_back_no_other() -> None:
    rollout, stable = promoted()
    assert shut_rollout(rollout).state == "reverted" and Route.objects.get(model=rollout.model).stable_id == stable.pk
    assert shut_rollout(rollout).state == "reverted"  # not one release further
    rollout, _ = promoted()
    newer = started(candidate=release_of(rollout.model))
    put(rollout, "promoted")
    with pytest.raises(StateChanged, match=f"rollout {newer.pk} has begun since"):
        shut_rollout(rollout)
    put(newer, "promoted")
    with pytest.raises(NotFound, match="Another release was promoted after"):
        shut_rollout(rollout)


def test_taking_back_takes_the_right_to_roll_back() -> None:
    rollout, _ = with_stable()
    with pytest.raises(Refused, match="may not roll back"):
        actions.shut_rollout(actor=make_actor(team="elsewhere"), rollout=rollout, reason="Now.")


@pytest.mark.parametrize(
    ("verb", "state"), [("pause", "paused"), ("abort", "rolling_back"), ("roll_back", "rolling_back")]
)
def test_any_version_is_shut_and_what_is_shut_is_left(verb: str, state: str) -> None:
    rollout, _ = with_stable()
    shut = getattr(actions, verb)
    done, again = (shut(actor=make_actor(), rollout=rollout, expected_version=None, reason="Now.") for _ in range(2))
    assert (done.state, again.version) == (state, done.version)
    with pytest.raises((Stale, StateChanged)):  # who names a version means it
        shut(actor=make_actor(), rollout=rollout, expected_version=done.version, reason="Now.")
