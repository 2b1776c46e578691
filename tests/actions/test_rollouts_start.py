"""Asking for a rollout: who may, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from accounts.core.access import Actor, Role
from accounts.core.errors import DomainError, Refused, StateChanged
from ledger.models import Event
from registry.core.lifecycle import ReleaseState
from registry.models import Waiver
from rollouts import actions
from rollouts.models import Rollout
from serving.routing import set_route
from tests.factories import (
    make_actor,
    make_admin,
    make_model,
)
from tests.rollout_setup import OBJECTIVES, production, release_of, report_for, started

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
