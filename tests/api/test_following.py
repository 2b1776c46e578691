"""A token reads the gate run and the rollout that it asked for after its own end, and nothing else (decision 42)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts import actions as accounts
from accounts.actions import following, token_rules
from accounts.core.access import Actor, Role
from accounts.models import FollowedRun, Token, User
from rollouts.models import Rollout
from tests.support.servers.issuer import Issuer
from tests.support.worlds.factories import make_environment, make_model, make_node, make_release, make_user
from tests.support.worlds.issuer_setup import configured, rule_for
from tests.support.worlds.rollout_setup import OBJECTIVES, production, put, started
from validators.models import GateRun

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("test")


class Job:
    """A program with a token of 15 minutes, which has asked for a gate run and a rollout."""

    def __init__(self, secret: str) -> None:
        self.client = Client(headers={"Authorization": f"Bearer {secret}"})
        self.token = Token.objects.get(sha256=accounts.token_digest(secret))
        self.rollout = self._post("/rollouts", {"model": "ranker", "candidate": "r1", "environment": "production"})
        self.gate_run = self._post("/models/ranker/releases/r1/gate-runs", {})

    def _post(self, path: str, body: dict[str, Any]) -> int:
        answer = self.client.post(f"/api/v1{path}", body, content_type="application/json")
        assert answer.status_code in (200, 201, 202), answer.content
        return int(answer.json()["id"])

    def get(self, path: str) -> int:
        return int(self.client.get(f"/api/v1{path}").status_code)

    @property
    def own(self) -> list[str]:
        return [
            f"/rollouts/{self.rollout}",
            f"/rollouts/{self.rollout}/wait?timeout_s=0",
            f"/rollouts/{self.rollout}/decisions",
            f"/gate-runs/{self.gate_run}",
            f"/gate-runs/{self.gate_run}/wait?timeout_s=0",
        ]

    def statuses(self) -> set[int]:
        return {self.get(path) for path in self.own}

    def expire(self) -> None:
        Token.objects.filter(pk=self.token.pk).update(expires_at=timezone.now() - timedelta(seconds=1))


@pytest.fixture
def robot() -> User:
    make_node()
    make_environment("staging", is_routed=False)
    production()
    model = make_model("ranker", objectives=OBJECTIVES)
    make_release(model)
    make_release(model)
    return make_user("robot", team="search", role=Role.CI)


@pytest.fixture
def job(robot: User) -> Job:
    ends_at = timezone.now() + timedelta(minutes=15)
    made = Job(accounts.issue_token(user=robot, name="job", actor=SYSTEM, expires_at=ends_at))
    made.expire()
    return made


def test_its_own_runs_are_read_and_nothing_else(job: Job) -> None:
    assert job.statuses() == {200, 202}
    other = started(candidate=make_release(make_model("other", objectives=OBJECTIVES)))
    for path in (
        "/me",
        "/rollouts",
        "/models/ranker",
        "/models/ranker/releases/r1/gate-runs",
        f"/rollouts/{other.pk}",
        f"/rollouts/{other.pk}/wait?timeout_s=0",
        f"/rollouts/{job.rollout}/observations",
        f"/gate-runs/{job.gate_run}/log",
        "/rollouts/999999/wait?timeout_s=0",
    ):
        assert job.get(path) == 401, path
    for verb in ("pause", "abort", "approve"):
        answer = job.client.post(
            f"/api/v1/rollouts/{job.rollout}/{verb}",
            {"reason": "No."},
            content_type="application/json",
            headers={"If-Match": "*"},
        )
        assert (answer.status_code, answer.json()["code"]) == (401, "token_expired")


def test_a_token_whose_scope_lacks_read_reads_nothing_after_its_end(job: Job) -> None:
    def read_with(verbs: list[str] | None) -> set[int]:
        Token.objects.filter(pk=job.token.pk).update(scope_verbs=verbs)
        return job.statuses()

    assert read_with(["rollout.start"]) == read_with([]) == {401}
    assert read_with(["read", "rollout.start"]) == read_with(None) == {200, 202}


def test_another_token_of_the_same_robot_follows_only_what_it_asked_for_itself(job: Job, robot: User) -> None:
    secret = accounts.issue_token(user=robot, name="stranger", actor=SYSTEM)
    Token.objects.filter(name="stranger").update(expires_at=timezone.now() - timedelta(seconds=1))
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    assert {client.get(f"/api/v1{path}").status_code for path in job.own} == {401}


def test_a_job_that_finds_the_rollout_follows_it_as_well(job: Job, robot: User) -> None:
    again = Job(accounts.issue_token(user=robot, name="again", actor=SYSTEM))
    assert (again.rollout, again.gate_run) == (job.rollout, job.gate_run)
    again.expire()
    assert again.statuses() == {200, 202}
    assert (Rollout.objects.count(), GateRun.objects.count()) == (1, 1)


@pytest.mark.parametrize(("ago", "may_read"), [(timedelta(minutes=14), True), (timedelta(minutes=16), False)])
def test_until_some_minutes_after_the_end(job: Job, ago: timedelta, may_read: bool) -> None:
    put(Rollout.objects.get(), "promoted", ended_at=timezone.now() - ago)
    assert (job.get(job.own[1]) == 200) is may_read
    assert job.get(job.own[4]) == 202, "the gate run goes on"


def test_for_a_week_at_most(job: Job) -> None:
    FollowedRun.objects.update(until=timezone.now() - timedelta(seconds=1))
    assert job.statuses() == {401}


def test_rows_of_before_are_forgotten(job: Job) -> None:
    FollowedRun.objects.update(until=timezone.now() - timedelta(seconds=1))
    following.follow(Actor("x", token_id=job.token.pk), "rollout", 7)
    assert FollowedRun.objects.get().subject_id == 7


def revoke(job: Job) -> None:
    accounts.revoke_token(actor=SYSTEM, token=job.token)


def shut_out(job: Job) -> None:
    accounts.deactivate_user(actor=SYSTEM, username="robot", reason="Gone.")


def shut_out_and_let_in(job: Job) -> None:
    shut_out(job)
    accounts.reactivate_user(actor=SYSTEM, username="robot", reason="Back.")


@pytest.mark.parametrize("end", [revoke, shut_out, shut_out_and_let_in])
def test_what_ends_a_token_ends_its_reading(job: Job, end: Callable[[Job], None]) -> None:
    end(job)
    assert job.statuses() == {401}


def test_a_role_that_is_taken_away_is_gone_at_once(job: Job) -> None:
    accounts.revoke_role(actor=SYSTEM, username="robot", team="search", role=Role.CI)
    assert job.statuses() == {404}


def test_a_rule_that_is_turned_off_ends_the_reading_of_tokens_that_had_expired(robot: User) -> None:
    with Issuer() as issuer:
        rule = rule_for(configured(issuer))
        given = Client().post(
            "/api/v1/tokens:exchange", {"id_token": issuer.github_token()}, content_type="application/json"
        )
        job = Job(given.json()["token"])
        job.expire()
        assert job.statuses() == {200, 202}
        token_rules.change_token_rule(actor=SYSTEM, rule=rule, expected_version=1, changes={"is_active": False})
        assert job.statuses() == {401}


def test_a_secret_of_before_a_rotation_reads_no_longer_than_it_was_good(robot: User) -> None:
    secret = accounts.issue_token(user=robot, name="job", actor=SYSTEM)
    job = Job(secret)
    accounts.rotate_token(actor=SYSTEM, token=job.token, overlap=timedelta(minutes=5))
    job.expire()
    assert job.statuses() == {200, 202}
    Token.objects.update(previous_until=timezone.now() - timedelta(seconds=1))
    assert job.statuses() == {401}
