"""Asking for a rollout: who may, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from accounts.core.access import Actor, Role
from ledger.core.errors import DomainError, Invalid, Refused, StateChanged
from ledger.models import Event
from registry.core.lifecycle import ReleaseState
from registry.models import Release, Waiver
from rollouts import actions
from rollouts.models import Rollout
from serving.models import Replica
from serving.traffic.actions.routes import set_route
from tests.support.worlds.factories import (
    make_actor,
    make_admin,
    make_model,
    make_replica,
)
from tests.support.worlds.rollout_setup import (
    OBJECTIVES,
    frozen_now,
    production,
    put,
    release_of,
    report_for,
    serves,
    started,
)

pytestmark = pytest.mark.django_db


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
    with pytest.raises(IntegrityError, match="rollout_one_active"), transaction.atomic():
        Rollout.objects.create(
            model=first.model,
            environment=first.environment,
            candidate=first.candidate,
            policy={},
            policy_digest="x",
            state="preparing",
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


def test_nothing_starts_in_a_freeze_window() -> None:
    candidate = release_of(make_model(objectives=OBJECTIVES, rollout_policy=frozen_now("Black Friday")))
    with pytest.raises(Refused) as caught:
        started(candidate=candidate)
    assert caught.value.code == "frozen" and caught.value.facts["why"] == "Black Friday"
    assert not Rollout.objects.exists()


# --- superseding ------------------------------------------------------------------------------------------------------


def superseded(old: Rollout, candidate: Release, actor: Actor | None = None, **more: Any) -> Rollout:
    return actions.supersede(
        **{"actor": actor or make_admin(), "rollout": old, "expected_version": old.version, "candidate": candidate,
           "reason": "A fix for it.", **more}
    )  # fmt: skip


def put_newer(state: str) -> tuple[Rollout, Release, Release]:
    """(a rollout in this state over a stable release, that release, a newer one)."""
    model = make_model(objectives=OBJECTIVES)
    stable = release_of(model)
    serves(stable)
    old = put(started(candidate=release_of(model)), state)
    return old, stable, release_of(model)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("awaiting_approval", marks=pytest.mark.takes("rollout: awaiting_approval → superseded")),
        pytest.param("preparing", marks=pytest.mark.takes("rollout: preparing → superseded")),
    ],
)
def test_a_new_rollout_takes_the_place_of_one_without_traffic(state: str) -> None:
    old, stable, newer = put_newer(state)
    replica = make_replica(old.candidate, old.environment)
    robot = make_actor(Role.CI)
    new = superseded(old, newer, robot)
    old.refresh_from_db()
    assert (old.state, new.state, new.supersedes_id, new.candidate_id) == ("superseded", "preparing", old.pk, newer.pk)
    assert new.stable_id == stable.pk  # the last one that was fully promoted
    assert old.reason == f"{newer.name} takes the place of {old.candidate.name}, by {robot.name}: A fix for it."
    assert f"(after rollout {old.pk})" in new.decisions.get(action="request").reason
    assert Replica.objects.get(pk=replica.pk).is_wanted == (state != "preparing")
    verbs = list(Event.objects.filter(subject_type="rollout").order_by("seq").values_list("verb", flat=True))
    assert verbs[-3:] == ["rollout.superseded", "rollout.requested", "rollout.preparing"]


@pytest.mark.parametrize("state", ["shadowing", "shifting", "paused", "baking", "rolling_back", "stuck"])
def test_what_has_traffic_must_be_rolled_back_in_first(state: str) -> None:
    old, _, newer = put_newer(state)
    with pytest.raises(StateChanged) as caught:
        superseded(old, newer)
    assert caught.value.code == "has_traffic" and "Abort it first" in caught.value.message


def test_what_may_not_start_supersedes_nothing() -> None:
    old, stable, newer = put_newer("awaiting_approval")
    draft = release_of(old.model, state=ReleaseState.DRAFT)
    other_model = release_of()
    for code, more in {
        "not_another_candidate": {"candidate": old.candidate},
        "already_stable": {"candidate": stable},
        "not_sealed": {"candidate": draft},
        "stale": {"expected_version": old.version - 1},
        "rollout_policy_invalid": {"policy": {"preset": "yolo"}},
        "frozen": {"policy": frozen_now()},
        "reason_missing": {"reason": " "},
        "forbidden": {"actor": make_actor(team="elsewhere")},
        "policy_not_yours": {"actor": make_actor(Role.CI), "policy": {"preset": "fast"}},
    }.items():
        with pytest.raises(DomainError) as caught, transaction.atomic():
            superseded(**{"old": old, "candidate": newer, **more})  # type: ignore[arg-type]
        assert caught.value.code == code
    with pytest.raises(Invalid, match="is not another release"):
        superseded(old, other_model)
    old.refresh_from_db()
    assert old.state == "awaiting_approval" and Rollout.objects.count() == 1


def test_a_rollout_without_traffic_beside_it_is_to_be_superseded_one_with_traffic_aborted() -> None:
    old, _, newer = put_newer("preparing")
    with pytest.raises(StateChanged, match="let this one supersede it"):
        started(candidate=newer)
    put(old, "shifting")
    with pytest.raises(StateChanged, match="abort it first"):
        started(candidate=newer)


def test_a_rollout_whose_policy_lists_its_guards_is_watched_for_refused_requests_too() -> None:
    model = make_model(objectives=OBJECTIVES, rollout_policy={"guards": [{"indicator": "errors"}]})
    production()
    rollout = started(candidate=release_of(model))
    assert [guard.name for guard in rollout.effective_policy.guards] == ["errors", "refused"]
    assert model.rollout_policy == {"guards": [{"indicator": "errors"}]}
    stored = {**rollout.policy, "guards": rollout.policy["guards"][:1]}
    Rollout.objects.filter(pk=rollout.pk).update(policy=stored)  # of an older version
    rollout.refresh_from_db()
    assert [guard.name for guard in rollout.effective_policy.guards] == ["errors"]
