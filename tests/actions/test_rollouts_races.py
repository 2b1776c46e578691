"""Two people at once: one of them acts, the other is told; nothing happens twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections, transaction

from accounts.core.access import Role
from ledger.core.errors import DomainError
from registry.actions.retiring import retire
from rollouts import actions
from rollouts.actions.retiring import remove_environment, restore_environment
from rollouts.models import Approval, Rollout
from serving.models import Environment
from tests.support.worlds.factories import make_actor, make_admin, make_environment, make_model, make_node
from tests.support.worlds.rollout_setup import (
    OBJECTIVES,
    awaiting,
    production,
    promoted,
    release_of,
    serves,
    started,
    with_stable,
)
from validators.actions import request_gate_run
from validators.models import GateRun

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # threads that wait for one another


def at_once(*calls: Callable[[], Any]) -> list[str]:
    """What came of each call, all begun at the same time in threads of their own: `done`, or the code of the refusal."""
    ready = threading.Barrier(len(calls))
    found = [""] * len(calls)

    def run(index: int) -> None:
        ready.wait(timeout=60)
        try:
            calls[index]()
            found[index] = "done"
        except DomainError as error:
            found[index] = error.code
        finally:
            connections["default"].close()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    connection.close()
    return sorted(found)


def test_two_approvals_of_the_same_version_are_one_and_one_that_is_stale() -> None:
    rollout, _, _ = awaiting(approvals={"start": 2})
    people = [make_actor(Role.RELEASE_MANAGER) for _ in range(2)]
    found = at_once(
        *(
            lambda who=who: actions.approve(actor=who, rollout=rollout, expected_version=rollout.version)  # type: ignore[misc]
            for who in people
        )
    )
    assert found == ["done", "stale"] and Approval.objects.count() == 1
    assert Rollout.objects.get(pk=rollout.pk).state == "awaiting_approval"


def test_of_a_start_and_a_supersede_at_once_one_rollout_stays() -> None:
    model = make_model(objectives=OBJECTIVES)
    serves(release_of(model))
    old, candidates, admin = started(candidate=release_of(model)), [release_of(model) for _ in range(3)], make_admin()
    found = at_once(
        *(
            lambda one=one: actions.supersede(  # type: ignore[misc]
                actor=admin, rollout=old, expected_version=old.version, candidate=one, reason="Newer."
            )
            for one in candidates[:2]
        ),
        lambda: actions.start_rollout(actor=admin, candidate=candidates[2], environment=production()),
    )
    assert found == ["done", "rollout_active", "stale"]
    states = sorted(Rollout.objects.values_list("state", flat=True))
    assert states == ["preparing", "superseded"]


def test_of_an_advance_and_an_abort_the_traffic_ends_at_zero_whoever_was_first() -> None:
    rollout, _ = with_stable()
    admin = make_admin()
    found = at_once(
        lambda: actions.advance(actor=admin, rollout=rollout, expected_version=rollout.version, reason="Go."),
        lambda: actions.roll_back_model(
            actor=admin, model=rollout.model, environment=rollout.environment, reason="Stop."
        ),
    )
    assert found in (["done", "done"], ["done", "stale"])
    rollout.refresh_from_db()
    assert (rollout.state, rollout.weight_bp) == ("rolling_back", 0)


def test_an_undo_window_is_used_once() -> None:
    rollout, _ = promoted()
    admin = make_admin()

    def back() -> Rollout:
        return actions.roll_back_model(
            actor=admin, model=rollout.model, environment=rollout.environment, reason="Back."
        )

    assert at_once(back, back) == ["done", "no_active_rollout"]
    assert rollout.decisions.filter(action="roll_back").count() == 1


def test_of_a_start_and_a_removal_of_the_environment_one_wins_and_nothing_runs_in_a_retired_one() -> None:
    model = make_model(objectives=OBJECTIVES)
    serves(release_of(model))
    candidate, admin, environment = release_of(model), make_admin(), production()
    found = at_once(
        lambda: actions.start_rollout(actor=admin, candidate=candidate, environment=environment),
        lambda: remove_environment(actor=admin, environment=environment, reason="", is_confirmed=True),
    )
    assert found in (["done", "environment_in_use"], ["done", "environment_retired"])
    environment.refresh_from_db()
    assert (environment.retired_at is None) == Rollout.objects.exists()


def test_an_environment_is_not_brought_back_with_a_release_that_is_being_retired() -> None:
    """Its retirement is not committed when the restoration begins, and nothing uses the release yet."""
    make_node()
    serves(release := release_of())
    admin, environment = make_admin(), production()
    remove_environment(actor=admin, environment=environment, reason="", is_confirmed=True)
    is_retired, is_begun = threading.Event(), threading.Event()

    def retiring() -> None:
        with transaction.atomic():
            retire(actor=admin, release=release, reason="Old.", expected_version=release.version)
            is_retired.set()
            is_begun.wait(timeout=60)
            time.sleep(1)

    def restoring() -> None:
        is_retired.wait(timeout=60)
        is_begun.set()
        restore_environment(actor=admin, environment=environment)

    assert at_once(retiring, restoring) == ["done", "not_sealed"]
    environment.refresh_from_db()
    assert environment.retired_at is not None


def test_of_a_gate_run_and_a_removal_of_an_environment_that_ran_nothing_one_wins() -> None:
    lab, release, admin = make_environment("lab", is_routed=False), release_of(), make_admin()
    found = at_once(
        lambda: request_gate_run(actor=admin, release=release, environment=lab),
        lambda: remove_environment(actor=admin, environment=lab, reason="", is_confirmed=True),
    )
    assert found in (["done", "environment_in_use"], ["done", "no_such_environment"])
    assert Environment.objects.filter(slug="lab").exists() == GateRun.objects.exists()
