"""Who asks for a rollout does not loosen who has to agree: every door, every role, every rule that could be loosened."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.actions import actor_for, issue_token
from accounts.core.access import Actor, Role
from accounts.models import Membership
from ledger.core.errors import Refused
from registry.actions.served_models import change_model
from registry.models import Release, ServedModel
from rollouts import actions
from rollouts.actions.preview import preview_rollout
from rollouts.models import Rollout
from rollouts.queries.inbox import waiting_approvals
from serving.environments.actions.environments import create_environment
from tests.pages.clients import signed_in
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_actor, make_admin, make_model, make_user
from tests.support.worlds.rollout_setup import OBJECTIVES, production, release_of, serves

pytestmark = pytest.mark.django_db

OWN = {"approvals": {"start": 1}, "approval_valid_s": 3600}
#: Each loosens one rule of OWN.
LOOSER: dict[str, dict[str, Any]] = {
    "none": {},
    "zero": {"approvals": {}},
    "later": {"approvals": {"bake": 1}},
    "preset": {"preset": "fast"},
    "validity": {"approvals": {"start": 1}, "approval_valid_s": 864_000},
}


def candidate(**policy: Any) -> Release:
    """r2 over r1, under a model's policy that asks for one approval."""
    model = make_model(objectives=OBJECTIVES, rollout_policy=policy or OWN)
    serves(release_of(model))
    return release_of(model)


def start(actor: Actor, release: Release, policy: Any, **over: Any) -> Rollout:
    return actions.start_rollout(actor=actor, candidate=release, environment=production(**over), policy=policy)


@pytest.mark.parametrize("how", LOOSER)
@pytest.mark.parametrize("role", [Role.MODEL_TEAM, Role.CI])
def test_who_is_no_release_manager_may_not_loosen_it(role: Role, how: str) -> None:
    release = candidate()
    with pytest.raises(Refused) as caught:
        start(make_actor(role), release, LOOSER[how])
    assert caught.value.code == ("fewer_approvals" if role == Role.MODEL_TEAM else "policy_not_yours")
    assert not Rollout.objects.exists()


@pytest.mark.parametrize("how", LOOSER)
def test_a_release_manager_may_and_everybody_reads_it(how: str) -> None:
    release, manager = candidate(), make_actor(Role.RELEASE_MANAGER)
    found = preview_rollout(actor=manager, candidate=release, environment=production(), policy=LOOSER[how])
    told = {one["code"]: one["level"] for one in found["warnings"]}
    assert told["fewer_approvals"] == "warning" and told["other_policy"] == "warning" and found["can_start"]
    assert start(manager, release, LOOSER[how]).state in ("preparing", "awaiting_approval")


def test_the_preview_of_who_may_not_says_that_it_would_be_refused() -> None:
    found = preview_rollout(
        actor=make_actor(Role.MODEL_TEAM), candidate=candidate(), environment=production(), policy=LOOSER["zero"]
    )
    told = [one for one in found["warnings"] if one["code"] == "fewer_approvals"]
    assert [one["level"] for one in told] == ["refused"] and "release manager" in told[0]["message"]
    assert not found["can_start"]


def test_as_many_approvals_are_no_loosening() -> None:
    member = make_actor(Role.MODEL_TEAM)
    policy = {"preset": "careful", "approvals": {"start": 1, "bake": 1}, "approval_valid_s": 1800}
    assert start(member, candidate(), policy).state == "awaiting_approval"
    assert start(member, candidate(), None).state == "awaiting_approval"


def test_the_environments_rule_holds_beside_the_policy() -> None:
    member = make_actor(Role.MODEL_TEAM)
    production(needs_approval=True)
    rollout = start(member, candidate(preset="standard"), {"approvals": {}, "preset": "fast"})
    assert rollout.state == "awaiting_approval" and rollout.effective_policy.approvals["start"] == 1


def test_another_release_in_its_place_loosens_nothing_either() -> None:
    member, first = make_actor(Role.MODEL_TEAM), candidate()
    rollout, newer = start(member, first, None), release_of(first.model)
    for how in LOOSER:
        with pytest.raises(Refused) as caught:
            actions.supersede(
                actor=member, rollout=rollout, expected_version=rollout.version, candidate=newer, policy=LOOSER[how],
                reason="A fix.",
            )  # fmt: skip
        assert caught.value.code == "fewer_approvals"


@pytest.mark.parametrize("how", LOOSER)
def test_the_models_own_policy_is_not_loosened_first(how: str) -> None:
    model = candidate().model
    over = {"actor": make_actor(Role.MODEL_TEAM), "model": model, "expected_version": model.version}
    with pytest.raises(Refused) as caught:
        change_model(**over, changes={"rollout_policy": LOOSER[how]})
    assert caught.value.code == "fewer_approvals"
    model.refresh_from_db()
    assert model.rollout_policy == OWN
    changed = change_model(**over, changes={"rollout_policy": {**OWN, "approvals": {"start": 2}}, "title": "Tighter"})
    assert changed.rollout_policy["approvals"] == {"start": 2}
    changed = change_model(
        actor=make_admin(), model=changed, expected_version=changed.version, changes={"rollout_policy": LOOSER[how]}
    )
    assert changed.rollout_policy == LOOSER[how]


def may_loosen(actor: Actor, release: Release) -> Refused | None:
    """The refusal of a policy without approvals as the model's own, None if it was changed."""
    model = release.model
    over = {"actor": actor, "model": model, "expected_version": model.version}
    try:
        change_model(**over, changes={"rollout_policy": LOOSER["zero"]})
    except Refused as refused:
        return refused
    return None


def test_whom_the_refusal_names_may_change_the_policy() -> None:
    release = candidate()
    refused = may_loosen(make_actor(Role.MODEL_TEAM), release)
    assert refused is not None and "both roles, model_team and release_manager" in refused.message
    assert "ask a release manager" not in refused.message and "ask an administrator" in refused.message
    assert (
        may_loosen(make_actor(Role.RELEASE_MANAGER), release) is not None
    )  # so the refusal must not send people there
    both = make_user(team="search", role=Role.MODEL_TEAM)
    Membership.objects.create(user=both, team=release.model.team, role=Role.RELEASE_MANAGER)
    assert may_loosen(actor_for(both), release) is None


def test_an_own_policy_that_cannot_be_read_is_not_loosened() -> None:
    release = candidate()
    ServedModel.objects.update(rollout_policy={"approvals": {"start": 1}, "of an older version": 1})
    release.model.refresh_from_db()
    member = make_actor(Role.MODEL_TEAM)
    with pytest.raises(Refused) as caught:
        start(member, release, LOOSER["zero"])
    assert caught.value.code == "fewer_approvals" and "cannot be read" in caught.value.message
    refused = may_loosen(member, release)
    assert refused is not None and refused.code == "fewer_approvals" and "cannot be read" in refused.message
    assert start(make_actor(Role.RELEASE_MANAGER), release, LOOSER["zero"]).state == "preparing"
    assert may_loosen(make_admin(), release) is None


def test_no_door_of_the_api_or_the_pages_loosens_it() -> None:
    release, member = candidate(), make_user(team="search", role=Role.MODEL_TEAM)
    production()
    model, client = release.model, signed_in(member)
    form = {"environment": "production", "policy": "json", "policy_json": '{"approvals": {}}'}
    answer = client.post(reverse("release_start", args=[model.slug, release.number]), form)
    assert answer.status_code == 403 and "fewer_approvals" in answer.content.decode()
    token = issue_token(user=member, name="laptop", actor=make_admin())
    api, bearer = Client(), {"HTTP_AUTHORIZATION": f"Bearer {token}"}
    body = {"model": model.slug, "candidate": release.name, "environment": "production", "policy": {}}
    answer = api.post("/api/v1/rollouts", body, "application/json", **bearer)  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["code"]) == (403, "fewer_approvals")
    answer = api.patch(
        f"/api/v1/models/{model.slug}", {"rollout_policy": {}}, "application/json",
        HTTP_IF_MATCH=f'"{model.version}"', **bearer,
    )  # type: ignore[arg-type]  # fmt: skip
    assert (answer.status_code, answer.json()["code"]) == (403, "fewer_approvals")
    assert not Rollout.objects.exists()


def test_who_approves_reads_what_was_loosened() -> None:
    two = {"approvals": {"start": 2}}
    manager, approver = make_actor(Role.RELEASE_MANAGER), make_user(team="search", role=Role.RELEASE_MANAGER)
    release = candidate(**two)
    start(manager, release, {"approvals": {"start": 1}})
    (one,) = waiting_approvals(make_actor(Role.RELEASE_MANAGER))
    assert one.weaker
    page = squeezed(signed_in(approver).get(reverse("approvals")).content.decode())
    assert "fewer_approvals" in page and "1 approval up to" in page
    shown = squeezed(
        signed_in(approver)
        .get(
            reverse("release_rollout", args=[release.model.slug, release.number]),
            {"environment": "production", "policy": "json", "policy_json": "{}"},
        )
        .content.decode()
    )
    assert "fewer_approvals" in shown


def test_every_environment_with_a_gateway_asks_for_an_approval_when_it_is_made() -> None:
    admin = make_admin()
    assert create_environment(actor=admin, slug="production-eu").needs_approval
    assert create_environment(actor=admin, slug="live").needs_approval
    assert not create_environment(actor=admin, slug="production-us", needs_approval=False).needs_approval
    assert not create_environment(actor=admin, slug="lab", is_routed=False).needs_approval
    page = signed_in(make_user("root", is_admin=True)).get(reverse("settings_environments")).content.decode()
    assert re.search(r'name="needs_approval"\s+checked', page)
