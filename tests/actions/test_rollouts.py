"""People's verbs on rollouts: who may, when, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.core.access import Actor, Role
from accounts.core.errors import DomainError, Invalid, NotFound, Refused, Stale, StateChanged
from ledger.core.canonical import canonical_bytes, sha256_of
from ledger.models import Event
from registry import signing
from registry.core.lifecycle import ReleaseState
from registry.models import Release, Waiver
from rollouts import actions
from rollouts.actions.conduct import write_route
from rollouts.models import Approval, Decision, Observation, Rollout
from rollouts.observe import read_all, seen_of
from serving.models import Deployment, Environment, Gateway, Route
from serving.ports import GatewayCounters
from serving.routing import set_route
from tests.factories import (
    make_actor,
    make_admin,
    make_deployment,
    make_environment,
    make_model,
    make_release,
    make_server,
    make_user,
)
from validators.core.policy import parse_policy as parse_gate_policy
from validators.models import Report, Validation

pytestmark = pytest.mark.django_db

OBJECTIVES = {"errors_max_frac": 0.01}


def production(**over: Any) -> Environment:
    return make_environment("production", **{"needs_passed_report": False, **over})


def release_of(model: Any = None, **over: Any) -> Release:
    return make_release(model or make_model(objectives=OBJECTIVES), **over)


def started(**over: Any) -> Rollout:
    return actions.start_rollout(
        actor=make_admin(), candidate=over.pop("candidate", None) or release_of(), environment=production(**over)
    )


def put(rollout: Rollout, state: str, **columns: Any) -> Rollout:
    """The rollout as if the engine had brought it there."""
    Rollout.objects.filter(pk=rollout.pk).update(state=state, **columns)
    rollout.refresh_from_db()
    return rollout


def report_for(
    release: Release,
    verdict: str = "passed",
    *,
    manifest: str = "",
    policy: str = "",
    forged: dict[str, str] | None = None,
) -> Report:
    """A report signed here; `forged` columns are changed after that."""
    policy_digest = policy or parse_gate_policy(release.model.gate_policy).digest
    validation = Validation.objects.create(
        release=release,
        environment=make_environment("staging"),
        policy={},
        policy_digest=policy_digest,
        state="finished",
        verdict=verdict,
        requested_by="test",
    )
    named = {"manifest_digest": manifest or release.digest or "", "policy_digest": policy_digest, "verdict": verdict}
    body = canonical_bytes({**named, "validation": validation.pk})
    signature, key_id = signing.sign(sha256_of(body))
    signed = {"body": body.decode(), "digest": sha256_of(body), "signature": signature, "key_id": key_id}
    return Report.objects.create(validation=validation, release=release, **{**named, **signed, **(forged or {})})


def with_stable() -> tuple[Rollout, Release]:
    """A rollout over a stable release, live at 25 %."""
    model = make_model(objectives=OBJECTIVES)
    stable, candidate = release_of(model), release_of(model)
    set_route(actor=Actor.system("test"), environment=production(), model=model, stable=stable, reason="It serves.")
    rollout = started(candidate=candidate)
    set_route(
        actor=Actor.system("test"),
        environment=production(),
        model=model,
        stable=stable,
        candidate=candidate,
        candidate_bp=2500,
        fence=7,
        reason="Step 1.",
    )
    return put(rollout, "shifting", step_index=1, weight_bp=2500), stable


# --- starting ---------------------------------------------------------------------------------------------------------


def test_starting_pins_stable_policy_and_report() -> None:
    model = make_model(objectives=OBJECTIVES)
    stable, candidate = release_of(model), release_of(model)
    set_route(actor=Actor.system("test"), environment=production(), model=model, stable=stable, reason="It serves.")
    report = report_for(candidate)
    rollout = started(candidate=candidate)
    assert (rollout.state, rollout.stable_id) == ("preparing", stable.pk)
    assert rollout.report_id == report.pk and rollout.policy_digest.startswith("sha256:")
    verbs = list(
        Event.objects.filter(subject_type="rollout", subject_id=str(rollout.pk))
        .order_by("seq")
        .values_list("verb", flat=True)
    )
    assert verbs == ["rollout.requested", "rollout.preparing"]


def test_a_passed_report_of_exactly_these_contents_and_todays_policy_is_needed() -> None:
    environment, candidate, admin = production(needs_passed_report=True), release_of(), make_admin()

    def refused(code: str) -> None:
        with pytest.raises(Refused) as caught:
            actions.start_rollout(actor=admin, candidate=candidate, environment=environment)
        assert caught.value.code == code
        assert not Rollout.objects.exists()

    refused("report_missing")
    report_for(candidate, manifest="sha256:" + "0" * 64)
    refused("report_missing")
    report_for(candidate, policy="sha256:" + "1" * 64)
    refused("report_missing")
    report_for(candidate, "failed")
    refused("report_not_passed")
    report_for(candidate, "passed")
    assert actions.start_rollout(actor=admin, candidate=candidate, environment=environment).state == "preparing"


@pytest.mark.parametrize("forged", [{"signature": ""}, {"key_id": "ed25519:0"}, {"body": "{}"}, {"verdict": "passed"}])
def test_a_report_that_is_not_as_it_was_signed_here_admits_nothing(forged: dict[str, str]) -> None:
    candidate = release_of()
    report_for(candidate, "failed" if "verdict" in forged else "passed", forged=forged)
    with pytest.raises(Refused, match="not as this installation signed it"):
        actions.start_rollout(actor=make_admin(), candidate=candidate, environment=production(needs_passed_report=True))


def test_a_later_failed_report_outweighs_an_older_passed_one() -> None:
    candidate = release_of()
    report_for(candidate, "passed")
    report_for(candidate, "failed")
    with pytest.raises(Refused, match="ended failed"):
        actions.start_rollout(actor=make_admin(), candidate=candidate, environment=production(needs_passed_report=True))


def test_unwaived_code_is_refused_and_a_waiver_admits_it() -> None:
    candidate = release_of(is_code_bearing=True)
    with pytest.raises(Refused) as caught:
        started(candidate=candidate)
    assert caught.value.code == "code_not_waived"
    Waiver.objects.create(release=candidate, manifest_digest=candidate.digest, reason="Read it.")
    assert started(candidate=candidate).state == "preparing"


def test_one_active_rollout_for_a_model_in_an_environment() -> None:
    first = started()
    with pytest.raises(StateChanged) as caught:
        started(candidate=release_of(first.model))
    assert caught.value.code == "rollout_active" and caught.value.facts["rollout"] == first.pk
    with pytest.raises(IntegrityError), transaction.atomic():
        Rollout.objects.create(
            model=first.model, environment=first.environment, candidate=first.candidate, policy={}, policy_digest="x"
        )


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: (release_of(), production(is_routed=False)), "environment_not_routed"),
        (lambda: (release_of(state=ReleaseState.DRAFT), production()), "not_sealed"),
        (lambda: (release_of(make_model(rollout_policy={"preset": "yolo"})), production()), "rollout_policy_invalid"),
    ],
)
def test_what_cannot_be_rolled_out_is_refused_with_a_next_step(make: Any, code: str) -> None:
    candidate, environment = make()
    with pytest.raises(DomainError) as caught:
        actions.start_rollout(actor=make_admin(), candidate=candidate, environment=environment)
    assert caught.value.code == code and caught.value.message.endswith(".")


def test_what_serves_already_cannot_be_its_own_candidate() -> None:
    release = release_of()
    set_route(
        actor=Actor.system("test"), environment=production(), model=release.model, stable=release, reason="It serves."
    )
    with pytest.raises(StateChanged) as caught:
        started(candidate=release)
    assert caught.value.code == "already_stable"


def test_only_those_who_may_start_start() -> None:
    stranger = make_actor(team="elsewhere")
    with pytest.raises(Refused):
        actions.start_rollout(actor=stranger, candidate=release_of(), environment=production())


def test_ci_starts_under_the_models_policy_only() -> None:
    candidate, robot = release_of(), make_actor(Role.CI)
    with pytest.raises(Refused) as caught:
        actions.start_rollout(actor=robot, candidate=candidate, environment=production(), policy={"preset": "fast"})
    assert caught.value.code == "policy_not_yours"
    assert not Rollout.objects.exists()
    assert actions.start_rollout(actor=robot, candidate=candidate, environment=production()).state == "preparing"


# --- approving --------------------------------------------------------------------------------------------------------


def awaiting() -> tuple[Rollout, Actor, Actor]:
    """(rollout, its requester, an unrelated release manager)."""
    author = make_user(team="search", role=Role.RELEASE_MANAGER)
    requester, manager = make_actor(Role.RELEASE_MANAGER), make_actor(Role.RELEASE_MANAGER)
    candidate = release_of(author=author)
    return (
        actions.start_rollout(actor=requester, candidate=candidate, environment=production(needs_approval=True)),
        requester,
        manager,
    )


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


# --- steering ---------------------------------------------------------------------------------------------------------


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


# --- rollback of a model ----------------------------------------------------------------------------------------------


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


# --- the record -------------------------------------------------------------------------------------------------------


def test_the_database_refuses_to_change_what_was_decided_observed_or_approved() -> None:
    rollout, _, manager = awaiting()
    actions.approve(actor=manager, rollout=rollout, expected_version=rollout.version)
    observed(rollout, 1, 1)
    for table in (Decision, Approval, Observation):
        row = table.objects.filter(rollout=rollout).first()
        assert row is not None
        for sql in (
            f"UPDATE {table._meta.db_table} SET rollout_id = rollout_id WHERE id = %s",
            f"DELETE FROM {table._meta.db_table} WHERE id = %s",
        ):
            with (
                pytest.raises(IntegrityError, match="append-only|only replaced"),
                transaction.atomic(),
                connection.cursor() as cursor,
            ):
                cursor.execute(sql, [row.pk])


def observed(rollout: Rollout, first: int, last: int) -> Observation:
    at = rollout.created_at
    return Observation.objects.create(
        rollout=rollout, first_tick=first, tick=last, from_at=at, at=at, state="shifting", weight_bp=0, candidate={},
        stable={}, evidence={},
    )  # fmt: skip


def test_an_observation_goes_only_when_a_coarser_one_covers_it() -> None:
    rollout, *_ = awaiting()
    first, second = observed(rollout, 1, 5), observed(rollout, 6, 9)
    whole = observed(rollout, 1, 9)
    first.delete()
    second.delete()
    with pytest.raises(IntegrityError, match="only replaced"), transaction.atomic():
        whole.delete()
    assert list(Observation.objects.filter(rollout=rollout)) == [whole]


# --- observing --------------------------------------------------------------------------------------------------------


class _OneTalksNonsense:
    def read(self, *, gateway: str, admin_url: str, model: str, timeout_s: float) -> GatewayCounters:
        if gateway == "odd":
            raise ValueError("no number")
        return GatewayCounters(gateway, "one", timezone.now(), {})


def test_a_gateway_that_talks_nonsense_does_not_blind_the_engine_to_the_others() -> None:
    rollout, _ = with_stable()
    for name in ("odd", "sound"):
        Gateway.objects.create(environment=rollout.environment, name=name, admin_url="", http_url="", grpc_address="")
    found = read_all([rollout], _OneTalksNonsense())
    assert "odd cannot be made out" in str(found["odd", rollout.model.slug])
    assert isinstance(found["sound", rollout.model.slug], GatewayCounters)
    assert seen_of(rollout, found, rollout.plan, timezone.now().timestamp()).problem == "provider_down"


@pytest.mark.parametrize(
    "table", ["rollouts_rollout", "rollouts_decision", "rollouts_approval", "rollouts_observation"]
)
def test_no_record_of_a_rollout_can_be_emptied(table: str) -> None:
    with pytest.raises(IntegrityError, match="never deleted"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {table} CASCADE")
