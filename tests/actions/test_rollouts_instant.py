"""Going back to the release before, in one step."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.core.access import Actor
from accounts.core.errors import NotFound, StateChanged
from rollouts import actions
from rollouts.actions.conduct import write_route
from rollouts.models import Rollout
from serving.models import Route
from serving.routing import set_route
from tests.factories import (
    make_admin,
    make_deployment,
    make_server,
)
from tests.rollout_setup import put, started, with_stable

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


def test_with_nothing_active_only_a_warm_release_can_be_gone_back_to() -> None:
    rollout, stable = with_stable()
    model, environment, admin = rollout.model, rollout.environment, make_admin()
    put(rollout, "promoted")
    set_route(
        actor=Actor.system("test"),
        environment=environment,
        model=model,
        stable=rollout.candidate,
        fence=7,
        reason="Promoted.",
    )
    with pytest.raises(NotFound) as caught:
        actions.roll_back_model(actor=admin, model=model, environment=environment, reason="Now.")
    assert caught.value.code == "no_active_rollout" and "no longer warm" in caught.value.message
    make_server(make_deployment(stable, environment, state="ready"))
    actions.roll_back_model(actor=admin, model=model, environment=environment, reason="Now.")
    assert Route.objects.get(model=model).stable_id == stable.pk


def test_a_release_that_is_let_go_already_is_not_gone_back_to() -> None:
    """Its server still answers, but its agent is about to end it."""
    rollout, stable = with_stable()
    put(rollout, "promoted")
    set_route(
        actor=Actor.system("test"),
        environment=rollout.environment,
        model=rollout.model,
        stable=rollout.candidate,
        reason=".",
    )
    make_server(make_deployment(stable, rollout.environment, state="ready", is_wanted=False))
    with pytest.raises(NotFound, match="no longer warm"):
        actions.roll_back_model(actor=make_admin(), model=rollout.model, environment=rollout.environment, reason="Now.")


def test_an_engine_that_looked_before_a_person_shut_does_not_open_again() -> None:
    rollout, _ = with_stable()
    seen = Rollout.objects.get(pk=rollout.pk)
    actions.abort(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="It is bad.")
    with pytest.raises(StateChanged):
        write_route(seen, 2500, fence=7, reason="Step 1.")
    assert Route.objects.get(model=rollout.model).candidate_bp == 0


def test_the_logs_lock_is_taken_after_that_of_the_routes() -> None:
    """Everybody takes them in this order, so that nobody waits for each other: a deadlock costs a second, and one of the two."""
    rollout = started()
    with CaptureQueriesContext(connection) as said:
        actions.cancel(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="Not now.")
    asked = [query["sql"] for query in said.captured_queries]
    of_routes = next(i for i, sql in enumerate(asked) if "serving_environment" in sql and "FOR NO KEY UPDATE" in sql)
    of_log = [i for i, sql in enumerate(asked) if "pg_advisory_xact_lock" in sql]
    assert of_log and of_routes < of_log[0]
